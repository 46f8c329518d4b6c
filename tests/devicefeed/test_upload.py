"""Uploads: order, passes that share an iterator, errors, and the memory that they keep."""

import ctypes
import gc
import unittest
from collections import deque
from unittest import mock

from .devices import DATA, MODEL

# isort: split

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.upload import Uploader

from .heap import bytes_in_use, mallinfo2

SPEC = {"x": tf.TensorSpec([None], tf.float32), "row": tf.TensorSpec([1], tf.int32)}


def double(item):
    tf.debugging.assert_less(item["x"], 7.0)
    return {"doubled": 2.0 * item["x"]}


def make(**settings) -> Uploader:
    depths = {"workers": 2, "host_depth": 2, "device_depth": 2}
    return Uploader(SPEC, double, **depths | settings)


def items(count):
    """Return tagged arrays of ascending lengths, whose values are their numbers."""
    arrays = [
        {"x": np.full(number + 1, number, np.float32), "row": np.array([number], np.int32)}
        for number in range(count)
    ]
    return [(f"tag {number}", each) for number, each in enumerate(arrays)]


def tags_of(pairs):
    return [tag for tag, _ in pairs]


class UploadTest(unittest.TestCase):
    def test_batches_are_on_the_device_in_order_but_for_arrays_that_stay_on_the_host(self):
        found = list(make(on_host=["row"]).read(items(5), DATA))
        self.assertEqual(tags_of(found), tags_of(items(5)))
        for number, (_, batch) in enumerate(found):
            require_device(DATA, batch.items())
            np.testing.assert_array_equal(batch["doubled"], np.full(number + 1, 2.0 * number))
            self.assertEqual(batch["row"].tolist(), [number])
            self.assertIsInstance(batch["row"], np.ndarray)

    def test_an_error_is_explained_at_its_tag(self):
        uploader = make(explain=lambda tag, error: ValueError(f"{tag} cannot be read"))
        read = []
        with self.assertRaisesRegex(ValueError, "^tag 7 cannot be read$"):
            read += (tag for tag, _ in uploader.read(items(9), DATA))
        self.assertEqual(read, tags_of(items(7)))

    def test_passes_share_an_iterator_but_for_one_that_was_abandoned(self):
        uploader, given = make(), items(5)
        with mock.patch.object(uploader, "_open", wraps=uploader._open) as opened:
            for again in (given, given[::-1], [], given):
                self.assertEqual(tags_of(uploader.read(again, DATA)), tags_of(again))
            self.assertEqual(opened.call_count, 1)  # TensorFlow keeps 0.5 MB of each dataset
            abandoned = uploader.read(given[::-1], DATA)
            self.assertEqual(next(abandoned)[0], given[-1][0])
            self.assertEqual(tags_of(uploader.read(given, DATA)), tags_of(given))
            self.assertEqual(opened.call_count, 2)
            self.assertEqual(tags_of(abandoned), tags_of(given[-2::-1]))

    def test_no_thread_tunes_the_upload(self):
        """Closing an iterator can wait for such a thread for a minute: so did the ends of runs."""
        _, iterator = make()._open(DATA)
        variant = tf.data.experimental.to_variant(iterator._dataset)
        serialized = tf.raw_ops.GetOptions(input_dataset=variant).numpy()
        options = dataset_options_pb2.Options.FromString(serialized)
        self.assertTrue(options.autotune_options.HasField("enabled"))  # it is on by default
        self.assertFalse(options.autotune_options.enabled)
        require_device(DATA, [("the dataset", variant)])

    def test_a_scope_of_the_caller_does_not_reach_the_operations_of_tf_data(self):
        """They have CPU kernels only: a GPU in whose scope a pass begins would refuse them."""
        uploader = make()
        with tf.device(MODEL):
            deque(uploader.read(items(3), DATA), maxlen=0)
        ((source, _),) = uploader._idle[DATA]
        self.assertTrue(source.dataset._variant_tensor.device.endswith("CPU:0"))


@unittest.skipUnless(hasattr(ctypes.CDLL(None), "mallinfo2"), "another C library than glibc")
class MemoryTest(unittest.TestCase):
    def test_tensors_take_memory_that_others_freed_after_an_upload_was_opened(self):
        list(make().read(items(1), DATA))
        # A mapping of its own is unmapped when the tensor is freed.
        mapped = mallinfo2().hblkhd
        with tf.device("/CPU:0"):
            tensors = [tf.fill([1 << 20], 1.0) for _ in range(4)]
        self.assertEqual(mallinfo2().hblkhd, mapped)
        del tensors

    def test_no_memory_is_kept_of_a_pass(self):
        passes = 60
        uploader, given = make(), items(3)
        kept = []
        for _ in range(3):
            gc.collect()
            before = bytes_in_use()
            for _ in range(passes):
                deque(uploader.read(given, DATA), maxlen=0)
            gc.collect()
            kept.append((bytes_in_use() - before) / passes)
        # Bytes of each pass; an iterator and its end take 3,400.
        self.assertLess(min(kept[1:]), 1_500.0)
