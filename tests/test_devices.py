"""The set-up of real GPUs, against a fake of `tf.config` with four physical GPUs.

A process configures its devices once, and most machines that run the tests have no GPU. So
`FakeConfig` records the calls, and numbers logical devices as TensorFlow does. `HardwareTest` uses
real GPUs and is skipped without one.
"""

from tests import real_gpus  # noqa: F401 - before tests.two_devices

# isort: split

import itertools
import json
import os
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from myxtts.config.schema import Config, PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement import devices
from myxtts.placement.gpu_memory import GpuMemory
from myxtts.placement.routes import plan_routes
from myxtts.training import setup
from tests.run import ROOT, gpu_modules
from tests.two_devices import GPUS, HALF_MIB, two_devices

A100, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA L4"


class FakeConfig:
    """`tf.config` on a machine with one CPU and some GPUs, as in tensorflow/python/eager/context.py
    (2.21).

    Attributes:
        visible: the visible GPUs.
        growth: memory growth of each GPU for which it was set.
        logical: memory limits of the logical devices of each device for which they were set.
    """

    def __init__(self, names: tuple[str, ...] = (A100,) * 4):
        self.gpus = [f"GPU {i}" for i in range(len(names))]
        self.names = dict(zip(self.gpus, names, strict=True))
        self.visible, self.growth, self.logical = list(self.gpus), {}, {}
        self.policy, self.soft, self.started = None, None, False
        self.experimental = SimpleNamespace(
            get_device_details=lambda gpu: {"device_name": self.names[gpu]},
            set_memory_growth=self._set_memory_growth,
            set_device_policy=lambda policy: setattr(self, "policy", policy),
        )
        self.threading = mock.MagicMock()

    def list_physical_devices(self, kind: str) -> list[str]:
        return {"GPU": self.gpus, "CPU": ["CPU"]}[kind]

    def set_visible_devices(self, gpus: list[str], kind: str) -> None:
        assert kind == "GPU" and set(gpus) <= set(self.gpus), (gpus, kind)
        self._change("visible", gpus)

    def _set_memory_growth(self, gpu: str, enable: bool) -> None:
        if gpu in self.logical:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        self._change("growth", self.growth | {gpu: enable})

    def LogicalDeviceConfiguration(self, memory_limit: int | None = None) -> int | None:
        return memory_limit

    def set_logical_device_configuration(self, device: str, limits: list[int | None]) -> None:
        if any((limit is None) != (device == "CPU") for limit in limits):
            raise ValueError("a CPU has no limit, and a GPU needs one")
        self._change("logical", self.logical | {device: limits})

    def set_soft_device_placement(self, enabled: bool) -> None:
        self.soft = enabled

    def _change(self, name: str, value: object) -> None:
        if self.started and getattr(self, name) != value:
            raise RuntimeError("Devices cannot be modified after being initialized")
        setattr(self, name, value)

    def logical_gpus(self) -> dict[str, tuple[str, int | None]]:
        """Return (physical GPU, limit) of each logical GPU, by GPU and order of limits."""
        if len({self.growth.get(gpu, False) for gpu in self.visible}) > 1:
            raise ValueError("Memory growth cannot differ between GPU devices")
        parts = [
            (gpu, limit)
            for gpu in self.gpus
            if gpu in self.visible
            for limit in self.logical.get(gpu, [None])
        ]
        return {f"/GPU:{i}": part for i, part in enumerate(parts)}


def configured(
    names: tuple[str, ...] = (A100,) * 4, **settings
) -> tuple[FakeConfig, list[tuple[str, str]]]:
    """Configure the devices of these settings; return the fake and the routes."""
    fake = FakeConfig(names)
    placement = plan_routes(PlacementConfig(**settings), len(names))
    with (
        mock.patch.object(devices, "tf", SimpleNamespace(config=fake)),
        mock.patch.object(devices, "log"),
    ):
        devices.configure(placement)
    return fake, [(route.data, route.model) for route in placement.routes]


