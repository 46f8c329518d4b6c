"""Wrong sentences for the right voice: which text each utterance gets, and which recording."""

import unittest
from dataclasses import dataclass

from benchmarks.worst_values import next_of_speaker, with_other_texts


@dataclass
class Spoken:
    text: str
    language: int
    voice: int


class WorstValuesTest(unittest.TestCase):
    def test_every_utterance_gets_another_text_of_its_language_if_possible(self):
        for languages, of_same_language in (
            *(((0, 1, 0, 0, 1), 5), ((0, 1, 2, 0), 2)),
            *(((0, 0, 1), 2), ((1, 0, 0), 2), ((0, 1, 2), 0)),
        ):
            with self.subTest(languages=languages):
                spoken = [Spoken(f"text {i}", of, i) for i, of in enumerate(languages)]
                pairs = list(zip(spoken, with_other_texts(spoken), strict=True))
                self.assertTrue(all(old.text != new.text for old, new in pairs))
                self.assertTrue(all(old.voice == new.voice for old, new in pairs))
                equal = sum(old.language == new.language for old, new in pairs)
                self.assertEqual(equal, of_same_language)

    def test_another_sentence_is_of_the_same_speaker(self):
        self.assertEqual(next_of_speaker([4, 5, 4, 6, 4, 6]), {0: 2, 2: 4, 4: 0, 3: 5, 5: 3})
