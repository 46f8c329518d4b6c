"""Cores, thread pools and memory of the machine, from files as the kernel writes them."""

import math
import unittest
from pathlib import Path
from unittest import mock

from myxtts import machine
from myxtts.commands import train
from myxtts.config.schema import PlacementConfig
from myxtts.distributed.cluster import Cluster
from myxtts.errors import ConfigError
from myxtts.machine import automatic_pools, available_memory_mib
from myxtts.placement.routes import plan_routes
from tests.fixtures import temporary_folder

UNLIMITED = "9223372036854771712"
CPU = plan_routes(PlacementConfig(simulate_gpus=2, data_gpu=0, model_gpu=1), 0)


class AutomaticPoolsTest(unittest.TestCase):
    def test_small_operations_use_one_thread_each_on_up_to_two_cores(self):
        sizes = [
            automatic_pools(False, count, small_operations=True).intra_op for count in (1, 2, 3, 64)
        ]
        self.assertEqual(sizes, [1, 1, 3, 64])

    def test_other_operations_use_all_cores(self):
        actual = [automatic_pools(False, count, False) for count in (1, 2, 8)]
        self.assertEqual(actual, [(1, 1), (2, 2), (8, 8)])

    def test_with_gpus_the_default_is_left_to_tensorflow(self):
        self.assertEqual(automatic_pools(True, 2, small_operations=True), (None, None))

    def test_placement_has_the_requested_sizes(self):
        for settings in ({}, {"simulate_gpus": 1}):
            placement = plan_routes(PlacementConfig(intra_op_threads=3, **settings), 0)
            self.assertEqual((placement.intra_op_threads, placement.inter_op_threads), (3, "auto"))


class FlagsTest(unittest.TestCase):
    def test_sizes_are_numbers_or_auto(self):
        placement = train.parse(["--intra-op-threads", "4", "--inter-op-threads", "auto"])[
            0
        ].placement
        self.assertEqual((placement.intra_op_threads, placement.inter_op_threads), (4, "auto"))

    def test_other_sizes_are_rejected_with_what_is_allowed(self):
        for value in ("0", "-1", "1025", "2.5", "null", "Auto", "many"):
            with self.subTest(value=value), self.assertRaises(ConfigError) as caught:
                train.parse([f"--intra-op-threads={value}"])
            self.assertRegex(
                str(caught.exception),
                r"^--intra-op-threads is .+, but must be a whole number from 1 to 1024, or auto\.$",
            )


class CoresTest(unittest.TestCase):
    def folder(self) -> Path:
        return temporary_folder(self.addCleanup)

    def quota(self, cgroup: str, **limits: str) -> float:
        """Return the quota in a container with this line in /proc/self/cgroup, _ for /."""
        root = self.folder()
        groups = root / "sys/fs/cgroup"
        (groups / "pods" / "a").mkdir(parents=True)
        for name, text in limits.items():
            (groups / name.strip("_").replace("_", "/") / "cpu.max").write_text(text)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"1:cpuset:/x\n{cgroup}\n" if cgroup else "")
        return machine.cpu_quota(root)

    def test_quota_is_the_smallest_of_all_cgroups_around_the_process(self):
        self.assertEqual(self.quota("0::/", _="150000 100000\n"), 1.5)
        actual = self.quota("0::/pods/a", pods_a="max 100000\n", pods="200000 100000\n")
        self.assertEqual(actual, 2.0)
        actual = self.quota("0::/pods/a", pods_a="50000 100000\n", pods="200000 100000\n")
        self.assertEqual(actual, 0.5)

    def test_quotas_of_control_groups_version_1_count(self):
        for quota, expected in (("150000", 1.5), ("-1", math.inf)):
            root = self.folder()
            (root / "proc/self").mkdir(parents=True)
            (root / "proc/self/cgroup").write_text("4:cpuacct,cpu:/docker/of-the-host\n0::/\n")
            (root / "sys/fs/cgroup/cpu").mkdir(parents=True)
            (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
            (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
            self.assertEqual(machine.cpu_quota(root), expected)

    def test_without_a_quota_there_is_no_limit(self):
        for cgroup in ("0::/pods/a", "2:cpuset:/", ""):
            self.assertEqual(self.quota(cgroup), math.inf)
        self.assertEqual(self.quota("0::/", _="broken"), math.inf)

    def test_cores_are_those_of_the_affinity_within_the_quota(self):
        for usable, quota, count in (
            ([3, 5], math.inf, 2),
            (list(range(8)), 1.5, 2),
            ([0], 4.0, 1),
            ([0, 1], 0.25, 1),
        ):
            with (
                self.subTest(usable=usable, quota=quota),
                mock.patch.multiple(
                    machine, usable_cores=lambda usable=usable: usable, cpu_quota=lambda q=quota: q
                ),
            ):
                self.assertEqual(machine.core_count(), count)

    def test_workers_of_one_host_share_its_cores(self):
        cluster = Cluster(("a:1", "a:2", "b:1"), 1)
        self.assertEqual(cluster.workers_on_this_host, 2)
        self.assertEqual(Cluster(cluster.workers, 2).workers_on_this_host, 1)


class AvailableMemory(unittest.TestCase):
    def setUp(self):
        self.root = temporary_folder(self.addCleanup)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def group(self, path, limit, usage, inactive, version=2):
        """Write a control group with sizes in MiB."""
        names = ("memory.max", "memory.current", "inactive_file")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        self.write(f"{path}/{names[0]}", limit if isinstance(limit, str) else f"{limit * 2**20}\n")
        self.write(f"{path}/{names[1]}", f"{usage * 2**20}\n")
        self.write(f"{path}/memory.stat", f"anon 5\n{names[2]} {inactive * 2**20}\n")

    def test_without_limits_it_is_the_available_memory_of_the_machine(self):
        self.write("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n")
        self.assertEqual(available_memory_mib(self.root), 3)

    def test_a_system_without_these_files_has_no_figure(self):
        self.assertIsNone(available_memory_mib(self.root))

    def test_the_nearest_limit_of_any_group_above_the_process_counts(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "0::/jobs/7/step\n")
        self.group("sys/fs/cgroup/jobs/7/step", "max\n", 500, 0)
        self.group("sys/fs/cgroup/jobs/7", 1000, 600, 100)
        self.group("sys/fs/cgroup/jobs", 8000, 700, 0)
        self.assertEqual(available_memory_mib(self.root), 1000 - 600 + 100)

    def test_limits_of_control_groups_version_1_count(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "5:cpu,memory:/pod/a\n4:cpuset:/\n0::/\n")
        self.group("sys/fs/cgroup/memory/pod/a", 2000, 1200, 50, version=1)
        self.group("sys/fs/cgroup/memory", f"{UNLIMITED}\n", 8000, 0, version=1)
        self.assertEqual(available_memory_mib(self.root), 2000 - 1200 + 50)

    def test_a_container_that_sees_its_group_as_the_base_has_that_limit(self):
        self.write("proc/meminfo", f"MemAvailable: {9000 * 1024} kB\n")
        self.write("proc/self/cgroup", "3:memory:/docker/of-the-host\n")
        self.group("sys/fs/cgroup/memory", 512, 12, 0, version=1)
        self.assertEqual(available_memory_mib(self.root), 500)


if __name__ == "__main__":
    unittest.main()
