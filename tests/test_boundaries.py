"""Boundaries of phonemes: where they are, and how far an alignment is off."""

import unittest

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np

from benchmarks._boundaries import (
    Boundary,
    Phoneme,
    aligned_s,
    alignment_figures,
    boundaries,
    boundary_figures,
    phoneme_class,
    read_alignments,
)
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.text.symbols import SymbolTable
from tests.fixtures import temporary_folder
from tests.tiny import utterance


class BoundaryTest(unittest.TestCase):
    #            0    1     2    3    4    5    6    7    8    9
    TOKEN_SYMBOLS = ("", "t", "ˈ", "u", "ː", " ", "s", "ɪ", "s", "")

    WHOLE = (("t", 0.1, 0.2), ("ˈuː", 0.2, 0.3), ("s", 0.35, 0.4), ("ɪ", 0.4, 0.5), ("s", 0.5, 0.6))

    def boundaries(self, *spans) -> list[Boundary] | None:
        return boundaries(self.TOKEN_SYMBOLS, [Phoneme(*span) for span in spans])

    def test_classes_of_phonemes(self):
        classes = "ˈuː:vowel ˌɛɹ:vowel dʒ:affricate d:stop ʒ:fricative ŋ:nasal ɹ:approximant"
        for pair in classes.split():
            symbol, _, name = pair.rpartition(":")
            self.assertEqual(phoneme_class(symbol), name, symbol)
        self.assertEqual((phoneme_class(""), phoneme_class(" ")), ("silence", "silence"))

    def test_boundaries_are_at_the_tokens_of_their_phonemes(self):
        sounds = list(self.WHOLE)
        found = self.boundaries(("", 0, 0.1), *sounds[:2], (" ", 0.3, 0.35), *sounds[2:])
        expected = [
            ("silence", "stop", 0.1, 1, False, "onset", True),
            ("stop", "vowel", 0.2, 2, False, "between", False),
            ("vowel", "silence", 0.3, 4, True, "offset", True),
            ("silence", "fricative", 0.35, 6, False, "onset", True),
            ("fricative", "vowel", 0.4, 7, False, "between", True),
            ("vowel", "fricative", 0.5, 8, False, "between", True),
            ("fricative", "silence", 0.6, 8, True, "offset", True),
        ]
        self.assertEqual([(*of, of.kind, of.is_reliable) for of in found], expected)

    def test_gaps_and_phonemes_of_0_s_are_left_out(self):
        found = self.boundaries(
            *(("t", 0.1, 0.2), ("ˈuː", 0.2, 0.3), (" ", 0.3, 0.3)),
            *(("s", 0.3, 0.4), ("ɪ", 0.4, 0.4), ("s", 0.4, 0.6)),
        )
        self.assertEqual([boundary.true_s for boundary in found], [0.1, 0.2, 0.6])

    def test_length_marks_may_be_missing_but_no_other_letters(self):
        short = [("t", 0, 1), ("ˈu", 1, 2), ("s", 2, 3), ("ɪ", 3, 4), ("s", 4, 5)]
        self.assertIsNone(self.boundaries(*short[:3]))
        found = self.boundaries(*short)
        self.assertEqual([boundary.token for boundary in found], [1, 2, 7, 8, 8])
        self.assertIsNone(self.boundaries())

    def test_aligned_times_are_where_the_path_passes_the_tokens(self):
        path, frame_s = np.array([0, 1, 1, 2, 3, 3, 4, 4, 5]), HOP_SAMPLES / SAMPLE_RATE_HZ
        for token, after_token, frame in ((2, False, 3), (3, True, 6)):
            actual_s = aligned_s(path, Boundary("vowel", "stop", 0.0, token, after_token))
            self.assertAlmostEqual(actual_s, frame * frame_s)

    def test_metrics_of_known_errors(self):
        values = list(boundary_figures("boundary", np.array([-30.0, -10.0, 20.0])).values())
        np.testing.assert_allclose(values, [-10.0, 20.0, 2 / 3])

    def test_alignments_are_read(self):
        file = temporary_folder(self.addCleanup) / "alignments.jsonl"
        self.assertEqual(read_alignments(file), {})
        file.write_text('{"id": "a", "phonemes": [["", 0, 0.1]]}\n{"id": "b", "phonemes": []}')
        self.assertEqual(read_alignments(file), {"a": [("", 0, 0.1)], "b": []})

    def test_only_reliable_boundaries_of_matching_texts_are_measured(self):
        symbols = SymbolTable(("a", "n"))
        tokens = np.array([1, 4, 3, 2])  # begin, n, a, end
        utterances = [utterance(name, tokens, np.arange(4)) for name in ("x.wav", "y.wav", "z.wav")]
        x = (("", 0, 0.02), ("n", 0.02, 0.03), ("a", 0.03, 0.04), ("", 0.04, 0.05))
        y = (("", 0, 0.02), ("m", 0.02, 0.03))
        alignments = {
            name: [Phoneme(*span) for span in spans] for name, spans in (("x", x), ("y", y))
        }
        figures, note = alignment_figures(utterances, alignments, symbols)
        frame_ms = 1000 * HOP_SAMPLES / SAMPLE_RATE_HZ
        for kind, error_ms in (("onset", frame_ms - 20), ("offset", 3 * frame_ms - 40)):
            self.assertAlmostEqual(figures[f"boundary_{kind}_signed_median"], error_ms)
        self.assertNotIn("boundary_between_signed_median", figures)
        self.assertIn("2 phoneme boundaries (1 offset, 1 onset), without 1 whose", note)
        self.assertIn("2 recordings whose text and phonemes differ", note)
