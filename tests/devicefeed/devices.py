"""Two parts of the CPU, one of which makes batches for the other, without soft placement. Import
this module before TensorFlow starts.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

DATA, MODEL = "/CPU:0", "/CPU:1"
# As tests/two_devices.py has them, with which these tests may share a process.
PARTS = 4

tf.config.set_soft_device_placement(False)
(_cpu,) = tf.config.list_physical_devices("CPU")
if not tf.config.get_logical_device_configuration(_cpu):
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(PARTS)]
    tf.config.set_logical_device_configuration(_cpu, parts)
