"""The batch plan: buckets with the least padding, and epochs with each utterance exactly once."""

import itertools
import unittest

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.errors import ConfigError
from myxtts.batches.plan import Plan, bucket_bounds, deal_rows, water_fill


def corpus(utterances, seed=0, speakers=5):
    """Return random lengths (0.3 to 10 s), token counts and speakers."""
    random = np.random.default_rng(seed)
    samples = random.integers(6_615, 220_500, utterances).astype(np.int32)
    return samples, samples // 1_500, random.integers(0, speakers, utterances).astype(np.int32)


def plan_of(columns, buckets=4, **settings):
    settings = {"batch_size": 4, "seed": 0} | settings
    bounds = settings.pop("bounds", bucket_bounds(columns[0], buckets))
    return Plan(*columns, bounds=np.asarray(bounds), **settings)


def utterances_of(epoch, replicas=1):
    """Return all utterances of an epoch in the order of its batches."""
    places = itertools.product(range(epoch.steps), range(replicas))
    batches = itertools.chain(*(epoch.batches(step, replica) for step, replica in places))
    return np.concatenate([rows for rows, _ in batches])


def random_settings(cases):
    for seed in range(cases):
        random = np.random.default_rng(seed)
        settings = {
            "batch_size": int(random.integers(1, 20)),
            "batch_seconds": float(random.choice([0.0, 12.5, 60.0])),
            "accumulation": int(random.integers(1, 4)),
            "replicas": int(random.integers(1, 5)),
            "seed": seed,
        }
        yield corpus(int(random.integers(1, 400)), seed), int(random.integers(1, 12)), settings