class ThreadsTest(unittest.TestCase):
    def pools(
        self, cores: int, pinned: bool = False, names: tuple[str, ...] = (), **options
    ) -> list[object]:
        """Configure devices on a machine with these cores; return the sizes of both pools."""
        fake = FakeConfig(names)
        settings = {
            name: options.pop(name)
            for name in list(options)
            if name in PlacementConfig.model_fields
        }
        machine = {
            "core_count": lambda: cores,
            "is_pinned": lambda: pinned,
            "log": mock.MagicMock(),
        }
        with mock.patch.multiple(devices, tf=SimpleNamespace(config=fake), **machine):
            devices.configure(plan_routes(PlacementConfig(**settings), len(names)), **options)
        calls = (
            fake.threading.set_intra_op_parallelism_threads,
            fake.threading.set_inter_op_parallelism_threads,
        )
        return [call.call_args.args[0] for call in calls]

    def test_auto_depends_on_cores_and_operations(self):
        self.assertEqual(self.pools(2), [2, 2])
        self.assertEqual(self.pools(2, small_operations=True), [1, 2])
        self.assertEqual(self.pools(4, small_operations=True), [4, 4])
        self.assertEqual(self.pools(4, names=(A100,), small_operations=True), [None, None])

    def test_given_sizes_are_set_with_and_without_gpus(self):
        for names in ((), (A100,)):
            actual = self.pools(2, names=names, intra_op_threads=5, inter_op_threads=7)
            self.assertEqual(actual, [5, 7])

    def test_processes_share_the_cores_unless_they_are_pinned(self):
        self.assertEqual(self.pools(8, processes=2), [4, 4])
        self.assertEqual(self.pools(8, processes=2, pinned=True), [8, 8])
        self.assertEqual(self.pools(2, processes=8), [1, 1])

    def test_auto_leaves_a_started_tensorflow_as_it_is_and_a_given_size_is_an_error(self):
        started = RuntimeError("Intra op parallelism cannot be modified after initialization.")
        for size in ("auto", 3):
            fake = FakeConfig(())
            fake.threading.set_intra_op_parallelism_threads.side_effect = started
            placement = plan_routes(PlacementConfig(intra_op_threads=size), 0)
            with mock.patch.multiple(
                devices, tf=SimpleNamespace(config=fake), log=mock.MagicMock()
            ):
                if size == "auto":
                    devices.configure(placement)
                else:
                    with self.assertRaisesRegex(
                        PlacementError, "Intra op parallelism .*restart the process"
                    ):
                        devices.configure(placement)


