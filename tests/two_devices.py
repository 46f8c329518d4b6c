"""Split the CPU into four logical devices, without soft placement. Import this module before TensorFlow starts.

All tests of a process share the devices: `/CPU:0` makes batches, `/CPU:1` holds models, and replicas use all four.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from myxtts.config.schema import PlacementConfig
from myxtts.placement import devices
from myxtts.placement.routes import plan_routes

SIMULATED = 4
TWO = plan_routes(PlacementConfig(simulate_gpus=SIMULATED, data_gpu=0, model_gpu=1), gpu_count=0)
FOUR = plan_routes(PlacementConfig(simulate_gpus=SIMULATED, model_gpus=tuple(range(SIMULATED))), gpu_count=0)
DATA, MODEL = TWO.routes[0].data, TWO.routes[0].model
devices.configure(TWO)
