"""Memory limits and what GPUs have, with a made-up driver. No TensorFlow."""

import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from myxtts.config.schema import PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.placement import gpu_memory
from myxtts.placement.gpu_memory import DriverUnavailable, GpuMemory, limits_of, read_memory
from myxtts.placement.settings import plan_routes
from myxtts.trial import gpu_usage
from myxtts.trial.gpu_usage import GpuUsage

RTX_4090 = GpuMemory("NVIDIA GeForce RTX 4090", 24_564, 24_100, 8)
TIMEOUT_S = 60.0
SPLIT = {"data_gpu": 0, "model_gpu": 0}


class FakeNvml:
    """NVML with some GPUs, each as (UUID, name, total MiB, free MiB, capability, PIDs)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus):
        self.gpus = {gpu[0]: gpu for gpu in gpus}
        # Readings of utilisation to come, of all GPUs in turn, and what is called at the last one.
        self.percents, self.at_end = [], lambda: None

    def nvmlInit(self):
        if not self.gpus:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index):
        return list(self.gpus)[index]

    def nvmlDeviceGetHandleByUUID(self, name):
        if name not in self.gpus:
            raise self.NVMLError("Not Found")
        return name

    def nvmlDeviceGetIndex(self, handle):
        return list(self.gpus).index(handle)

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetName(self, handle):
        return self.gpus[handle][1]

    def nvmlDeviceGetMemoryInfo(self, handle):
        _, _, total_mib, free_mib, *_ = self.gpus[handle]
        used_mib = total_mib - free_mib
        return SimpleNamespace(total=total_mib << 20, free=free_mib << 20, used=used_mib << 20)

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle.startswith("MIG"):
            raise self.NVMLError("Not Supported")
        percent = self.percents.pop(0)
        if not self.percents:
            self.at_end()
        return SimpleNamespace(gpu=percent)

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == "GPU-a":
            raise self.NVMLError("Not Supported")
        return 350_000

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [self.gpus[handle][4], 0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if self.gpus[handle][5] is None:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid) for pid in self.gpus[handle][5]]


L4 = ("GPU-a", "NVIDIA L4", 23_034, 22_500, 8, [7, 8])
H100 = ("GPU-b", b"NVIDIA H100", 81_559, 81_000, 9, [])
MIG = ("MIG-c", "NVIDIA A100 MIG 1g.5gb", 4_864, 4_850, 8, None)


def read(visible: str, *gpus: int) -> dict[int, GpuMemory]:
    return with_driver(visible, read_memory, *gpus)


def with_driver(visible: str, function, *gpus: int, order: str = "PCI_BUS_ID"):
    """Return what a function finds about GPUs with some environment of CUDA."""
    environ = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    with (
        mock.patch.dict(sys.modules, pynvml=FakeNvml(L4, H100, MIG)),
        mock.patch.dict("os.environ", environ),
    ):
        return function(gpus)


def indices_in_driver(gpus: tuple[int, ...]) -> list[int]:
    return gpu_memory.ask_driver(gpus, lambda nvml, handle: nvml.nvmlDeviceGetIndex(handle))


class ReadMemoryTest(unittest.TestCase):
    def test_gpus_are_those_of_cuda_in_any_order_and_with_hidden_ones(self):
        cases = (("0,1", [0, 1]), ("1, 0", [1, 0]), ("1", [1]), ("MIG-c,1", [2, 1]))
        for visible, expected in cases:
            actual = with_driver(visible, indices_in_driver, *range(len(expected)))
            self.assertEqual(actual, expected)
        self.assertEqual(read("GPU-b", 0)[0].name, "NVIDIA H100")

    def test_memory_and_other_processes_are_read(self):
        expected = GpuMemory("NVIDIA L4", 23_034, 22_500, 8, (7, 8))
        self.assertEqual(read("0", 0), {0: expected})
        with mock.patch("os.getpid", return_value=7):
            self.assertEqual(read("0", 0)[0].processes, (8,))

    def test_without_a_driver_or_its_package_there_is_a_reason(self):
        reasons = ((None, "pip install nvidia-ml-py"), (FakeNvml(), "Driver Not Loaded"))
        for module, reason in reasons:
            failure = self.assertRaisesRegex(DriverUnavailable, reason)
            with mock.patch.dict(sys.modules, pynvml=module), failure:
                read_memory([0])
        with self.assertRaisesRegex(DriverUnavailable, "not GPU 1"):
            read("0", 0, 1)
        with self.assertRaisesRegex(DriverUnavailable, "CUDA_DEVICE_ORDER is FASTEST_FIRST"):
            with_driver("0", read_memory, 0, order="FASTEST_FIRST")
        with self.assertRaisesRegex(DriverUnavailable, "Not Found"):
            read("GPU-unknown", 0)


class UsageTest(unittest.TestCase):
    def usage(self, visible: str, gpus: tuple[int, ...], *passes: list[int]) -> GpuUsage:
        """Return what is known after passes with such readings, of all GPUs in turn."""
        driver = FakeNvml(L4, H100, MIG)
        with (
            mock.patch.dict(sys.modules, pynvml=driver),
            mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=visible),
            mock.patch.dict("os.environ", CUDA_DEVICE_ORDER="PCI_BUS_ID"),
            mock.patch.object(gpu_usage, "PERIOD_S", 0.0),
        ):
            usage = GpuUsage(gpus)
            driver.at_end = lambda: usage._ended.set()
            for driver.percents in passes:
                with usage:
                    usage._thread.join(TIMEOUT_S)
        return usage

    def test_usage_is_read_during_each_pass_and_its_least_busy_second_is_known(self):
        # GPU 0 is the driver's second one. The last readings of the first pass fill no second.
        first = [90, 10] * 5 + [50, 20, 70, 20, 60, 20, 60, 20, 60, 20] + [0, 0]
        usage = self.usage("1,0", (0, 1), first, [75, 15])
        b, a = usage.figures().values()
        self.assertEqual(usage.reason, "")
        expected = {"utilisation": (0.9 + 0.6 + 0.75) / 3, "least_utilisation": 0.6}
        expected |= {"memory_mib": 559.0, "watts": 350.0}
        self.assert_close(b, expected)
        expected = {"utilisation": 0.15, "least_utilisation": 0.1, "memory_mib": 534.0}
        self.assert_close(a, expected | {"watts": 0.0})

    def assert_close(self, actual: dict[str, float], expected: dict[str, float]):
        self.assertEqual(set(actual), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(actual[name], value, msg=name)

    def test_without_usage_there_is_a_reason(self):
        for visible, gpus, reason in (
            ("0,MIG-c", (0, 1), "Not Supported"),  # parts of a GPU have none
            ("0", (0, 1), "the driver reports: CUDA has 1 GPUs, but not GPU 1"),
        ):
            usage = self.usage(visible, gpus, [40])
            self.assertEqual((usage.figures(), usage.reason), ({}, reason))
        for gpus, reason in (((), "the model is not on a GPU"), ((0,), "pip install nvidia-ml-py")):
            usage = GpuUsage(gpus)
            with mock.patch.dict(sys.modules, pynvml=None), usage:
                pass
            self.assertEqual(usage.figures(), {})
            self.assertIn(reason, usage.reason)


class LimitsTest(unittest.TestCase):
    def check(self, memory: GpuMemory, gpus: int = 1, **settings) -> None:
        limits = limits_of(plan_routes(PlacementConfig(**settings), gpus))
        gpu_memory.check_limits(limits, dict.fromkeys(limits, memory))

    def message(self, memory: GpuMemory, **settings) -> str:
        with self.assertRaises(PlacementError) as caught:
            self.check(memory, **settings)
        return str(caught.exception)

    def test_limits_belong_to_physical_gpus(self):
        split = PlacementConfig(**SPLIT, data_gpu_memory=1000, model_gpu_memory=2000)
        apart = PlacementConfig(
            data_gpu=1, model_gpu=0, data_gpu_memory=1000, model_gpu_memory=2000
        )
        self.assertEqual(limits_of(plan_routes(split, 1)), {0: [1000, 2000]})
        self.assertEqual(limits_of(plan_routes(apart, 2)), {0: [2000], 1: [1000]})
        for none in (
            PlacementConfig(),
            PlacementConfig(simulate_gpus=2, **SPLIT, data_gpu_memory=1000),
        ):
            self.assertEqual(limits_of(plan_routes(none, 1)), {})

    def test_both_parts_and_the_reserve_must_fit_into_what_is_free(self):
        largest = RTX_4090.free_mib - 1536 - 64
        self.check(RTX_4090, **SPLIT, data_gpu_memory=4096, model_gpu_memory=largest - 4096)
        self.assertRegex(
            self.message(RTX_4090, **SPLIT, data_gpu_memory=4096, model_gpu_memory=largest - 4095),
            r"^memory limits .*on GPU 0 which take 4,096 \+ 18,405 \+ 1,600 = 24,101 MiB .*"
            r"but NVIDIA GeForce RTX 4090 has 24,564 MiB, of which 24,100 MiB are free\. Lower --",
        )

    def test_a_single_limit_and_the_default_limits_must_fit(self):
        message = self.message(RTX_4090, model_gpus=(0,), model_gpu_memory=24_000)
        self.assertIn("which take 24,000 + 1,536 = 25,536 MiB", message)
        message = self.message(RTX_4090, **SPLIT, enable_memory_isolation=True)
        self.assertIn("8,192 + 16,384 + 1,600", message)
        self.check(RTX_4090, gpus=2, data_gpu=0, model_gpu=1, enable_memory_isolation=True)

    def test_processes_that_hold_memory_are_named(self):
        held = GpuMemory("NVIDIA L4", 23_034, 3_000, 8, (7, 8))
        message = self.message(held, **SPLIT, data_gpu_memory=1000, model_gpu_memory=2000)
        self.assertIn("3,000 MiB are free; processes that hold memory: 7, 8. Lower", message)

    def test_the_reserve_is_that_of_tensorflow(self):
        newest = ((9, 80_000, 1800), (12, 32_000, 1800))
        older = ((8, 2_000, 225), (6, 8_000, 500), (7, 16_000, 1050), (8, 24_000, 1536))
        for capability, total_mib, expected in (*older, *newest):
            actual = GpuMemory("", total_mib, total_mib, capability).reserve_mib(1)
            self.assertEqual(actual, expected)
