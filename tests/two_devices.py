"""The devices of all tests of a process, without soft placement. Import this module before
TensorFlow starts.

`DATA` makes batches and `MODEL` holds models. They are two of four logical devices of the CPU;
replicas use all four. GPUs are hidden, also from the programs that tests start. Only modules that
import `tests.real_gpus` use GPUs: two, or one that memory limits split in two.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if os.environ.get("TEST_GPUS") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

from myxtts.config.schema import PlacementConfig
from myxtts.placement import devices
from myxtts.placement.settings import plan_routes

SIMULATED = 4
HALF_MIB = 2048  # of a GPU that is split; CUDA and its libraries need more than both


def two_devices(gpu_count: int) -> PlacementConfig:
    """Return settings whose route goes between two devices on a machine with so many GPUs."""
    if gpu_count == 0:
        return PlacementConfig(simulate_gpus=SIMULATED, data_gpu=0, model_gpu=1)
    if gpu_count == 1:
        return PlacementConfig(
            data_gpu=0, model_gpu=0, data_gpu_memory=HALF_MIB, model_gpu_memory=HALF_MIB
        )
    return PlacementConfig(data_gpu=0, model_gpu=1)


GPUS = devices.gpu_count()
SETTINGS = two_devices(GPUS)
TWO = plan_routes(SETTINGS, GPUS)
FOUR = plan_routes(
    PlacementConfig(simulate_gpus=SIMULATED, model_gpus=tuple(range(SIMULATED))), gpu_count=0
)
DATA, MODEL = TWO.routes[0].data, TWO.routes[0].model
devices.configure(TWO)
