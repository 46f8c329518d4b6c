"""Sizes of TensorFlow's thread pools, and the cores that decide them. No TensorFlow."""

import math
import unittest
from pathlib import Path
from unittest import mock

from myxtts import cores
from myxtts.commands import train
from myxtts.config.schema import PlacementConfig
from myxtts.distributed.cluster import Cluster
from myxtts.errors import ConfigError
from myxtts.placement.routes import plan_routes
from myxtts.placement.thread_pools import automatic_pools
from tests.fixtures import temporary_folder

CPU = plan_routes(PlacementConfig(simulate_gpus=2, data_gpu=0, model_gpu=1), 0)
GPU = plan_routes(PlacementConfig(), 1)


class AutomaticPoolsTest(unittest.TestCase):
    def test_small_operations_use_one_thread_each_on_up_to_two_cores(self):
        sizes = [
            automatic_pools(CPU, count, small_operations=True).intra_op for count in (1, 2, 3, 64)
        ]
        self.assertEqual(sizes, [1, 1, 3, 64])

    def test_other_operations_use_all_cores(self):
        self.assertEqual(
            [automatic_pools(CPU, count, False) for count in (1, 2, 8)], [(1, 1), (2, 2), (8, 8)]
        )

    def test_with_gpus_the_default_is_left_to_tensorflow(self):
        self.assertEqual(automatic_pools(GPU, 2, small_operations=True), (None, None))

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
        """Return the quota in a container with this line in /proc/self/cgroup; limits by cgroup,
        with _ for /.
        """
        root = self.folder()
        groups = root / "sys/fs/cgroup"
        (groups / "pods" / "a").mkdir(parents=True)
        for name, text in limits.items():
            (groups / name.strip("_").replace("_", "/") / "cpu.max").write_text(text)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"1:cpuset:/x\n{cgroup}\n" if cgroup else "")
        return cores.cpu_quota(root)

    def test_quota_is_the_smallest_of_all_cgroups_around_the_process(self):
        self.assertEqual(self.quota("0::/", _="150000 100000\n"), 1.5)
        self.assertEqual(
            self.quota("0::/pods/a", pods_a="max 100000\n", pods="200000 100000\n"), 2.0
        )
        self.assertEqual(
            self.quota("0::/pods/a", pods_a="50000 100000\n", pods="200000 100000\n"), 0.5
        )

    def test_quotas_of_control_groups_version_1_count(self):
        for quota, expected in (("150000", 1.5), ("-1", math.inf)):
            root = self.folder()
            (root / "proc/self").mkdir(parents=True)
            (root / "proc/self/cgroup").write_text("4:cpuacct,cpu:/docker/of-the-host\n0::/\n")
            (root / "sys/fs/cgroup/cpu").mkdir(parents=True)
            (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
            (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
            self.assertEqual(cores.cpu_quota(root), expected)

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
                    cores, usable_cores=lambda usable=usable: usable, cpu_quota=lambda q=quota: q
                ),
            ):
                self.assertEqual(cores.core_count(), count)

    def test_workers_of_one_host_share_its_cores(self):
        cluster = Cluster(("a:1", "a:2", "b:1"), 1)
        self.assertEqual(cluster.workers_on_this_host, 2)
        self.assertEqual(Cluster(cluster.workers, 2).workers_on_this_host, 1)


if __name__ == "__main__":
    unittest.main()
