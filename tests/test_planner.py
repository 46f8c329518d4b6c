"""Placements, their bounds and ranking, against times that can be added up by hand."""

import contextlib
import io
import json
import unittest

from myxtts.base.console import report_errors
from myxtts.commands import plan as plan_command
from myxtts.commands import train
from myxtts.devicefeed.routes import Route
from myxtts.placement.bound import STAGES, Speeds, analytic_bound, ring_all_reduce_s
from myxtts.placement.settings import plan_routes
from myxtts.trial.candidates import Candidate, candidate_placements, format_table, rank
from tests.fixtures import FolderCase

SINGLE, DUAL = [Route("0", "0")], [Route("0", "1")]
REPLICATED = [Route("0", "0"), Route("1", "1")]
ONE_FOR_TWO = [Route("0", "1"), Route("0", "2")]
TRAINS_TOO = [Route("0", "0"), Route("0", "1")]
TURNS = [Route("0", "2", ("1",))]  # two producers
TURNS_FOR_TWO = [Route("0", "2", ("1",)), Route("0", "3", ("1",))]


def means(produce_s, step_s, transfer_s=0.0, read_s=0.0) -> dict[str, float]:
    return dict(zip(STAGES, (read_s, produce_s, transfer_s, step_s), strict=True))


def equal_gpus(gpus: int, mean_s: dict | None = None, **options) -> list[Candidate]:
    """Return the placements that so many equal GPUs allow."""
    return candidate_placements(Speeds.of([1.0] * gpus), mean_s or means(1, 20), 16, **options)


def ranked(candidates, mean_s, all_reduce_s=0.0, observe_s=0.0):
    return rank(each.bound(mean_s, 2, all_reduce_s, observe_s) for each in candidates)


def names(estimates) -> list[str]:
    return [candidate.name for candidate, _, _ in estimates]


def formulas(estimates) -> dict[str, str]:
    return {candidate.name: formula for candidate, formula, _ in estimates}