class RealGpuSetUpTest(unittest.TestCase):
    def assert_roles(self, fake, route, data, model):
        """Check (physical GPU, limit) of both ends of a route."""
        logical = fake.logical_gpus()
        actual = [logical[name] for name in route]
        self.assertEqual(actual, [(f"GPU {data[0]}", data[1]), (f"GPU {model[0]}", model[1])])

    def test_each_role_is_on_its_gpu_in_any_order(self):
        for data, model in itertools.product(range(4), repeat=2):
            with self.subTest(data=data, model=model):
                fake, (route,) = configured(data_gpu=data, model_gpu=model)
                self.assert_roles(fake, route, (data, None), (model, None))

    def test_each_role_has_its_limit_in_any_order(self):
        for data, model in itertools.product(range(4), repeat=2):
            with self.subTest(data=data, model=model):
                limits = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
                fake, (route,) = configured(data_gpu=data, model_gpu=model, **limits)
                self.assert_roles(fake, route, (data, 1000), (model, 2000))
                self.assertEqual(fake.growth, {})

    def test_only_the_gpus_of_the_routes_are_visible_and_in_order(self):
        for settings, visible in (
            ({}, ["GPU 0"]),
            ({"data_gpu": 2, "model_gpu": 2}, ["GPU 2"]),
            ({"data_gpu": 3, "model_gpu": 2}, ["GPU 2", "GPU 3"]),
            ({"data_gpu": 3, "model_gpus": (2, 0)}, ["GPU 0", "GPU 2", "GPU 3"]),
            ({"model_gpus": (3, 1)}, ["GPU 1", "GPU 3"]),
            ({"data_gpu": 1, "model_gpu": 1, "enable_memory_isolation": True}, ["GPU 1"]),
        ):
            with self.subTest(**settings):
                self.assertEqual(configured(**settings)[0].visible, visible)

    def test_gpus_2_and_3_become_the_first_two_of_tensorflow(self):
        fake, routes = configured(data_gpu=3, model_gpu=2)
        actual = fake.logical_gpus()
        self.assertEqual(actual, {"/GPU:0": ("GPU 2", None), "/GPU:1": ("GPU 3", None)})
        self.assertEqual(routes, [("/GPU:1", "/GPU:0")])

    def test_memory_grows_on_exactly_the_visible_gpus_without_limits(self):
        for settings in (
            {},
            {"data_gpu": 0, "model_gpu": 3},
            {"data_gpu": 2, "model_gpus": (0, 1)},
        ):
            with self.subTest(**settings):
                fake, _ = configured(**settings)
                self.assertEqual(fake.growth, dict.fromkeys(fake.visible, True))
                self.assertEqual(fake.logical, {})

    def test_one_gpu_is_split_by_limits_with_the_data_device_first(self):
        fake, routes = configured(
            data_gpu=1, model_gpu=1, data_gpu_memory=1000, model_gpu_memory=2000
        )
        self.assertEqual(fake.logical, {"GPU 1": [1000, 2000]})
        self.assertEqual(routes, [("/GPU:0", "/GPU:1")])

    def test_replicas_have_the_limits_of_models_beside_a_data_device(self):
        limits = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
        fake, routes = configured(data_gpu=3, model_gpus=(3, 1), **limits)
        self.assertEqual(fake.logical, {"GPU 1": [2000], "GPU 3": [1000, 2000]})
        self.assertEqual(routes, [("/GPU:1", "/GPU:2"), ("/GPU:1", "/GPU:0")])

    def test_limits_that_do_not_fit_are_rejected_before_any_device_is_configured(self):
        fake, small = FakeConfig((A100,)), {0: GpuMemory(A100, 2_500, 2_400, 8)}
        split = PlacementConfig(data_gpu=0, model_gpu=0, data_gpu_memory=500, model_gpu_memory=500)
        patched = {
            "tf": SimpleNamespace(config=fake),
            "read_memory": lambda gpus: small,
            "has_started": lambda: False,
        }
        with (
            mock.patch.multiple(devices, **patched),
            self.assertRaisesRegex(PlacementError, "2,400 MiB are free"),
        ):
            devices.configure(plan_routes(split, 1))
        self.assertEqual((fake.visible, fake.logical, fake.policy), (["GPU 0"], {}, None))

    def test_mistakes_are_neither_moved_nor_copied_with_a_warning(self):
        for settings in ({}, {"data_gpu": 0, "model_gpu": 1}, {"simulate_gpus": 2}):
            fake, _ = configured(**settings)
            self.assertEqual((fake.policy, fake.soft), ("silent", False))

    def test_without_a_gpu_the_cpu_is_one_device(self):
        fake, routes = configured(())
        self.assertEqual((fake.visible, fake.logical, fake.growth), ([], {"CPU": [None]}, {}))
        self.assertEqual(routes, [("/CPU:0", "/CPU:0")])

    def test_simulation_hides_all_gpus_and_splits_the_cpu(self):
        fake, routes = configured(simulate_gpus=3, data_gpu=0, model_gpu=2)
        self.assertEqual((fake.visible, fake.logical, fake.growth), ([], {"CPU": [None] * 3}, {}))
        self.assertEqual(routes, [("/CPU:0", "/CPU:2")])

    def test_other_devices_are_rejected_after_the_start_and_the_same_are_accepted(self):
        limits = {"data_gpu": 1, "model_gpu": 1, "enable_memory_isolation": True}
        for settings, others in (
            (
                {"data_gpu": 0, "model_gpu": 1},
                ({"data_gpu": 0, "model_gpu": 2}, limits, {"simulate_gpus": 2}),
            ),
            (
                limits,
                (
                    {"data_gpu": 1, "model_gpu": 1},
                    limits | {"data_gpu_memory": 1000},
                    {"simulate_gpus": 2},
                ),
            ),
        ):
            fake, _ = configured(**settings)
            fake.started = True
            with (
                mock.patch.object(devices, "tf", SimpleNamespace(config=fake)),
                mock.patch.object(devices, "log"),
            ):
                devices.configure(plan_routes(PlacementConfig(**settings), 4))
                for other in others:
                    with (
                        self.subTest(**other),
                        self.assertRaisesRegex(PlacementError, "TensorFlow has already started"),
                    ):
                        devices.configure(plan_routes(PlacementConfig(**other), 4))


