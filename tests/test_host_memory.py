"""Available memory of the host, from files as the kernel writes them."""

import unittest

from myxtts.placement.host_memory import available_memory_mib
from tests.fixtures import temporary_folder

UNLIMITED = "9223372036854771712"


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
