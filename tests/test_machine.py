"""Cores, thread pools and memory of the machine, from files as the kernel writes them."""

import math
import unittest
from unittest import mock

from myxtts.base import machine
from myxtts.base.errors import ConfigError
from myxtts.base.machine import automatic_pools, available_memory_mib
from myxtts.commands import train
from myxtts.config.schema import PlacementConfig
from myxtts.placement.settings import plan_routes
from tests.fixtures import FolderCase

UNLIMITED = "9223372036854771712"
CPU = plan_routes(PlacementConfig(simulate_gpus=2, data_gpu=0, model_gpu=1), 0)


class AutomaticPoolsTest(unittest.TestCase):
    def test_pools_have_all_cores_except_for_small_operations_on_few_cores_and_gpus(self):
        for on_gpu, cores, is_small, sizes in (
            *((False, cores, True, (1, cores)) for cores in (1, 2)),
            *((False, cores, True, (cores, cores)) for cores in (3, 64)),
            *((False, cores, False, (cores, cores)) for cores in (1, 2, 8)),
            (True, 2, True, (None, None)),
        ):
            self.assertEqual(automatic_pools(on_gpu, cores, is_small), sizes)

    def test_placement_has_the_requested_sizes(self):
        for settings in ({}, {"simulate_gpus": 1}):
            placement = plan_routes(PlacementConfig(intra_op_threads=3, **settings), 0)
            self.assertEqual((placement.intra_op_threads, placement.inter_op_threads), (3, "auto"))


class FlagsTest(unittest.TestCase):
    def test_sizes_are_numbers_or_auto(self):
        flags = "--intra-op-threads 4 --inter-op-threads auto"
        placement = train.parse(flags.split())[0].placement
        self.assertEqual((placement.intra_op_threads, placement.inter_op_threads), (4, "auto"))

    def test_other_sizes_are_rejected_with_what_is_allowed(self):
        for value in ("0", "-1", "1025", "2.5", "null", "Auto", "many"):
            with self.subTest(value=value), self.assertRaises(ConfigError) as caught:
                train.parse([f"--intra-op-threads={value}"])
            allowed = "must be a whole number from 1 to 1024, or auto"
            self.assertRegex(str(caught.exception), f"^--intra-op-threads is .+, but {allowed}")


class CoresTest(FolderCase):
    def test_quota_is_the_smallest_of_all_control_groups_around_the_process(self):
        two, half, none = "200000 100000\n", "50000 100000\n", "max 100000\n"
        for cgroup, limits, expected in (
            ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
            ("0::/pods/a", {"pods/a/cpu.max": none, "pods/cpu.max": two}, 2.0),
            ("0::/pods/a", {"pods/a/cpu.max": half, "pods/cpu.max": two}, 0.5),
            # Without a quota there is no limit.
            ("0::/pods/a", {}, math.inf),
            ("2:cpuset:/", {}, math.inf),
            ("", {}, math.inf),
            ("0::/", {"cpu.max": "broken"}, math.inf),
        ):
            with self.subTest(cgroup=cgroup, limits=limits):
                self.setUp()
                self.write("proc/self/cgroup", f"1:cpuset:/x\n{cgroup}\n" if cgroup else "")
                for name, text in limits.items():
                    self.write(f"sys/fs/cgroup/{name}", text)
                self.assertEqual(machine.cpu_quota(self.folder), expected)

    def test_quotas_of_control_groups_version_1_count(self):
        self.write("proc/self/cgroup", "4:cpuacct,cpu:/docker/of-the-host\n0::/\n")
        self.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        for quota, expected in (("150000", 1.5), ("-1", math.inf)):
            self.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
            self.assertEqual(machine.cpu_quota(self.folder), expected)

    def test_cores_are_those_of_the_affinity_within_the_quota(self):
        for usable, quota, count in ((2, math.inf, 2), (8, 1.5, 2), (1, 4.0, 1), (2, 0.25, 1)):
            cores = mock.patch.object(machine, "usable_cores", return_value=[*range(usable)])
            with cores, mock.patch.object(machine, "cpu_quota", return_value=quota):
                self.assertEqual(machine.core_count(), count)


class AvailableMemory(FolderCase):
    def group(self, path, limit, usage, inactive, version=2):
        """Write a control group with sizes in MiB."""
        names = machine.MEMORY_FILES[version]
        self.write(f"{path}/{names[0]}", limit if isinstance(limit, str) else f"{limit * 2**20}\n")
        self.write(f"{path}/{names[1]}", f"{usage * 2**20}\n")
        self.write(f"{path}/memory.stat", f"anon 5\n{names[2]} {inactive * 2**20}\n")

    def test_without_limits_it_is_the_available_memory_of_the_machine(self):
        self.write("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n")
        self.assertEqual(available_memory_mib(self.folder), 3)

    def test_the_nearest_limit_of_any_group_above_the_process_counts(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "0::/jobs/7/step\n")
        self.group("sys/fs/cgroup/jobs/7/step", "max\n", 500, 0)
        self.group("sys/fs/cgroup/jobs/7", 1000, 600, 100)
        self.group("sys/fs/cgroup/jobs", 8000, 700, 0)
        self.assertEqual(available_memory_mib(self.folder), 1000 - 600 + 100)

    def test_limits_of_control_groups_version_1_count(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "5:cpu,memory:/pod/a\n4:cpuset:/\n0::/\n")
        self.group("sys/fs/cgroup/memory/pod/a", 2000, 1200, 50, version=1)
        self.group("sys/fs/cgroup/memory", f"{UNLIMITED}\n", 8000, 0, version=1)
        self.assertEqual(available_memory_mib(self.folder), 2000 - 1200 + 50)

    def test_a_container_that_sees_its_group_as_the_base_has_that_limit(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "3:memory:/docker/of-the-host\n")
        self.group("sys/fs/cgroup/memory", 512, 12, 0, version=1)
        self.assertEqual(available_memory_mib(self.folder), 500)