class BucketBounds(unittest.TestCase):
    def test_two_clusters_of_lengths_get_one_bucket_each(self):
        samples = np.array([10, 11, 10, 40, 41]) * HOP_SAMPLES
        self.assertEqual((bucket_bounds(samples, 2) // HOP_SAMPLES).tolist(), [11, 41])

    def test_bounds_minimise_the_padding(self):
        for seed, buckets in itertools.product(range(10), (1, 2, 3)):
            hops = np.random.default_rng(seed).integers(5, 30, 12)
            cuts = itertools.combinations(np.unique(hops[hops < hops.max()]), buckets - 1)
            least = min(padded(hops, np.array([*cut, hops.max()])) for cut in cuts)
            actual = padded(hops, bucket_bounds(hops * HOP_SAMPLES, buckets) // HOP_SAMPLES)
            self.assertEqual(actual, least)

    def test_bounds_are_ascending_multiples_of_the_hop_and_cover_the_longest_utterance(self):
        cases = itertools.product((1, 2, 7, 300, 5000), (1, 3, 64), (1, 16))
        for utterances, buckets, step in cases:
            samples = corpus(utterances)[0]
            bounds = bucket_bounds(samples, buckets, step)
            self.assertEqual(bounds.dtype, np.int32)
            self.assertLessEqual(len(bounds), buckets)
            self.assertTrue(np.all(np.diff(bounds) > 0) and np.all(bounds % HOP_SAMPLES == 0))
            self.assertTrue(samples.max() <= bounds[-1] < samples.max() + HOP_SAMPLES)

    def test_equal_lengths_share_one_bucket_even_if_more_are_allowed(self):
        self.assertEqual(bucket_bounds(np.full(9, 1000), 8).tolist(), [1024])

    def test_bounds_at_whole_steps_leave_no_utterances_over(self):
        samples = np.arange(1, 41) * HOP_SAMPLES
        bounds = bucket_bounds(samples, 3, step_utterances=8)
        self.assertTrue(np.all(np.searchsorted(samples, bounds, side="right") % 8 == 0))


def padded(hops, bounds):
    return bounds[np.searchsorted(bounds, hops)].sum()


class Epoch(unittest.TestCase):
    def test_each_utterance_occurs_exactly_once_in_a_batch_of_its_bucket(self):
        for columns, buckets, settings in random_settings(60):
            plan = plan_of(columns, buckets, **settings)
            epoch = plan.epoch(3)
            rows = utterances_of(epoch, settings["replicas"])
            np.testing.assert_array_equal(np.sort(rows), np.arange(len(columns[0])))
            np.testing.assert_array_equal(rows, epoch.order)
            for step, replica in itertools.product(range(epoch.steps), range(settings["replicas"])):
                size, samples, tokens = plan.shape(epoch.step_bucket[step])
                batches = epoch.batches(step, replica)
                self.assertEqual(len(batches), epoch.microbatches[step])
                self.assertTrue(replica or len(batches[0][0]))
                for rows, references in batches:
                    self.assertEqual(len(rows), len(references))
                    self.assertLessEqual(len(rows), size)
                    self.assertLessEqual(columns[0][rows].max(initial=0), samples)
                    self.assertLessEqual(columns[1][rows].max(initial=0), tokens)

    def test_every_epoch_has_the_same_number_of_steps_and_at_most_one_is_incomplete(self):
        for columns, buckets, settings in random_settings(60):
            plan = plan_of(columns, buckets, **settings)
            whole = plan.batch_sizes.sum(axis=1) * settings["accumulation"]
            for number in range(3):
                epoch = plan.epoch(number)
                self.assertEqual(epoch.steps, plan.steps_per_epoch)
                sizes = np.diff(epoch.step_start)
                self.assertLessEqual(np.count_nonzero(sizes != whole[epoch.step_bucket]), 1)
                self.assertTrue(np.all((sizes > 0) & (sizes <= whole[epoch.step_bucket])))

    def test_rows_beyond_the_share_of_each_replica_are_left_out_and_change_no_batch(self):
        for columns, buckets, settings in random_settings(20):
            share = -(-len(columns[0]) // settings["replicas"])
            capped, fitting = (
                plan_of(columns, buckets, **settings | {"batch_size": size, "batch_seconds": 0.0})
                for size in (1_000_000, share)
            )
            self.assertEqual({*capped.batch_sizes.ravel()}, {share})
            np.testing.assert_array_equal(capped.epoch(1).order, fitting.epoch(1).order)
            self.assertEqual(capped.steps_per_epoch, 1)

    def test_plan_depends_on_seed_and_epoch_but_not_on_earlier_calls(self):
        first, second = plan_of(corpus(100)), plan_of(corpus(100))
        second.epoch(7)
        for name, column in vars(first.epoch(2)).items():
            np.testing.assert_array_equal(column, getattr(second.epoch(2), name), name)

    def test_order_differs_between_epochs_and_seeds(self):
        order = plan_of(corpus(100)).epoch(0).order
        self.assertFalse(np.array_equal(order, plan_of(corpus(100)).epoch(1).order))
        self.assertFalse(np.array_equal(order, plan_of(corpus(100), seed=1).epoch(0).order))

    def test_each_epoch_groups_the_utterances_of_a_bucket_differently(self):
        plan = plan_of(corpus(64), buckets=1, batch_size=8)
        first, second = plan.epoch(0), plan.epoch(1)
        steps = {frozenset(first.utterances(step).tolist()) for step in range(8)}
        self.assertFalse(steps & {frozenset(second.utterances(step).tolist()) for step in range(8)})

    def test_steps_of_long_and_short_utterances_are_mixed(self):
        buckets = plan_of(corpus(400)).epoch(0).step_bucket
        self.assertGreater(np.count_nonzero(np.diff(buckets)), len(buckets) // 2)

    def test_longest_leftover_utterances_move_to_the_next_bucket(self):
        samples = np.array([100, 200, 250, 300, 900])
        columns = samples, samples, samples * 0
        epoch = plan_of(columns, bounds=[512, 1024], batch_size=3).epoch(0)
        steps = sorted(sorted(epoch.utterances(step).tolist()) for step in range(epoch.steps))
        self.assertEqual(steps, [[0, 1, 2], [3, 4]])


class Replicas(unittest.TestCase):
    def test_a_complete_step_gives_every_replica_the_same_number_of_full_batches(self):
        plan = plan_of(corpus(500), batch_size=4, accumulation=3, replicas=2)
        epoch = plan.epoch(0)
        complete = np.flatnonzero(np.diff(epoch.step_start) == 24)
        self.assertGreaterEqual(len(complete), epoch.steps - 1)
        for step, replica in itertools.product(complete, range(2)):
            self.assertEqual([len(rows) for rows, _ in epoch.batches(step, replica)], [4, 4, 4])

    def test_batches_of_the_replicas_are_disjoint_and_cover_the_step(self):
        epoch = plan_of(corpus(333), replicas=3, accumulation=2).epoch(1)
        for step in range(epoch.steps):
            shares = [rows for replica in range(3) for rows, _ in epoch.batches(step, replica)]
            np.testing.assert_array_equal(np.concatenate(shares), epoch.utterances(step))

    def test_the_incomplete_step_is_divided_evenly_among_replicas_and_microbatches(self):
        expected = {1: [[1], [0], [0]], 4: [[2], [1], [1]]}
        expected |= {10: [[3, 1], [3, 0], [3, 0]], 17: [[3, 3], [3, 3], [3, 2]]}
        for utterances, shares in expected.items():
            epoch = plan_of(corpus(utterances), batch_size=3, accumulation=2, replicas=3).epoch(0)
            actual = [[len(rows) for rows, _ in epoch.batches(0, replica)] for replica in range(3)]
            self.assertEqual(actual, shares)

    def test_two_replicas_have_the_steps_of_one_replica_with_twice_the_batch_size(self):
        both = plan_of(corpus(200), batch_size=4, replicas=2).epoch(0)
        single = plan_of(corpus(200), batch_size=8).epoch(0)
        np.testing.assert_array_equal(both.order, single.order)
        np.testing.assert_array_equal(both.step_start, single.step_start)


class Shares(unittest.TestCase):
    def test_water_is_filled_to_one_level_below_what_each_may_take(self):
        for fixed, each, amount, most, expected in (
            ([0, 0], [1, 2], 3, np.inf, [2, 1]),
            ([2, 0], [1, 1], 4, np.inf, [1, 3]),
            ([9, 0, 0], [1, 1, 3], 4, np.inf, [0, 3, 1]),  # the first one is busy for longer
            ([0, 0], [1 / 8, 1 / 2], 1, [0.6, np.inf], [0.6, 0.4]),
            ([0, 0, 0], [1 / 5, 1 / 3, 1 / 2], 1, [0.4, 0.35, np.inf], [0.4, 0.35, 0.25]),
            ([0, 0], [1, 2], 3, [1, 1], [1, 1]),
        ):
            dealt = water_fill(np.array(fixed), np.array(each), amount, np.array(most))
            np.testing.assert_allclose(dealt, expected)

    def test_rows_are_dealt_by_largest_remainder(self):
        for rows, shares, expected in (
            (32, (1, 1), [16, 16]),
            (32, (1, 2), [11, 21]),  # 10.67 and 21.33
            (16, (3, 1), [12, 4]),
            (10, (1, 1, 1), [4, 3, 3]),
            (9, (0.7, 0.2, 0.1), [6, 2, 1]),  # 6.3, 1.8 and 0.9
            (2, (9, 1), [2, 0]),
        ):
            self.assertEqual(deal_rows(np.array([rows]), shares).tolist(), [expected])

    def test_shares_change_who_takes_the_rows_of_a_step_and_nothing_else(self):
        for columns, buckets, settings in random_settings(30):
            settings |= {"replicas": 3}
            equal = plan_of(columns, buckets, **settings).epoch(2)
            plan = plan_of(columns, buckets, **settings, shares=(1.0, 1.5, 0.9))
            epoch = plan.epoch(2)
            for name in ("order", "references", "step_start", "step_bucket"):
                np.testing.assert_array_equal(getattr(epoch, name), getattr(equal, name))
            np.testing.assert_array_equal(utterances_of(epoch, 3), epoch.order)
            for step, replica in itertools.product(range(epoch.steps), range(3)):
                batches = epoch.batches(step, replica)
                self.assertEqual(len(batches), epoch.microbatches[step])
                size = epoch.batch_sizes[epoch.step_bucket[step], replica]
                self.assertTrue(all(len(rows) <= size for rows, _ in batches))

    def test_a_complete_step_gives_each_replica_full_batches_of_its_share(self):
        plan = plan_of(corpus(500), batch_size=4, accumulation=3, replicas=2, shares=(1, 3))
        epoch = plan.epoch(0)
        for step in np.flatnonzero(np.diff(epoch.step_start) == 24):
            for replica, size in enumerate((2, 6)):
                self.assertEqual(
                    [len(rows) for rows, _ in epoch.batches(step, replica)], [size] * 3
                )

    def test_the_incomplete_step_is_shared_in_proportion(self):
        epoch = plan_of(corpus(7), batch_size=6, replicas=2, shares=(1, 2)).epoch(0)
        self.assertEqual([len(epoch.batches(0, replica)[0][0]) for replica in (0, 1)], [3, 4])
        epoch = plan_of(corpus(1), batch_size=6, replicas=2, shares=(1, 2)).epoch(0)
        self.assertEqual([len(epoch.batches(0, replica)[0][0]) for replica in (0, 1)], [1, 0])

    def test_a_replica_without_a_row_of_long_utterances_takes_an_empty_one(self):
        plan = plan_of(corpus(500), batch_seconds=20.0, replicas=2, shares=(1, 9))
        self.assertEqual(plan.batch_sizes.min(axis=0)[0], 0)
        bucket = int(plan.batch_sizes[:, 0].argmin())
        epoch = plan.epoch(0)
        step = int(np.flatnonzero(epoch.step_bucket == bucket)[0])
        self.assertEqual([len(rows) for rows, _ in epoch.batches(step, 0)], [0])
        self.assertGreater(plan.padded_samples(epoch)[step], plan.bounds[bucket])

    def test_a_share_that_never_gets_a_row_is_refused(self):
        with self.assertRaisesRegex(
            ConfigError, "--batch-shares 1 99 leaves replica 0 none of .* 8"
        ):
            plan_of(corpus(50), replicas=2, shares=(1, 99))


class Shapes(unittest.TestCase):
    def test_batch_seconds_limits_padded_audio_and_gives_short_buckets_larger_batches(self):
        plan = plan_of(corpus(500), batch_seconds=30.0)
        shapes = [plan.shape(bucket) for bucket in range(len(plan.bounds))]
        for size, length, _ in shapes:
            self.assertTrue(size * length <= 30.0 * SAMPLE_RATE_HZ < (size + 1) * length)
        self.assertGreater(shapes[0][0], shapes[-1][0])

    def test_batch_seconds_below_one_utterance_gives_batches_of_one(self):
        self.assertEqual(plan_of(corpus(20), batch_seconds=0.1).batch_sizes.tolist(), [[1]] * 4)

    def test_token_dimension_of_a_shape_is_the_maximum_over_all_utterances_that_fit(self):
        samples = np.array([100, 200, 600, 900])
        for tokens, expected in (([9, 3, 5, 4], [9, 9, 9]), ([4, 5, 3, 9], [5, 5, 9])):
            plan = plan_of((samples, np.array(tokens), samples * 0), bounds=[256, 768, 1024])
            self.assertEqual([plan.shape(bucket)[2] for bucket in range(3)], expected)

    def test_padding_is_the_padded_fraction_of_all_batches(self):
        samples = np.array([256, 256, 512])
        columns = samples, samples, samples * 0
        plan = plan_of(columns, bounds=[256, 512], batch_size=2)
        # One row of the last batch is empty.
        self.assertAlmostEqual(plan.padding, 1 - 1024 / (2 * 256 + 2 * 512))
        self.assertEqual(plan.buckets, [(256, 2, 2, 0.0), (512, 2, 1, 0.5)])
        plan = plan_of(columns, bounds=[512], batch_size=2, replicas=2)
        self.assertAlmostEqual(plan.padding, 1 - 1024 / (4 * 512))


class References(unittest.TestCase):
    def test_a_reference_is_another_utterance_of_the_same_speaker(self):
        columns = corpus(300)
        epoch = plan_of(columns).epoch(0)
        np.testing.assert_array_equal(columns[2][epoch.order], columns[2][epoch.references])
        self.assertFalse(np.any(epoch.order == epoch.references))

    def test_the_only_utterance_of_a_speaker_is_its_own_reference(self):
        samples, tokens, _ = corpus(4)
        epoch = plan_of((samples, tokens, np.array([7, 3, 7, 9]))).epoch(0)
        reference = dict(zip(epoch.order.tolist(), epoch.references.tolist(), strict=True))
        self.assertEqual(reference, {0: 2, 1: 1, 2: 0, 3: 3})

    def test_all_other_utterances_of_a_speaker_are_drawn_equally_often(self):
        plan = plan_of(corpus(5, speakers=1), buckets=1)
        pairs = np.zeros((5, 5))
        for number in range(400):
            epoch = plan.epoch(number)
            pairs[epoch.order, epoch.references] += 1
        others = pairs[~np.eye(5, dtype=bool)]
        # 100 expected, standard deviation 9.
        self.assertTrue(np.all((others > 60) & (others < 140)), pairs)
