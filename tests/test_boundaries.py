"""Boundaries of phonemes: where they are, and how far an alignment is off."""

import json
import tempfile
import unittest
from pathlib import Path

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.errors import DataError
from myxtts.evaluation.boundaries import (
    Boundary,
    Phoneme,
    aligned_s,
    alignment_metrics,
    boundaries,
    boundary_metrics,
    phoneme_class,
    read_alignments,
)
from myxtts.text.symbols import SymbolTable
from tests.tiny import utterance


class BoundaryTest(unittest.TestCase):
    #            0    1     2    3    4    5    6    7    8    9
    TOKEN_SYMBOLS = ("", "t", "ˈ", "u", "ː", " ", "s", "ɪ", "s", "")

    def phonemes(self, *spans) -> list[Phoneme]:
        return [Phoneme(*span) for span in spans]

    def test_classes_of_phonemes(self):
        for symbol, name in (
            *(
                ("", "silence"),
                (" ", "silence"),
                ("ˈuː", "vowel"),
                ("ˌɛɹ", "vowel"),
                ("dʒ", "affricate"),
            ),
            *(("d", "stop"), ("ʒ", "fricative"), ("ŋ", "nasal"), ("ɹ", "approximant")),
        ):
            self.assertEqual(phoneme_class(symbol), name, symbol)

    def test_boundaries_are_at_the_tokens_of_their_phonemes(self):
        phonemes = self.phonemes(
            *(("", 0, 0.1), ("t", 0.1, 0.2), ("ˈuː", 0.2, 0.3), (" ", 0.3, 0.35)),
            *(("s", 0.35, 0.4), ("ɪ", 0.4, 0.5), ("s", 0.5, 0.6), ("", 0.6, 0.7)),
        )
        self.assertEqual(
            [tuple(boundary) for boundary in boundaries(self.TOKEN_SYMBOLS, phonemes)],
            [
                ("silence", "stop", 0.1, 1, False),
                ("stop", "vowel", 0.2, 2, False),
                ("vowel", "silence", 0.3, 4, True),
                ("silence", "fricative", 0.35, 6, False),
                ("fricative", "vowel", 0.4, 7, False),
                ("vowel", "fricative", 0.5, 8, False),
                ("fricative", "silence", 0.6, 8, True),
            ],
        )
        self.assertEqual(
            [
                (boundary.kind, boundary.is_reliable)
                for boundary in boundaries(self.TOKEN_SYMBOLS, phonemes)
            ],
            [
                *(("onset", True), ("between", False), ("offset", True), ("onset", True)),
                *(("between", True), ("between", True), ("offset", True)),
            ],
        )

    def test_gaps_and_phonemes_of_0_s_are_left_out(self):
        phonemes = self.phonemes(
            *(("t", 0.1, 0.2), ("ˈuː", 0.2, 0.3), (" ", 0.3, 0.3)),
            *(("s", 0.3, 0.4), ("ɪ", 0.4, 0.4), ("s", 0.4, 0.6)),
        )
        true_s = [boundary.true_s for boundary in boundaries(self.TOKEN_SYMBOLS, phonemes)]
        self.assertEqual(true_s, [0.1, 0.2, 0.6])

    def test_length_marks_may_be_missing_but_no_other_letters(self):
        self.assertIsNone(
            boundaries(self.TOKEN_SYMBOLS, self.phonemes(("t", 0, 1), ("ˈu", 1, 2), ("s", 2, 3)))
        )
        whole = (("t", 0, 1), ("ˈu", 1, 2), ("s", 2, 3), ("ɪ", 3, 4), ("s", 4, 5))
        self.assertEqual(
            [boundary.token for boundary in boundaries(self.TOKEN_SYMBOLS, self.phonemes(*whole))],
            [1, 2, 7, 8, 8],
        )
        self.assertIsNone(boundaries(self.TOKEN_SYMBOLS, ()))

    def test_aligned_times_are_where_the_path_passes_the_tokens(self):
        path, frame_s = np.array([0, 1, 1, 2, 3, 3, 4, 4, 5]), HOP_SAMPLES / SAMPLE_RATE_HZ
        actual = aligned_s(path, Boundary("silence", "vowel", 0.0, 2, False))
        self.assertAlmostEqual(actual, 3 * frame_s)
        actual = aligned_s(path, Boundary("vowel", "silence", 0.0, 3, True))
        self.assertAlmostEqual(actual, 6 * frame_s)

    def test_metrics_of_known_errors(self):
        metrics = boundary_metrics("boundary", np.array([-30.0, -10.0, 20.0]))
        self.assertEqual(metrics["boundary_signed_median"], -10.0)
        self.assertEqual(metrics["boundary_absolute_median"], 20.0)
        self.assertAlmostEqual(metrics["boundary_within_20_ms"], 2 / 3)

    def test_alignments_are_read_and_a_malformed_line_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "alignments.jsonl"
            good = {"id": "a", "phonemes": [["", 0, 0.1], ["t", 0.1, 0.2]]}
            file.write_text(
                json.dumps(good) + "\n" + json.dumps({"id": "b", "phonemes": []}), encoding="utf-8"
            )
            actual = read_alignments(file)
            self.assertEqual(actual, {"a": [("", 0.0, 0.1), ("t", 0.1, 0.2)], "b": []})
            huge = f'{{"id": "c", "phonemes": [["a", 0, 1{"0" * 400}]]}}'
            for bad in (
                "{",
                "[]",
                '{"id": "c"}',
                '{"id": "c", "phonemes": [[" ", "x", 1]]}',
                "null",
                huge,
                "[" * 30_000,
            ):
                file.write_text(f"{json.dumps(good)}\n{bad}\n", encoding="utf-8")
                with self.assertRaisesRegex(DataError, "line 2"):
                    read_alignments(file)
            for times in ("NaN, 1", "0, Infinity", "-1, 0", "2, 1"):
                file.write_text(f'{{"id": "c", "phonemes": [["a", {times}]]}}', encoding="utf-8")
                with self.assertRaisesRegex(DataError, "line 1.*a time is negative, not finite"):
                    read_alignments(file)
            file.write_bytes(json.dumps(good).encode() + b'\n{"id": "caf\xe9", "phonemes": []}\n')
            with self.assertRaisesRegex(DataError, "line 2.*UnicodeDecodeError"):
                read_alignments(file)
            with self.assertRaisesRegex(DataError, "cannot be read: No such file"):
                read_alignments(file.with_name("none.jsonl"))

    def test_only_reliable_boundaries_of_matching_texts_are_measured(self):
        symbols = SymbolTable(("a", "n"))
        tokens = np.array([1, 4, 3, 2])  # begin, n, a, end
        utterances = [utterance(name, tokens, np.arange(4)) for name in ("x.wav", "y.wav", "z.wav")]
        alignments = {
            "x": self.phonemes(
                ("", 0, 0.02), ("n", 0.02, 0.03), ("a", 0.03, 0.04), ("", 0.04, 0.05)
            ),
            "y": self.phonemes(("", 0, 0.02), ("m", 0.02, 0.03)),
        }
        metrics, note = alignment_metrics(utterances, alignments, symbols)
        frame_ms = 1000 * HOP_SAMPLES / SAMPLE_RATE_HZ
        actual = metrics["boundary_onset_signed_median"]["synthesized"]
        self.assertAlmostEqual(actual, frame_ms - 20)
        actual = metrics["boundary_offset_signed_median"]["synthesized"]
        self.assertAlmostEqual(actual, 3 * frame_ms - 40)
        self.assertNotIn("boundary_between_signed_median", metrics)
        self.assertIn("2 phoneme boundaries (1 offset, 1 onset), without 1 whose", note)
        self.assertIn("2 recordings whose text and phonemes differ", note)
        self.assertEqual(alignment_metrics(utterances, {}, symbols)[0], {})


if __name__ == "__main__":
    unittest.main()
