"""Import this module before `tests.two_devices` to test on real GPUs where there are any;
TEST_GPUS=0 prevents it.
"""

import os

os.environ.setdefault("TEST_GPUS", "1")
