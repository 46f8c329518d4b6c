"""The section of the GPU proof on threads finds a batch in which one bit is wrong."""

import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks.proof import threads
from benchmarks.proof.section import Scope
from myxtts.batch import TTS_FEATURES
from myxtts.commands import train
from myxtts.data.demo_corpus import make_demo_corpus
from myxtts.data.pipeline import Producer
from myxtts.placement.audit import audit, find_copies
from myxtts.placement.routes import plan_routes
from tests.tiny import features, on_device
from tests.two_devices import MODEL, SIMULATED

CORRUPTED = 2  # number of the batch


def flip_lowest_bit(tensor: tf.Tensor) -> tf.Tensor:
    bits = tensor.numpy().view(np.int32)
    bits.flat[-1] ^= 1
    with tf.device(tensor.device):
        return tf.constant(bits.view(np.float32))


class ChecksumTest(unittest.TestCase):
    def test_checksum_runs_on_a_gpu_without_waiting_for_it_and_where_the_batch_is(self):
        checksums = threads.Checksums(TTS_FEATURES)
        self.assertTrue(checksums(on_device(features([(5, 13)])), MODEL).device.endswith(MODEL[1:]))
        function = checksums._compute.get_concrete_function()
        self.assertEqual(audit(function).host_only, ())
        # Each would wait for the GPU.
        self.assertEqual([copy for copy in find_copies(function) if copy.to_host], [])

    def test_checksum_differs_for_elements_that_trade_places(self):
        def checksum(values):
            return int(threads.checksum(tf.constant(values, tf.float32)))

        values = np.arange(24.0).reshape(2, 3, 4)
        flipped = (values[::-1], values[:, ::-1], values[..., ::-1])
        for other in (*flipped, values.reshape(3, 2, 4).swapaxes(0, 1)):
            self.assertNotEqual(checksum(other), checksum(values))
        self.assertEqual(checksum(values.copy()), checksum(values))


class RoutesTest(unittest.TestCase):
    def routes(self, gpus: int) -> dict[str, tuple[int, int]]:
        """Return the physical GPUs of each route."""
        scope = Scope(gpus, False, False, 60.0, Path("unused"), Path("unused"))
        config, _ = train.parse(threads.flags_of(scope))
        placement = plan_routes(config.placement, gpus)
        gpu_of = {device.name: device.physical for device in placement.devices}
        routes = threads.routes_of(scope, placement)
        return {name: (gpu_of[route.data], gpu_of[route.model]) for name, route in routes}

    def test_routes_cover_one_gpu_its_parts_and_both_directions_between_two(self):
        one = {"one GPU": (0, 0), "one GPU split in two": (0, 0)}
        self.assertEqual(self.routes(1), one)
        two = {"two GPUs": (0, 1), **one, "two GPUs, the other way round": (1, 0)}
        self.assertEqual(self.routes(2), two)
        self.assertEqual(self.routes(3), two)


class CorruptedBatchTest(unittest.TestCase):
    def run_section(self):
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus"
            make_demo_corpus(corpus, 12, ["en"], speakers=2, seed=0)
            return threads.run(Scope(SIMULATED, True, True, 3600.0, Path(folder), corpus))

    def test_wrong_bit_is_found_in_every_place_behind_it(self):
        produce = Producer.replica_batches

        def corrupted(producer, *arguments):
            for number, (batch,) in enumerate(produce(producer, *arguments)):
                if number == CORRUPTED and threading.current_thread().name == "myxtts-producer":
                    mel = flip_lowest_bit(batch.features["mel"])
                    batch = batch._replace(features=batch.features | {"mel": mel})
                yield (batch,)

        with mock.patch.object(Producer, "replica_batches", corrupted):
            result = self.run_section()
        (figure,) = result.figures
        self.assertEqual((figure.here, figure.verdict), ("3 of 12 checksums differ", "not met"))
        actual = result.data["checks"][0]["different"]
        self.assertEqual(actual, [f"batch {CORRUPTED}, {place}: mel" for place in threads.PLACES])
