"""The warning about an alignment that is none, from the reports of a voice."""

import unittest
from unittest import mock

from myxtts.report import alignment
from myxtts.report.alignment import AlignmentWarning


class AlignmentWarningTest(unittest.TestCase):
    def messages(self, warning: AlignmentWarning, *reports) -> list[str]:
        """Return what is logged at reports of (step, evidence, tokens of one frame)."""
        with mock.patch.object(alignment.log, "warning") as logged:
            for step, evidence, short in reports:
                warning(step, {"alignment_evidence": evidence, "one_frame_tokens": short})
            warning(10_000, {"validation_loss": 1.0})
        return [call.args[0] % call.args[1:] for call in logged.call_args_list]

    def test_it_warns_once_by_step_500_with_what_is_wrong(self):
        for evidence, short, words in (
            (0.1, 0.2, "10% explained by the recordings"),
            (0.6, 0.5, "60% explained by the recordings, 50% of the tokens with one frame"),
        ):
            reports = [(step, evidence, short) for step in range(100, 1100, 100)]
            (message,) = self.messages(AlignmentWarning(), *reports)
            self.assertIn(f"at step 400: {words}", message)

    def test_a_good_alignment_is_not_warned_about_because_of_a_bad_start_or_a_batch(self):
        figures = [0.05, 0.5, 0.5, 0.3, 0.2, 0.5, 0.6]
        reports = [(100 * n, evidence, 0.1) for n, evidence in enumerate(figures, 1)]
        warning = AlignmentWarning()
        self.assertEqual(self.messages(warning, *reports), [])
        expected = "42% explained by the recordings, 10% of the tokens with one frame (good)"
        self.assertEqual(warning.line, expected)

    def test_many_tokens_of_one_frame_are_no_good_alignment(self):
        warning = AlignmentWarning()
        self.assertEqual(self.messages(warning, (3000, 0.54, 0.25)), [])
        self.assertTrue(warning.line.endswith("25% of the tokens with one frame (fair)"))

    def test_one_report_is_enough_and_other_tasks_have_no_alignment(self):
        warning = AlignmentWarning()
        self.assertEqual(warning.line, "")
        self.assertEqual(len(self.messages(warning, (500, 0.1, 0.9))), 1)
        self.assertTrue(warning.line.endswith("(bad)"))
