"""--placement auto: what is measured decides, and what cannot be measured is said."""

import unittest

import numpy as np

from myxtts.config.schema import Config, Data, Placement
from myxtts.errors import DataError, PlacementError
from myxtts.placement.routes import plan_routes
from myxtts.profiling.auto import choose_placement, measure_apart, rank


def times(read_ms: float, produce_ms: float, transfer_ms: float, step_ms: float) -> dict[str, np.ndarray]:
    named = {"read": read_ms, "produce": produce_ms, "transfer": transfer_ms, "step": step_ms}
    return {name: np.full(20, milliseconds / 1e3) for name, milliseconds in named.items()}


class RankTest(unittest.TestCase):
    def best(self, *milliseconds: float, gpus: int = 2):
        return rank(times(*milliseconds), gpus, Data())[0]

    def test_dual_where_producing_takes_time(self):
        best = self.best(1, 20, 2, 22)
        self.assertEqual(best.candidate.flags, "--data-gpu 0 --model-gpu 1")
        self.assertAlmostEqual(best.batches_per_s, 1 / 0.022, delta=0.2)

    def test_single_where_the_transfer_takes_longer_than_it_saves(self):
        best = self.best(1, 5, 40, 20)
        self.assertEqual(best.candidate.name, "single")
        self.assertAlmostEqual(best.batches_per_s, 1 / 0.025, delta=0.2)

    def test_single_where_reading_is_the_slowest_and_nothing_is_gained(self):
        self.assertEqual(self.best(60, 5, 1, 20).candidate.name, "single")  # the pace of all readers together

    def test_only_what_this_version_trains_is_chosen_from(self):
        self.assertEqual({one.candidate.replicas for one in rank(times(1, 20, 2, 22), 4, Data())}, {1})


class ChoosePlacementTest(unittest.TestCase):
    def test_one_device_needs_no_measuring(self):
        chosen = choose_placement(Config(placement=Placement(placement="auto", simulate_gpus=1)))
        self.assertEqual(chosen.placement, Placement(simulate_gpus=1))

    def test_a_named_placement_is_refused(self):
        for named in ({"data_gpu": 0, "model_gpu": 1}, {"model_gpus": (0,)}):
            with self.subTest(**named), self.assertRaisesRegex(PlacementError, "--model-gpu.* as well"):
                choose_placement(Config(placement=Placement(placement="auto", simulate_gpus=2, **named)))

    def test_unsettled_it_is_no_placement(self):
        with self.assertRaisesRegex(PlacementError, "train_main.py alone"):
            plan_routes(Placement(placement="auto"), 2)

    def test_what_stops_the_measuring_is_raised_here(self):
        with self.assertRaisesRegex(DataError, "nowhere"):
            measure_apart(Config(data=Data(train_data="nowhere")))


if __name__ == "__main__":
    unittest.main()
