"""Settings become devices and routes, or an error that suggests a solution."""

import itertools
import unittest

from myxtts.config.schema import PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import LogicalDevice, Route
from myxtts.placement.settings import plan_routes

LIMITS = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
ISOLATED = {"enable_memory_isolation": True}


def plan(gpus=0, **settings):
    return plan_routes(PlacementConfig(**settings), gpus)


def gpus_of(data=None, model=None):
    """Return the settings that name GPUs: one index, or several as a tuple."""
    named = {"data": data, "model": model}
    plural = {
        role: f"{role}_gpu{'s' if isinstance(gpu, tuple) else ''}" for role, gpu in named.items()
    }
    return {plural[role]: gpu for role, gpu in named.items() if gpu is not None}


def routes(gpus=0, **settings):
    """Return the indices of the devices of each route: those of data, then that of the model."""
    devices = ((*route.data_devices, route.model) for route in plan(gpus, **settings).routes)
    return [tuple(int(name.rpartition(":")[2]) for name in names) for names in devices]


class RouteTest(unittest.TestCase):
    def test_default_is_the_first_gpu_or_the_cpu(self):
        for gpus, device in ((0, LogicalDevice("/CPU:0", None)), (4, LogicalDevice("/GPU:0", 0))):
            placement = plan(gpus)
            self.assertEqual(placement.routes, (Route(device.name, device.name),))
            self.assertEqual((placement.devices, placement.on_gpu), ((device,), gpus > 0))

    def test_name_and_routes(self):
        for data, model, name, expected in (
            (None, None, "single", [(0, 0)]),
            (1, 1, "single", [(0, 0)]),
            (None, (2,), "single", [(0, 0)]),
            (0, 1, "dual", [(0, 1)]),
            (0, (1,), "dual", [(0, 1)]),
            ((0,), 1, "dual", [(0, 1)]),
            (0, (1, 2, 3), "dual, 3 replicas", [(0, 1), (0, 2), (0, 3)]),
            (0, (0, 1), "dual, 2 replicas", [(0, 0), (0, 1)]),
            # In the order that was given.
            (0, (3, 1), "dual, 2 replicas", [(0, 2), (0, 1)]),
            (None, (3, 1), "replicated", [(1, 1), (0, 0)]),
            ((0, 1), 2, "dual, 2 producers", [(0, 1, 2)]),
            ((3, 0), 1, "dual, 2 producers", [(2, 0, 1)]),
            ((0, 1), 1, "dual, 2 producers", [(0, 1, 1)]),
            ((0, 1), (2, 3), "dual, 2 producers, 2 replicas", [(0, 1, 2), (0, 1, 3)]),
        ):
            with self.subTest(data=data, model=model):
                settings = gpus_of(data, model)
                self.assertEqual(plan(4, **settings).name, name)
                self.assertEqual(routes(4, **settings), expected)

    def test_shares_belong_to_the_data_devices(self):
        (route,) = plan(3, data_gpus=(0, 1), model_gpu=2, data_shares=(3.0, 1.0)).routes
        self.assertEqual(route.data_shares, (3.0, 1.0))
        with self.assertRaisesRegex(PlacementError, "--data-shares has 2 numbers for 1 data GPUs"):
            plan(3, data_gpu=0, model_gpu=2, data_shares=(3.0, 1.0))

    def test_logical_gpus_are_numbered_by_physical_index(self):
        for data, model in itertools.product(range(5), repeat=2):
            placement = plan(5, data_gpu=data, model_gpu=model)
            physical_of = {device.name: device.physical for device in placement.devices}
            (route,) = placement.routes
            self.assertEqual((physical_of[route.data], physical_of[route.model]), (data, model))
            # TensorFlow names visible GPUs by ascending physical index, regardless of their given
            # order.
            visible = sorted({data, model})
            self.assertEqual(physical_of, {f"/GPU:{i}": gpu for i, gpu in enumerate(visible)})

    def test_all_simulated_gpus_exist_and_keep_their_indices(self):
        placement = plan(0, simulate_gpus=4, data_gpu=3, model_gpu=1)
        self.assertEqual(placement.routes, (Route("/CPU:3", "/CPU:1"),))
        self.assertEqual(
            [device.name for device in placement.devices], [f"/CPU:{i}" for i in range(4)]
        )
        self.assertEqual((placement.simulated, placement.on_gpu), (True, False))

    def test_simulation_ignores_real_gpus(self):
        self.assertEqual(plan(0, simulate_gpus=2), plan(8, simulate_gpus=2))
        self.assertEqual(plan(8, simulate_gpus=2).routes, (Route("/CPU:0", "/CPU:0"),))


