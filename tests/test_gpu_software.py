"""The preflight's checks of driver, TensorFlow, cuDNN, XLA and memory limits, for made-up GPUs."""

import unittest
from importlib import metadata
from unittest import mock

from tests.two_devices import GPUS

# isort: split

import tensorflow as tf

from myxtts.config.schema import PlacementConfig
from myxtts.placement import devices
from myxtts.placement.gpu_memory import DriverUnavailable, GpuMemory
from myxtts.preflight import prerequisites
from myxtts.preflight.prerequisites import check_driver
from tests.run import ROOT


class GpuSoftware(unittest.TestCase):
    """Whether TensorFlow and its libraries suit made-up GPUs."""

    # tf.sysconfig.get_build_info() of TensorFlow 2.21.
    BUILT = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")

    def test_without_gpus_nothing_is_checked(self):
        for settings in (
            PlacementConfig(),
            PlacementConfig(simulate_gpus=2),
            PlacementConfig(data_gpu=0, model_gpu=1),
        ):
            with mock.patch.object(tf.config, "list_physical_devices", return_value=[]):
                (check,) = prerequisites.check_gpu_software(settings)
            actual = (check.status, check.found)
            self.assertEqual(actual, ("passed", "nothing was checked: the run has no real GPU"))

    def test_only_the_gpus_of_the_settings_are_checked(self):
        details = ({"compute_capability": (8, 0)}, {"compute_capability": (12, 0)})
        with (
            mock.patch.object(tf.config, "list_physical_devices", return_value=[0, 1]),
            mock.patch.object(
                tf.config.experimental, "get_device_details", lambda gpu: details[gpu]
            ),
            mock.patch.object(prerequisites, "driver_version", return_value="570.86.10"),
            mock.patch.object(prerequisites, "cudnn_version", return_value=(9, 24, 0)),
        ):
            for settings, failing in (
                (PlacementConfig(), []),
                (PlacementConfig(data_gpu=0, model_gpu=0), []),
                (
                    PlacementConfig(data_gpu=0, model_gpu=1),
                    ["kernels for compute capability 12.0", "XLA"],
                ),
            ):
                checks = list(prerequisites.check_gpu_software(settings))
                names = [check.name for check in checks if check.status != "passed"]
                self.assertEqual(names, failing)

    def test_kernels_are_native_compiled_by_the_driver_or_missing(self):
        for capability, status, code in (
            ((8, 6), "passed", "native"),
            ((9, 0), "passed", "native"),
            ((10, 0), "warning", "PTX"),
            ((12, 0), "warning", "PTX"),
            ((5, 2), "failed", "none"),
        ):
            check = prerequisites.check_kernels(capability, self.BUILT, "570.86.10")
            actual = (check.status, check.found.partition(";")[0])
            self.assertEqual(actual, (status, code), capability)
            self.assertNotIn("too old", check.to_do)
        old = prerequisites.check_kernels((12, 0), self.BUILT, "550.54.14")
        self.assertIn("Driver 550.54.14 is too old for this: install 555.42.02 or later", old.to_do)

    def test_xla_is_not_tried_where_it_ends_the_process(self):
        with (
            mock.patch.object(tf.config, "get_visible_devices", return_value=[0, 1]),
            mock.patch.object(
                tf.config.experimental,
                "get_device_details",
                lambda gpu: {"compute_capability": (8 + 4 * gpu, 0)},
            ),
            mock.patch.object(tf, "function", side_effect=AssertionError("it was tried")),
        ):
            for device in ("/GPU:1", "/job:worker/replica:0/task:0/device:GPU:0"):
                self.assertRegex(
                    devices.xla_failure.__wrapped__(device), "no code for compute capability 12.0$"
                )
            with self.assertRaisesRegex(AssertionError, "it was tried"):
                devices.xla_failure.__wrapped__("/CPU:0")

    def test_versions_of_cudnn_that_fail_with_xla_are_a_warning(self):
        for version, status in (
            ((9, 3, 0), "warning"),
            ((9, 5, 1), "warning"),
            ((9, 6, 0), "passed"),
            ((9, 10, 2), "passed"),
            (None, "warning"),
        ):
            self.assertEqual(prerequisites.check_cudnn(version).status, status, version)
        message = prerequisites.check_cudnn((9, 5, 1)).to_do
        self.assertIn('pip install "nvidia-cudnn-cu12>=9.24,<10"', message)
        requirements = (ROOT / "requirements-gpu.txt").read_text(encoding="utf-8")
        self.assertIn(f"nvidia-cudnn-cu12{prerequisites.CUDNN_REQUIREMENT}", requirements)

    def test_the_version_of_cudnn_is_that_of_the_loaded_library_or_else_of_the_package(self):
        path = "/venv/nvidia/cudnn/lib/libcudnn.so.9"
        for mapped, expected in (([path], (9, 10, 2)), ([], (9, 24, 0))):
            with (
                mock.patch.object(
                    prerequisites, "mapped_files", return_value=iter(["/lib/libc.so.6", *mapped])
                ),
                mock.patch.object(
                    prerequisites,
                    "library_version",
                    lambda file, name, by_argument: {path: 91002}[file],
                ),
                mock.patch.object(metadata, "version", return_value="9.24.0.43"),
            ):
                self.assertEqual(prerequisites.cudnn_version(), expected)

    @unittest.skipIf(GPUS, "there are GPUs here")
    def test_without_cudnn_there_is_no_version(self):
        with mock.patch.object(metadata, "version", side_effect=metadata.PackageNotFoundError):
            self.assertIsNone(prerequisites.cudnn_version())

    def test_an_old_driver_fails_where_a_gpu_is_needed(self):
        for version, status in (
            ("525.60.13", "passed"),
            ("470.256.02", "failed"),
            (None, "failed"),
        ):
            with mock.patch.object(prerequisites, "driver_version", return_value=version):
                actual = (check_driver(1).status, check_driver(0).status)
                self.assertEqual(actual, (status, "passed"))

    def test_memory_limits_are_checked_where_there_are_limits_and_gpus(self):
        split = PlacementConfig(
            data_gpu=0, model_gpu=0, data_gpu_memory=1000, model_gpu_memory=2000
        )
        l4 = GpuMemory("NVIDIA L4", 23_034, 22_500, 8)
        full = GpuMemory("NVIDIA L4", 23_034, 3_000, 8, (7,))
        for settings, gpus, memory, expected in (
            (PlacementConfig(), 1, l4, []),
            (split, 0, l4, []),
            (split, 1, l4, [("passed", "NVIDIA L4 has 23,034 MiB, of which 22,500 MiB are free")]),
            (split, 1, DriverUnavailable("no driver"), [("warning", "unknown: no driver")]),
            (split, 1, full, [("failed", mock.ANY)]),
        ):
            read = (
                {"side_effect": memory}
                if isinstance(memory, Exception)
                else {"return_value": {0: memory}}
            )
            with (
                mock.patch.object(tf.config, "list_physical_devices", return_value=["GPU"] * gpus),
                mock.patch.object(prerequisites, "read_memory", **read),
            ):
                checks = list(prerequisites.check_memory_limits(settings))
            self.assertEqual([(check.status, check.found) for check in checks], expected)


if __name__ == "__main__":
    unittest.main()
