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
from socket import gethostname
from types import SimpleNamespace
from unittest import mock

from myxtts.config.schema import Config, PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.placement import devices
from myxtts.placement.gpu_memory import DriverUnavailable, GpuMemory
from myxtts.placement.settings import plan_routes
from myxtts.run import setup
from tests.run import ROOT, gpu_modules
from tests.test_gpu_memory import with_driver
from tests.two_devices import GPUS, HALF_MIB, two_devices

LIMITS = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
ISOLATED = {"data_gpu": 1, "model_gpu": 1, "enable_memory_isolation": True}
DUAL = {"data_gpu": 0, "model_gpu": 1}


class FakeConfig:
    """`tf.config` on a machine with one CPU and some GPUs, as in tensorflow/python/eager/context.py
    (2.21).

    Attributes:
        visible: the visible GPUs.
        growth: memory growth of each GPU for which it was set.
        logical: memory limits of the logical devices of each device for which they were set.
    """

    def __init__(self, gpus: int):
        self.gpus = [f"GPU {i}" for i in range(gpus)]
        self.visible, self.growth, self.logical = list(self.gpus), {}, {}
        self.policy, self.soft, self.started = None, None, False
        self.experimental = SimpleNamespace(
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
        visible = [gpu for gpu in self.gpus if gpu in self.visible]
        parts = [(gpu, limit) for gpu in visible for limit in self.logical.get(gpu, [None])]
        return {f"/GPU:{i}": part for i, part in enumerate(parts)}


def configure(fake: FakeConfig, settings: dict, machine: dict | None = None, **options):
    """Configure the devices of these settings on a fake; return the placement."""
    placement = plan_routes(PlacementConfig(**settings), len(fake.gpus))
    patched = {"tf": SimpleNamespace(config=fake), "log": mock.MagicMock()} | (machine or {})
    with mock.patch.multiple(devices, **patched):
        devices.configure(placement, **options)
    return placement


def configured(gpus: int = 4, **settings) -> tuple[FakeConfig, list[tuple[str, str]]]:
    """Return the fake with the devices of these settings, and the routes."""
    fake = FakeConfig(gpus)
    placement = configure(fake, settings)
    return fake, [(route.data, route.model) for route in placement.routes]


class ThreadsTest(unittest.TestCase):
    def test_sizes_depend_on_settings_cores_operations_and_processes(self):
        given = {"intra_op_threads": 5, "inter_op_threads": 7}
        for cores, gpus, settings, options, expected in (
            (2, 0, {}, {}, [2, 2]),
            (2, 0, {}, {"small_operations": True}, [1, 2]),
            (4, 0, {}, {"small_operations": True}, [4, 4]),
            (4, 1, {}, {"small_operations": True}, [None, None]),
            (2, 0, given, {}, [5, 7]),
            (2, 1, given, {}, [5, 7]),
            # Processes share the cores unless they are pinned.
            (8, 0, {}, {"processes": 2}, [4, 4]),
            (8, 0, {}, {"processes": 2, "pinned": True}, [8, 8]),
            (2, 0, {}, {"processes": 8}, [1, 1]),
        ):
            with self.subTest(cores=cores, gpus=gpus, settings=settings, **options):
                pinned = options.pop("pinned", False)
                machine = {"core_count": lambda n=cores: n, "is_pinned": lambda p=pinned: p}
                fake = FakeConfig(gpus)
                configure(fake, settings, machine, **options)
                names = [f"set_{pool}_parallelism_threads" for pool in ("intra_op", "inter_op")]
                setters = [getattr(fake.threading, name) for name in names]
                self.assertEqual([setter.call_args.args[0] for setter in setters], expected)

    def test_auto_leaves_a_started_tensorflow_as_it_is_and_a_given_size_is_an_error(self):
        fake = FakeConfig(0)
        fake.threading.set_intra_op_parallelism_threads.side_effect = RuntimeError("Intra op")
        configure(fake, {})
        with self.assertRaisesRegex(PlacementError, "Intra op.*Restart the process"):
            configure(fake, {"intra_op_threads": 3})


class RealGpuSetUpTest(unittest.TestCase):
    def test_each_role_is_on_its_gpu_with_its_limit_in_any_order(self):
        for data, model in itertools.product(range(4), repeat=2):
            for limits in ({}, LIMITS):
                with self.subTest(data=data, model=model, **limits):
                    fake, (route,) = configured(data_gpu=data, model_gpu=model, **limits)
                    roles = [fake.logical_gpus()[name] for name in route]
                    sizes = limits.values() or (None, None)
                    gpus = (f"GPU {data}", f"GPU {model}")
                    self.assertEqual(roles, list(zip(gpus, sizes, strict=True)))
                    # Memory grows on exactly the visible GPUs without limits.
                    grows = {} if limits else dict.fromkeys(fake.visible, True)
                    self.assertEqual(fake.growth, grows)

    def test_only_the_gpus_of_the_routes_are_visible_and_in_order(self):
        for settings, visible in (
            ({}, "0"),
            ({"data_gpu": 2, "model_gpu": 2}, "2"),
            ({"data_gpu": 3, "model_gpu": 2}, "23"),
            ({"data_gpu": 3, "model_gpus": (2, 0)}, "023"),
            ({"model_gpus": (3, 1)}, "13"),
            (ISOLATED, "1"),
        ):
            with self.subTest(**settings):
                fake, _ = configured(**settings)
                self.assertEqual(fake.visible, [f"GPU {index}" for index in visible])

    def test_gpus_are_split_by_limits_with_the_data_device_first(self):
        fake, routes = configured(data_gpu=1, model_gpu=1, **LIMITS)
        self.assertEqual((fake.logical, routes), ({"GPU 1": [1000, 2000]}, [("/GPU:0", "/GPU:1")]))
        fake, routes = configured(data_gpu=3, model_gpus=(3, 1), **LIMITS)
        self.assertEqual(fake.logical, {"GPU 1": [2000], "GPU 3": [1000, 2000]})
        self.assertEqual(routes, [("/GPU:1", "/GPU:2"), ("/GPU:1", "/GPU:0")])

    def test_limits_that_do_not_fit_are_rejected_before_any_device_is_configured(self):
        fake, small = FakeConfig(1), {0: GpuMemory("NVIDIA L4", 2_500, 2_400, 8)}
        machine = {"read_memory": lambda gpus: small, "has_started": lambda: False}
        with self.assertRaisesRegex(PlacementError, "2,400 MiB are free"):
            configure(fake, {"data_gpu": 0, "model_gpu": 0} | LIMITS, machine)
        self.assertEqual((fake.visible, fake.logical, fake.policy), (["GPU 0"], {}, None))

    def test_mistakes_are_neither_moved_nor_copied_with_a_warning(self):
        for settings in ({}, DUAL, {"simulate_gpus": 2}):
            fake, _ = configured(**settings)
            self.assertEqual((fake.policy, fake.soft), ("silent", False))

    def test_without_a_gpu_the_cpu_is_one_device_and_simulation_splits_it(self):
        fake, routes = configured(0)
        self.assertEqual((fake.visible, fake.logical, fake.growth), ([], {"CPU": [None]}, {}))
        self.assertEqual(routes, [("/CPU:0", "/CPU:0")])
        fake, routes = configured(simulate_gpus=3, data_gpu=0, model_gpu=2)
        self.assertEqual((fake.visible, fake.logical, fake.growth), ([], {"CPU": [None] * 3}, {}))
        self.assertEqual(routes, [("/CPU:0", "/CPU:2")])

    def test_other_devices_are_rejected_after_the_start_and_the_same_are_accepted(self):
        simulated, same = {"simulate_gpus": 2}, {"data_gpu": 1, "model_gpu": 1}
        for settings, *others in (
            (DUAL, {"data_gpu": 0, "model_gpu": 2}, ISOLATED, simulated),
            (ISOLATED, same, ISOLATED | {"data_gpu_memory": 1000}, simulated),
        ):
            fake, _ = configured(**settings)
            fake.started = True
            configure(fake, settings)
            for other in others:
                with (
                    self.subTest(**other),
                    self.assertRaisesRegex(PlacementError, "TensorFlow has already started"),
                ):
                    configure(fake, other)


class LogTest(unittest.TestCase):
    """What the log says about the devices."""

    def log_of(self, gpus: int, **settings) -> list[str]:
        config = Config(placement=PlacementConfig(**settings))
        with (
            mock.patch.object(devices, "tf", SimpleNamespace(config=FakeConfig(gpus))),
            self.assertLogs("myxtts") as logged,
        ):
            setup.configure_devices(config)
        return [record.getMessage() for record in logged.records]

    def test_simulation_beside_real_gpus_is_a_warning(self):
        # Parts of a GPU are one GPU.
        split = {"data_gpu": 0, "model_gpu": 0, "enable_memory_isolation": True}
        for gpus, settings in ((2, DUAL), (1, {}), (1, split)):
            first, *others = self.log_of(gpus, simulate_gpus=4, **settings)
            self.assertEqual(
                first,
                "WARNING        --simulate-gpus 4 trains on the CPU, but this process sees real"
                f" GPUs ({gpus}). To train there: --simulate-gpus 0",
            )
            self.assertNotIn("WARNING", "".join(others))

    def test_simulation_without_real_gpus_and_real_gpus_are_no_warning(self):
        for gpus, settings in ((0, {"simulate_gpus": 2}), (0, {}), (2, DUAL)):
            self.assertNotIn("WARNING", "".join(self.log_of(gpus, **settings)))

    def test_one_gpu_of_several_is_mentioned_unless_it_was_chosen(self):
        line = "GPUs           1 of 4 is used; --placement auto measures more"
        self.assertIn(line, self.log_of(4))
        self.assertIn(line, self.log_of(0, simulate_gpus=4))
        chosen = ({"model_gpus": (2,)}, {"data_gpu": 0, "model_gpu": 0}, {"simulate_gpus": 1})
        for settings in chosen:
            self.assertNotIn(line, self.log_of(4, **settings))
        self.assertNotIn("is used", "".join(self.log_of(1)))

    def test_gpus_are_mapped_to_devices(self):
        not_applied = "(not applied: the device is simulated)"
        during = "during training"
        for gpus, settings, *expected in (
            (
                4,
                {"data_gpu": 3, "model_gpu": 1, "data_gpu_memory": 4096, "model_gpu_memory": 8192},
                "placement      dual",
                "  device       GPU 1 is /GPU:0, at most 8192 MiB",
                "  device       GPU 3 is /GPU:1, at most 4096 MiB",
                "  route        batches made on /GPU:1, trained on /GPU:0",
                f"  observer     validation, samples and evaluation on /GPU:1, {during}",
            ),
            (
                0,
                {"simulate_gpus": 2, "data_gpu": 1, "model_gpu": 0, "data_gpu_memory": 4096},
                "placement      dual (GPUs simulated on the CPU)",
                f"  device       simulated GPU 0 is /CPU:0, at most 16384 MiB {not_applied}",
                f"  device       simulated GPU 1 is /CPU:1, at most 4096 MiB {not_applied}",
                "  route        batches made on /CPU:1, trained on /CPU:0",
                f"  observer     validation, samples and evaluation on /CPU:1, {during}",
            ),
            (
                0,
                {},
                "placement      single",
                "  device       CPU is /CPU:0, memory grows as needed",
                "  route        batches made on /CPU:0, trained on /CPU:0",
            ),
        ):
            placement = plan_routes(PlacementConfig(**settings), gpus)
            self.assertEqual(devices.describe(placement), expected)


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
        on_gpus = ["test_devices", "test_dual_gpu_device_placement"]
        on_gpus.append("test_intelligent_gpu_pipeline")
        for environ, expected in (
            ({"CUDA_VISIBLE_DEVICES": "0", "TEST_GPUS": "1"}, on_gpus),
            ({"CUDA_VISIBLE_DEVICES": "0", "TEST_GPUS": "0"}, []),
            ({"CUDA_VISIBLE_DEVICES": "", "TEST_GPUS": "1"}, []),
        ):
            with mock.patch.dict(os.environ, environ):
                self.assertEqual(gpu_modules(modules), expected)


CHECK_PLACEMENT = """
import contextlib, pathlib, sys
from myxtts.config.schema import Config
from myxtts.trial.preflight.devices import check_placement
from myxtts.checkpoints.trained_run import RunFolder
from myxtts.run.setup import Start
start = Start(Config.model_validate_json(sys.argv[1]), RunFolder(pathlib.Path("none")))
with contextlib.ExitStack() as resources:
    for check in check_placement(start, resources):
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


class NamesTest(unittest.TestCase):
    def names(self, visible: str, *gpus: int) -> list[str]:
        return with_driver(visible, devices.gpu_names, *gpus)

    def test_names_are_those_of_the_driver_however_cuda_numbers_the_gpus(self):
        self.assertEqual(self.names("2,1", 0), self.names("0,2", 1))
        self.assertNotEqual(self.names("0,1", 0), self.names("0,1", 1))

    def test_without_the_driver_cuda_may_number_the_gpus_of_each_process_and_others_do_not(self):
        for has_cuda, names in ((True, []), (False, [f"GPU 3 of {gethostname()}"])):
            with (
                mock.patch.object(devices, "ask_driver", side_effect=DriverUnavailable),
                mock.patch.object(devices, "has_cuda_gpus", return_value=has_cuda),
            ):
                self.assertEqual(devices.gpu_names([3]), names)