class WorkerTest(unittest.TestCase):
    """The GPUs of the workers of one host."""

    def test_workers_divide_the_gpus_that_they_see(self):
        for gpus, workers, settings, expected in (
            (2, 2, {}, [[0], [1]]),
            (4, 2, {}, [[0], [2]]),
            (5, 2, {}, [[0], [2]]),
            (8, 3, {}, [[0], [2], [4]]),
            (2, 1, {}, [[0]]),
            (4, 2, gpus_of(None, (0, 1)), [[0, 1], [2, 3]]),
            (4, 2, gpus_of(1, 0), [[0, 1], [2, 3]]),
            (4, 2, gpus_of(0, (0, 1)) | ISOLATED, [[0, 1], [2, 3]]),
            (4, 2, {"observer": 1}, [[0, 1], [2, 3]]),
            # These are known to be different GPUs, or the rendezvous rejects them: one that each
            # sees alone, as by CUDA_VISIBLE_DEVICES or --gpus-per-task; two or a further one that
            # each names; fewer than workers.
            (1, 2, {}, [[0], [0]]),
            (2, 2, gpus_of(1, 0), [[0, 1], [0, 1]]),
            (2, 2, gpus_of(None, (1,)), [[1], [1]]),
            (2, 3, {}, [[0], [1], [0]]),
            (0, 2, {}, [[], []]),
            (2, 2, {"simulate_gpus": 2, **gpus_of(0, 1)}, [[], []]),
        ):
            with self.subTest(gpus=gpus, workers=workers, settings=settings):
                settings = PlacementConfig(**settings)
                actual = [
                    plan_routes(settings, gpus, rank, workers).gpus for rank in range(workers)
                ]
                self.assertEqual(actual, expected)

    def test_routes_of_a_worker_are_those_of_a_process_with_these_gpus_alone(self):
        settings = PlacementConfig(**gpus_of(1, 0), **LIMITS)
        own, alone = plan_routes(settings, 4, 1, 2), plan_routes(settings, 2)
        self.assertEqual((own.routes, own.name), (alone.routes, alone.name))
        limits = [(device.physical, device.memory_mib) for device in own.devices]
        self.assertEqual(limits, [(2, 2000), (3, 1000)])


