"""The preflight's checks of driver, TensorFlow, cuDNN and XLA, for made-up GPUs."""

import unittest
from importlib import metadata
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import tensorflow as tf

from myxtts.base import tf_internals
from myxtts.config.schema import Config, PlacementConfig
from myxtts.placement import devices
from myxtts.placement.settings import plan_routes
from myxtts.trial.preflight import prerequisites
from myxtts.trial.preflight.prerequisites import check_driver
from tests.run import ROOT


class GpuSoftware(unittest.TestCase):
    """Whether TensorFlow and its libraries suit made-up GPUs."""

    # tf.sysconfig.get_build_info() of TensorFlow 2.21.
    BUILT = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")

    def test_without_gpus_nothing_is_checked(self):
        for settings in (PlacementConfig(), PlacementConfig(simulate_gpus=2)):
            (check,) = prerequisites.check_gpu_software(plan_routes(settings, 0))
            actual = (check.status, check.found)
            self.assertEqual(actual, ("passed", "nothing was checked: the run has no real GPU"))

    def test_only_the_gpus_of_the_settings_are_checked(self):
        details = ({"compute_capability": (8, 0)}, {"compute_capability": (12, 0)})
        with (
            mock.patch.object(tf.config, "list_physical_devices", return_value=[0, 1]),
            mock.patch.object(
                tf.config.experimental, "get_device_details", lambda gpu: details[gpu]
            ),
            mock.patch.object(metadata, "version", return_value="9.24.0.43"),
        ):
            for gpus, failing in (
                ({}, []),
                ({"data_gpu": 0, "model_gpu": 0}, []),
                ({"data_gpu": 0, "model_gpu": 1}, ["kernels for compute capability 12.0"]),
            ):
                placement = plan_routes(PlacementConfig(**gpus), 2)
                checks = prerequisites.check_gpu_software(placement)
                names = [check.name for check in checks if check.status != "passed"]
                self.assertEqual(names, failing)

    def test_kernels_are_native_compiled_by_the_driver_or_missing(self):
        for capability, status, code in (
            ((7, 5), "passed", "native"),
            ((8, 6), "passed", "native"),
            ((9, 0), "passed", "native"),
            ((10, 0), "warning", "PTX"),
            ((12, 0), "warning", "PTX"),
            ((5, 2), "failed", "none"),
        ):
            check = prerequisites.check_kernels(capability, self.BUILT)
            actual = (check.status, check.found.partition(";")[0])
            self.assertEqual(actual, (status, code), capability)

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
        placement = plan_routes(PlacementConfig(), 1)
        for version, status in (
            ("9.3.0.75", "warning"),
            ("9.5.1.17", "warning"),
            ("9.6.0.74", "passed"),
            ("9.10.2.21", "passed"),
            (metadata.PackageNotFoundError(), "warning"),
        ):
            with (
                mock.patch.object(prerequisites, "used_capabilities", return_value=[(8, 0)]),
                mock.patch.object(metadata, "version", side_effect=[version]),
            ):
                *_, check = prerequisites.check_gpu_software(placement)
            self.assertEqual((check.name, check.status), ("cuDNN", status), version)
        self.assertIn('pip install "nvidia-cudnn-cu12>=9.24,<10"', check.to_do)
        requirements = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn(f"nvidia-cudnn-cu12{prerequisites.CUDNN_REQUIREMENT}", requirements)

    def test_gpus_of_a_plug_in_need_neither_a_driver_nor_nccl(self):
        on_gpu_0 = Config(placement=PlacementConfig(data_gpu=0, model_gpu=0))
        for details, is_cuda in (
            ([], True),
            ([{"compute_capability": (8, 0)}], True),
            ([{"device_name": "VIRTUAL_GPU"}], False),
        ):
            with (
                mock.patch.object(tf.config, "list_physical_devices", return_value=details),
                mock.patch.object(tf.config.experimental, "get_device_details", lambda gpu: gpu),
            ):
                self.assertIs(tf_internals.has_cuda_gpus(), is_cuda)
                driver, *_ = prerequisites.check_prerequisites(on_gpu_0)
            self.assertEqual(driver.expected.startswith("none is needed"), not is_cuda)

    def test_an_old_driver_fails_where_a_gpu_is_needed(self):
        for version, status in (
            ("525.60.13", "passed"),
            ("470.256.02", "failed"),
            (None, "failed"),
        ):
            with mock.patch.object(prerequisites, "driver_version", return_value=version):
                actual = (check_driver(1).status, check_driver(0).status)
                self.assertEqual(actual, (status, "passed"))