class PlannerTest(unittest.TestCase):
    def test_candidates_are_all_placements_that_the_gpus_allow(self):
        expected = """
            single | none
            replicated | --model-gpus 0 1
            replicated | --model-gpus 0 1 2
            dual | --data-gpu 0 --model-gpu 1
            dual, 2 replicas | --data-gpu 0 --model-gpus 1 2
            dual, 2 producers | --data-gpus 0 1 --model-gpu 2
            dual, 2 replicas, data GPU trains too | --data-gpu 0 --model-gpus 0 1
            dual, 3 replicas, data GPU trains too | --data-gpu 0 --model-gpus 0 1 2
        """
        # Producing takes less than a row of a step does.
        candidates = [f"{each.name} | {each.flags}" for each in equal_gpus(3, means(0.01, 20))]
        self.assertCountEqual(candidates, map(str.strip, expected.strip().splitlines()))
        self.assertEqual([candidate.name for candidate in equal_gpus(1)], ["single"])

    def test_flags_select_the_placement(self):
        for candidate in equal_gpus(4):
            with self.subTest(flags=candidate.flags):
                config, _ = train.parse(candidate.flags.replace("none", "").split())
                routes = plan_routes(config.placement, 4).routes
                self.assertEqual(routes, candidate.placement.routes)

    def test_dual_beats_two_replicas_if_the_all_reduce_per_batch_exceeds_half_the_stage_difference(
        self,
    ):
        for produce_s, step_s in ((1, 3), (3, 1), (2, 2), (0.5, 5)):
            crossing_s = abs(produce_s - step_s) / 2
            for of_batch_s in {0.8 * crossing_s, 1.2 * crossing_s + 0.1} - {0.0}:
                with self.subTest(times=(produce_s, step_s), all_reduce_of_a_batch_s=of_batch_s):
                    best = ranked(equal_gpus(2), means(produce_s, step_s), 2 * of_batch_s)
                    expected = "dual" if of_batch_s > crossing_s else "replicated"
                    ordered = [name for name in names(best) if name in ("dual", "replicated")]
                    self.assertEqual(ordered[0], expected)

    def test_unlike_gpus_share_a_step_by_speed(self):
        mean_s = means(0.008, 0.1)
        for speeds, rows in (((1.0, 0.5), (21, 11)), ((0.3, 1.0), (7, 25)), ((1.0, 1.0), ())):
            found = ranked(candidate_placements(Speeds.of(speeds), mean_s, 16), mean_s)
            best = next(each for each in found if each.candidate.name.startswith("replicated"))
            self.assertEqual(best.candidate.shares, rows)
            slowest_s = 0.108 * max(
                n / 16 / s for n, s in zip(rows or (16, 16), speeds, strict=True)
            )
            self.assertAlmostEqual(best.batch_s, slowest_s / 2)
        flags = "--model-gpus 0 1 --batch-shares 21 11"
        found = candidate_placements(Speeds.of((1.0, 0.5)), mean_s, 16)
        self.assertIn(flags, [candidate.flags for candidate in found])

    def test_what_a_step_takes_without_rows_goes_to_the_shares_and_the_bound(self):
        # 20 + 80 b ms, and on the slow GPU 40 + 160 (2 - b), are equal with b = 22.7 rows of 16.
        mean_s, speeds = means(0.0, 0.1), Speeds.of((1.0, 0.5), 0.2)
        best = ranked(candidate_placements(speeds, mean_s, 16), mean_s)[0]
        self.assertEqual(best.candidate.rows, (23, 9))
        self.assertAlmostEqual(best.batch_s, (0.02 + 0.08 * 23 / 16) / 2)

    def test_unlike_gpus_have_the_roles_that_suit_them(self):
        # GPU 0 is slow in training alone.
        speeds, mean_s = Speeds((1.0, 1.0), (0.1, 1.0), (0.0, 0.0)), means(0.08, 0.1)
        found = candidate_placements(speeds, mean_s, 16)
        by_name = {candidate.name: candidate.flags for candidate in found}
        self.assertEqual(by_name["dual"], "--data-gpu 0 --model-gpu 1")
        self.assertEqual(by_name["single"], "--model-gpus 1")
        self.assertEqual(ranked(found, mean_s)[0].candidate.name, "dual")

    def test_a_replica_that_could_take_no_row_is_no_candidate(self):
        found = candidate_placements(Speeds.of((1.0, 0.01)), means(0.008, 0.1), 16)
        self.assertEqual({candidate.replicas for candidate in found}, {1})

    def test_bound_of_the_gpus_lets_each_do_what_it_does_relatively_fast(self):
        mean_s = {"produce": 0.02, "step": 0.1}
        for speeds, expected_s in (
            (Speeds.of((1.0,)), 0.12),
            (Speeds.of((1.0, 0.5)), 0.12 / 1.5),
            # GPU 0 makes 50 batches a second at most and trains on none; GPU 1 trains on 10.
            (Speeds((1.0, 1.0), (1e-9, 1.0), (0.0, 0.0)), 0.1),
            # GPU 1 trains on all x = 10 f of them and makes none: 50 (1 - f) + 50 = x, f > 1.
            (Speeds.of((1.0, 1.0)), 0.06),
        ):
            self.assertAlmostEqual(speeds.bound_s(mean_s), expected_s)

    def test_second_producer_is_chosen_where_producing_takes_longer_than_the_step(self):
        slow, fast = (ranked(equal_gpus(3), means(produce_s, 1.0), 0.1) for produce_s in (2, 0.5))
        self.assertEqual(slow[0].candidate.flags, "--data-gpus 0 1 --model-gpu 2")
        # One would be idle.
        self.assertEqual(names(fast)[-3:], ["dual", "dual, 2 producers", "single"])
        formula = formulas(ranked(equal_gpus(4), means(4, 1)))["dual, 3 producers"]
        self.assertEqual(formula, "max(P / 3, C) = max(1333, 1000) = 1333 ms")

    def test_unlike_producers_make_batches_by_their_speeds(self):
        mean_s, speeds = means(0.2, 0.1), Speeds.of((1.0, 0.5, 1.0))
        best = ranked(candidate_placements(speeds, mean_s, 16), mean_s, 1.0)[0]
        flags = "--data-gpus 0 1 --model-gpu 2 --data-shares 1 0.5"
        self.assertEqual(best.candidate.flags, flags)
        self.assertIn("max(2 P / 3, C)", best.formula)

    def test_the_observer_takes_time_of_the_data_device_and_validation_of_the_model_device(self):
        found = formulas(ranked(equal_gpus(2), means(0.02, 0.03, 0.002), observe_s=0.009))
        expected = {
            "dual": "max(P + V, T, C) = max(29, 2, 30) = 30 ms",
            "single": "P + C + V = 59 ms",
            "replicated": "(P + C + V) / 2 = 59 / 2 = 29.5 ms",
        }
        self.assertEqual(found | expected, found)
        third, _ = analytic_bound(DUAL, means(0.02, 0.03), 2, 0.0, 0.04, "2")
        self.assertEqual(third, "max(P, C, V) = max(20, 30, 40) = 40 ms")

    def test_an_observer_that_makes_no_batches_of_the_first_replica_takes_its_time_too(self):
        mean_s = means(0.010, 0.022)
        on_last = ranked(equal_gpus(2, observer=1), mean_s, 0.0005, 0.012)
        bounds_s = {each.candidate.name: each.batch_s for each in on_last}
        self.assertAlmostEqual(bounds_s["replicated"], 0.0445 / 2)
        self.assertAlmostEqual(bounds_s["dual"], 0.034)
        idle = ranked(equal_gpus(3, observer=2), mean_s, observe_s=0.2)
        (both,) = (p for p in idle if p.candidate.flags == "--data-gpu 0 --model-gpus 1 2")
        self.assertIn("C + V", both.formula)

    def test_a_tie_goes_to_the_smaller_step_and_to_fewer_gpus(self):
        # P = C and A = 0: both take 1 s per batch.
        self.assertEqual(names(ranked(equal_gpus(2), means(1, 1)))[:2], ["dual", "replicated"])
        found = ranked(equal_gpus(2), means(0.0, 1))
        self.assertEqual(names(found)[-2:], ["single", "dual"])
        # Within 2 %, too.
        found = ranked(equal_gpus(2), means(0.548, 0.537))
        self.assertEqual(names(found)[:2], ["dual", "replicated"])
        self.assertGreater(found[0].batch_s, found[1].batch_s)

    def test_analytic_bound_has_a_formula(self):
        for routes, expected in (
            (SINGLE, "P + C = 40 ms"),
            (DUAL, "max(P, T, C) = max(20, 2, 20) = 20 ms"),
            (REPLICATED, "(P + C + A) / 2 = 44 / 2 = 22 ms"),
            (ONE_FOR_TWO, "max(2 P, 2 T, C + A) / 2 = max(40, 4, 24) / 2 = 20 ms"),
            (TURNS, "max(P / 2, T, C) = max(10, 2, 20) = 20 ms"),
            (TURNS_FOR_TWO, "max(P, 2 T, C + A) / 2 = max(20, 4, 24) / 2 = 12 ms"),
            ([Route("0", "1", ("1",))], "max(T / 2, P / 2 + C) = max(1, 30) = 30 ms"),
            (TRAINS_TOO, "max(2 P + C, P + C + A, T) / 2 = max(60, 44, 2) / 2 = 30 ms"),
        ):
            with self.subTest(expected=expected):
                formula, _ = analytic_bound(routes, means(0.02, 0.02, 0.002), 2, 0.004)
                self.assertEqual(formula, expected)

    def test_readers_are_a_resource_of_each_data_device(self):
        mean_s = means(0.02, 0.02, read_s=0.09)
        for routes, expected in (
            (DUAL, "max(P, C, R / 2) = max(20, 20, 45) = 45 ms"),
            (REPLICATED, "max(P + C, R / 2) / 2 = max(40, 45) / 2 = 22.5 ms"),
            (
                [*ONE_FOR_TWO, Route("3", "3")],
                "max(2 P, P + C, R) / 3 = max(40, 40, 90) / 3 = 30 ms",
            ),
        ):
            self.assertEqual(analytic_bound(routes, mean_s, 2)[0], expected)

    def test_ring_sends_twice_the_gradient_minus_one_share(self):
        actual = [ring_all_reduce_s(1.0, replicas) for replicas in (1, 2, 4)]
        self.assertEqual(actual, [0.0, 1.0, 1.5])

    def test_table_ends_with_the_best_placement_and_its_flags(self):
        found = ranked(equal_gpus(4), means(1, 4))
        lines = format_table(found)
        self.assertRegex(lines[-1], "^best: replicated, .*--model-gpus 0 1 2 3")
        self.assertEqual(len(lines), 1 + len(found) + 1)