class LogTest(unittest.TestCase):
    """What the log says about the devices."""

    def log_of(self, names: tuple[str, ...], **settings) -> list[str]:
        config = Config(placement=PlacementConfig(**settings))
        with (
            mock.patch.object(devices, "tf", SimpleNamespace(config=FakeConfig(names))),
            self.assertLogs("myxtts") as logged,
        ):
            setup.configure_devices(config)
        return [record.getMessage() for record in logged.records]

    def assert_warned(self, names, settings, expected):
        first, *others = self.log_of(names, **settings)
        self.assertEqual(first, f"WARNING        {expected}")
        self.assertNotIn("WARNING", "".join(others))

    def test_simulation_beside_real_gpus_is_a_warning_with_the_flags_that_use_them(self):
        dual = {"data_gpu": 0, "model_gpu": 1}
        for names, settings, found, flags in (
            ((A100, A100), dual, f"2 GPUs (2 x {A100})", "--simulate-gpus 0"),
            ((A100, L4, A100), {}, f"3 GPUs (2 x {A100}, 1 x {L4})", "--simulate-gpus 0"),
            ((L4,), {}, f"1 GPU (1 x {L4})", "--simulate-gpus 0"),
            ((L4,), dual, f"1 GPU (1 x {L4})", "--simulate-gpus 0 --data-gpu 0 --model-gpu 0"),
            (
                (L4,) * 2,
                {"data_gpu": 3, "model_gpu": 3},
                f"2 GPUs (2 x {L4})",
                "--simulate-gpus 0 --data-gpu 0 --model-gpu 1",
            ),
            (
                (L4,) * 2,
                {"data_gpu": 0, "model_gpus": (1, 2)},
                f"2 GPUs (2 x {L4})",
                "--simulate-gpus 0, with GPUs from 0 to 1 in --data-gpu and --model-gpus",
            ),
        ):
            with self.subTest(names=names, **settings):
                self.assert_warned(
                    names,
                    {"simulate_gpus": 4} | settings,
                    f"--simulate-gpus 4 trains on the CPU, but TensorFlow sees {found}. To train"
                    f" there: {flags}",
                )

    def test_the_warning_counts_gpus_not_their_parts(self):
        split = {"simulate_gpus": 2, "data_gpu": 0, "model_gpu": 0, "enable_memory_isolation": True}
        self.assertIn("--simulate-gpus 2 trains on the CPU", self.log_of((L4,), **split)[0])

    def test_simulation_without_real_gpus_and_real_gpus_are_no_warning(self):
        for names, settings in (
            ((), {"simulate_gpus": 2}),
            ((), {}),
            ((L4, L4), {"data_gpu": 0, "model_gpu": 1}),
        ):
            self.assertNotIn("WARNING", "".join(self.log_of(names, **settings)))

    def test_one_gpu_of_several_is_mentioned_unless_it_was_chosen(self):
        line = "GPUs           1 of 4 is used; --placement auto measures which are worth using"
        self.assertIn(line, self.log_of((A100,) * 4))
        self.assertIn(line, self.log_of((), simulate_gpus=4))
        for settings in (
            {"model_gpus": (2,)},
            {"data_gpu": 0, "model_gpu": 0},
            {"simulate_gpus": 1},
        ):
            self.assertNotIn(line, self.log_of((A100,) * 4, **settings))
        self.assertNotIn("is used", "".join(self.log_of((A100,))))

    def test_gpus_are_mapped_to_devices(self):
        requested = PlacementConfig(
            data_gpu=3, model_gpu=1, data_gpu_memory=4096, model_gpu_memory=8192
        )
        self.assertEqual(
            devices.describe(plan_routes(requested, 4)),
            [
                "placement      dual",
                "  device       GPU 1 is /GPU:0, at most 8192 MiB",
                "  device       GPU 3 is /GPU:1, at most 4096 MiB",
                "  route        batches made on /GPU:1, trained on /GPU:0",
                "  observer     validation, samples and evaluation on /GPU:1, during training",
            ],
        )
        simulated = PlacementConfig(simulate_gpus=2, data_gpu=1, model_gpu=0, data_gpu_memory=4096)
        self.assertEqual(
            devices.describe(plan_routes(simulated, 0)),
            [
                "placement      dual (GPUs simulated on the CPU)",
                "  device       simulated GPU 0 is /CPU:0, at most 16384 MiB (not applied: the"
                " device is simulated)",
                "  device       simulated GPU 1 is /CPU:1, at most 4096 MiB (not applied: the"
                " device is simulated)",
                "  route        batches made on /CPU:1, trained on /CPU:0",
                "  observer     validation, samples and evaluation on /CPU:1, during training",
            ],
        )
        self.assertEqual(
            devices.describe(plan_routes(PlacementConfig(), 0)),
            [
                "placement      single",
                "  device       CPU is /CPU:0, memory grows as needed",
                "  route        batches made on /CPU:0, trained on /CPU:0",
            ],
        )


