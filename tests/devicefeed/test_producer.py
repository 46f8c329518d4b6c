"""Producers: what is checked of a batch, waits, and turns."""

import itertools
import unittest
from unittest.mock import Mock

from .devices import DATA, MODEL

# isort: split

import tensorflow as tf

from myxtts.devicefeed.contract import FeatureExtractor, Field
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.producer import ReplicaFeed, produced_batches, trace_produce
from myxtts.devicefeed.routes import Route

INPUTS = {"x": Field("float32", ("batch", 3))}
FEATURES = {"mean": Field("float32", ("batch",)), "square": Field("float32", ("batch", 3))}


def produce(batch):
    return {"mean": tf.reduce_mean(batch["x"], axis=1), "square": tf.square(batch["x"])}


EXTRACTOR = FeatureExtractor(INPUTS, FEATURES, produce)


def read(device=DATA, count=2):
    """Yield tagged batches on a device."""
    for number in range(count):
        with tf.device(device):
            yield number, {"x": tf.fill([2, 3], float(number))}


class ProducerTest(unittest.TestCase):
    def test_batches_have_their_tags_features_and_times_in_order(self):
        function = trace_produce(DATA, EXTRACTOR)
        made = list(produced_batches(read(), DATA, EXTRACTOR, function))
        self.assertEqual([batch.tag for batch in made], [0, 1])
        self.assertEqual([float(batch.features["square"][0, 0]) for batch in made], [0.0, 1.0])
        for batch in made:
            times = batch.times
            self.assertTrue(times.began_s <= times.read_s <= times.produced_s, times)
            self.assertEqual(times.producer, DATA)

    def test_every_operation_is_bound_to_the_device(self):
        operations = trace_produce(MODEL, EXTRACTOR).graph.get_operations()
        at = {op.device for op in operations if op.type not in ("Placeholder", "Identity")}
        self.assertEqual(at, {f"/device:{MODEL[1:]}"})

    def test_a_batch_on_the_wrong_device_is_rejected(self):
        function = trace_produce(DATA, EXTRACTOR)
        batches = produced_batches(read(MODEL), DATA, EXTRACTOR, function)
        with self.assertRaisesRegex(PlacementError, f"must be on {DATA}, but found .* on {MODEL}"):
            next(batches)

    def test_a_batch_that_breaks_its_contract_is_rejected(self):
        whole = trace_produce(DATA, EXTRACTOR)

        def without_mean(waves):
            features, element = whole(waves)
            return {"square": features["square"]}, element

        batches = produced_batches(read(), DATA, EXTRACTOR, without_mean)
        with self.assertRaisesRegex(TypeError, "^batch after producing: mean is missing$"):
            next(batches)

    def test_the_data_device_is_waited_for_only_if_asked(self):
        function = trace_produce(DATA, EXTRACTOR)
        for synchronize, waits in ((False, 0), (True, 2)):
            element = Mock()
            observed = lambda waves, element=element: (function(waves)[0], element)  # noqa: E731
            list(produced_batches(read(), DATA, EXTRACTOR, observed, synchronize))
            self.assertEqual(element.numpy.call_count, waits)


class ReplicaFeedTest(unittest.TestCase):
    def test_the_wait_for_all_feeds_together_is_at_most_the_timeout(self):
        waiting = Mock(**{"wait_until_full.return_value": 2.0})
        routes = [Route("a", "a"), Route("b", "b")]
        actual = ReplicaFeed([[waiting], [waiting]], [[0], [1]], routes).wait_until_full(5.0)
        self.assertEqual(actual, 4.0)
        timeouts_s = [call.args[0] for call in waiting.wait_until_full.mock_calls]
        self.assertEqual(timeouts_s, [5.0, 3.0])

    def test_batches_are_in_the_order_of_the_routes(self):
        feeds = [iter([("b1", "b3")]), iter([("a0", "a2")])]
        routes = [Route(name, name) for name in ("b", "a")]
        batches = next(ReplicaFeed([[each] for each in feeds], [[1, 3], [0, 2]], routes))
        self.assertEqual(batches, ("a0", "b1", "a2", "b3"))


class RouteTest(unittest.TestCase):
    def test_data_devices_take_turns_by_their_shares(self):
        for shares, expected in (((), "ababab"), ((2, 2), "ababab"), ((3, 1), "aaabaaab")):
            turns = itertools.islice(Route("a", "c", ("b",), shares).turns(), len(expected))
            self.assertEqual("".join(turns), expected)