class PlanCommandTest(FolderCase):
    """The command `plan`, called in this process."""

    def run_plan(self, arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = report_errors(lambda: plan_command.main(arguments.split()))
        return code, out.getvalue()

    def test_the_table_and_the_file_have_all_placements(self):
        file = self.folder / "placements.json"
        times = "--produce-ms 20 --step-ms 20 --read-ms 10"
        code, out = self.run_plan(f"--gpus 2 {times} --json {file}")
        self.assertEqual(code, 0, out)
        bounds_s = {p["name"]: p["bound_s"] for p in json.loads(file.read_text())["placements"]}
        # A data GPU that is busy for the whole step takes no rows.
        self.assertEqual(set(bounds_s), {"single", "dual", "replicated"})
        self.assertAlmostEqual(bounds_s["single"], 0.04)
        self.assertIn(
            "best: dual, at most 50.00 batches/s (flags: --data-gpu 0 --model-gpu 1)", out
        )

    def test_speeds_give_shares_and_the_distance_to_the_bound(self):
        flags = "--gpus 2 --speeds 1 0.5 --produce-ms 8 --step-ms 100 --batch-size 15"
        code, out = self.run_plan(flags)
        self.assertEqual(code, 0, out)
        self.assertIn("--model-gpus 0 1 --batch-shares 20 10)", out)
        self.assertIn("100% of what all GPUs would do", out)
        code, out = self.run_plan(flags.replace("15", "3000"))
        self.assertIn("--batch-shares 4000 2000)", out)
        code, out = self.run_plan("--gpus 2 --speeds 1 --produce-ms 8 --step-ms 100")
        self.assertEqual(code, 2)
        self.assertIn("--speeds has 1 numbers for 2 GPUs. Give one for each.", out)

    def test_user_errors_exit_with_code_2(self):
        times = "--produce-ms 20 --step-ms 20"
        for message, flags in (
            ("nothing can be compared. Give one", "--gpus 2 --produce-ms 0 --step-ms 0"),
            ("there is no folder", f"--gpus 1 {times} --json {self.folder}/none/x.json"),
        ):
            with self.subTest(message=message):
                code, output = self.run_plan(flags)
                self.assertEqual(code, 2)
                self.assertIn(message, output)


if __name__ == "__main__":
    unittest.main()