class MemoryLimitTest(unittest.TestCase):
    def test_limits_follow_roles_not_the_order_of_gpus(self):
        for settings, expected in (
            # Memory grows without a limit.
            (gpus_of(2, 3), [(2, None), (3, None)]),
            (gpus_of(1, 1), [(1, None)]),
            (gpus_of(0, 1) | LIMITS, [(0, 1000), (1, 2000)]),
            (gpus_of(1, 0) | LIMITS, [(0, 2000), (1, 1000)]),
            (gpus_of((0, 2), 1) | LIMITS, [(0, 1000), (1, 2000), (2, 1000)]),
            # A limit or isolation sets the other to its default.
            (gpus_of(0, 1) | ISOLATED, [(0, 8192), (1, 16384)]),
            (gpus_of(0, 1) | {"data_gpu_memory": 1000}, [(0, 1000), (1, 16384)]),
            (gpus_of(0, 1) | {"model_gpu_memory": 2000}, [(0, 8192), (1, 2000)]),
            # Limits split a GPU of both roles.
            (gpus_of(1, 1) | LIMITS, [(1, 1000), (1, 2000)]),
            (gpus_of(0, (0, 2)) | ISOLATED, [(0, 8192), (0, 16384), (2, 16384)]),
            # Without data GPUs there is nothing to split.
            (ISOLATED, [(0, 16384)]),
            (gpus_of(None, (1, 0)) | {"model_gpu_memory": 2000}, [(0, 2000), (1, 2000)]),
        ):
            with self.subTest(**settings):
                devices = plan(4, **settings).devices
                self.assertEqual([(d.physical, d.memory_mib) for d in devices], expected)
                self.assertEqual(
                    [d.name for d in devices], [f"/GPU:{i}" for i in range(len(devices))]
                )

    def test_parts_of_a_gpu_are_devices_of_their_own(self):
        split = plan(4, **gpus_of(1, 1), **LIMITS)
        self.assertEqual((split.name, split.routes), ("dual", (Route("/GPU:0", "/GPU:1"),)))
        self.assertEqual(routes(4, **gpus_of(0, (0, 2)), **ISOLATED), [(0, 1), (0, 2)])

    def test_simulated_gpu_is_split_like_a_real_one(self):
        devices = plan(0, simulate_gpus=1, **gpus_of(0, 0), **ISOLATED).devices
        self.assertEqual(
            [(d.name, d.memory_mib) for d in devices], [("/CPU:0", 8192), ("/CPU:1", 16384)]
        )


class ErrorTest(unittest.TestCase):
    def assert_rejected(self, message, gpus=0, **settings):
        with self.subTest(message), self.assertRaisesRegex(PlacementError, message):
            plan(gpus, **settings)

    def test_missing_gpu_is_rejected(self):
        none = "TensorFlow sees no GPU"
        one, two = "TensorFlow sees 1 GPU, number 0", "TensorFlow sees 2 GPUs, numbers 0 and 1"
        for gpus, data, model, missing, existing in (
            (0, 0, 0, "data GPU 0", none),
            (0, None, (0, 1), "model GPU 1", none),
            (1, 0, 1, "model GPU 1", one),
            (1, 4, 0, "data GPU 4", one),
            (2, 0, (1, 5), "model GPU 5", two),
            (2, (0, 2), 1, "data GPU 2", two),
            (4, 0, (1, 5), "model GPU 5", "TensorFlow sees 4 GPUs, numbers 0 to 3"),
        ):
            message = f"{missing} was requested, but {existing}. To train on one device"
            self.assert_rejected(message, gpus, **gpus_of(data, model))

    def test_missing_simulated_gpu_is_rejected(self):
        message = r"model GPU 2 was requested, but --simulate-gpus makes 2 GPUs, numbers 0 and 1"
        self.assert_rejected(message, 8, simulate_gpus=2, data_gpu=0, model_gpu=2)

    def test_contradictions_are_rejected(self):
        for data, model, message in (
            (0, None, "only one of --data-gpu and --model-gpu was given. Give both"),
            (None, 1, "only one of --data-gpu and --model-gpu was given. Give both"),
            ((0, 1), None, "only one of --data-gpu and --model-gpu was given. Give both"),
            ((0, 0), 1, "names a GPU twice. Each producer and each replica needs its own GPU."),
            (None, (1, 2, 1), "names a GPU twice. Each producer and each replica needs its own"),
        ):
            self.assert_rejected(message, 4, **gpus_of(data, model))
        both = "one GPU and a list of GPUs were both given"
        self.assert_rejected(both, 4, data_gpu=0, model_gpu=1, model_gpus=(1, 2))
        self.assert_rejected(both, 4, data_gpu=0, data_gpus=(0, 1), model_gpu=2)
        self.assert_rejected("--placement auto was given, but only", placement="auto")

    def test_memory_limits_without_their_gpu_are_rejected(self):
        for gpus in (0, 2):
            message = "--data-gpu-memory was given without --data-gpu. Name the GPU"
            self.assert_rejected(message, gpus, data_gpu_memory=1000)
        for settings in (ISOLATED, {"model_gpu_memory": 1000}):
            message = "a memory limit was set, but TensorFlow sees no GPU. Make one visible"
            self.assert_rejected(message, **settings)
