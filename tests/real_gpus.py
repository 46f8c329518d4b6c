"""Import this before `tests.two_devices` to test on real GPUs, unless TEST_GPUS=0."""

import os

os.environ.setdefault("TEST_GPUS", "1")