class DevicesOfTestsTest(unittest.TestCase):
    def test_tests_have_two_gpus_or_one_that_is_split_or_simulated_ones(self):
        for gpus, expected in (
            (0, [(f"/CPU:{i}", i, None) for i in range(4)]),
            (1, [("/GPU:0", 0, HALF_MIB), ("/GPU:1", 0, HALF_MIB)]),
            (2, [("/GPU:0", 0, None), ("/GPU:1", 1, None)]),
            (8, [("/GPU:0", 0, None), ("/GPU:1", 1, None)]),
        ):
            placement = plan_routes(two_devices(gpus), gpus)
            actual = [(d.name, d.physical, d.memory_mib) for d in placement.devices]
            self.assertEqual(actual, expected)
            (route,) = placement.routes
            actual = [route.data, route.model]
            self.assertEqual(actual, [device.name for device in placement.devices[:2]])

    def test_modules_on_gpus_have_a_process_of_their_own_where_there_are_gpus(self):
        modules = sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))
        on_gpus = [
            "test_devices",
            "test_dual_gpu_device_placement",
            "test_intelligent_gpu_pipeline",
        ]
        for environ, expected in (
            ({"CUDA_VISIBLE_DEVICES": "0", "TEST_GPUS": "1"}, on_gpus),
            ({"CUDA_VISIBLE_DEVICES": "0", "TEST_GPUS": "0"}, []),
            ({"CUDA_VISIBLE_DEVICES": "", "TEST_GPUS": "1"}, []),
        ):
            with mock.patch.dict(os.environ, environ):
                self.assertEqual(gpu_modules(modules), expected)


CHECK_PLACEMENT = """
import json, sys
from myxtts.config.schema import Config
from myxtts.preflight.devices import check_placement
for check in check_placement(Config.model_validate_json(sys.argv[1])):
    print(*check)
    if check.status != "passed":
        sys.exit(1)
"""


@unittest.skipUnless(
    GPUS, "TensorFlow sees no GPU here, or TEST_GPUS=0 hides it: nothing real to configure"
)
class HardwareTest(unittest.TestCase):
    """TensorFlow has the devices of a placement and computes on them, in a process for each."""

    def assert_configured(self, **settings):
        config = json.dumps({"placement": settings})
        command = [sys.executable, "-c", CHECK_PLACEMENT, config]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_single_gpu_grows(self):
        self.assert_configured()

    def test_a_gpu_is_split_by_limits(self):
        self.assert_configured(data_gpu=0, model_gpu=0, data_gpu_memory=1024, model_gpu_memory=2048)

    def test_gpus_are_hidden_by_simulated_ones(self):
        self.assert_configured(simulate_gpus=2, data_gpu=0, model_gpu=1)

    @unittest.skipUnless(GPUS > 1, f"TensorFlow sees {GPUS} GPU here: two are needed for two roles")
    def test_two_gpus_in_both_orders_with_and_without_limits(self):
        for data, model in ((0, 1), (1, 0)):
            for limits in ({}, {"data_gpu_memory": 1024, "model_gpu_memory": 2048}):
                with self.subTest(data=data, model=model, **limits):
                    self.assert_configured(data_gpu=data, model_gpu=model, **limits)


if __name__ == "__main__":
    unittest.main()
