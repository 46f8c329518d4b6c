"""What the counts of skipped and repeated words find and miss: sentences said again, with and without a planted fault.

    python benchmarks/planted_errors.py

espeak-ng says each sentence in the voice of the demo corpus, which stands for the recording, and then in others: at
another rate, at another pitch, with another timbre. These have no fault. Then a word is cut out of each of them, and
one is said twice.
"""

import argparse
import itertools
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.data.demo_corpus import load_grammar, speak_trimmed
from myxtts.evaluation.boundaries import Phoneme, word_spans
from myxtts.evaluation.planted_errors import plant_errors, random_word
from myxtts.text.espeak import EspeakVoice, isolated_copy

RECORDED = EspeakVoice("en", "", 50, 165)
AGAIN = {
    "165 words a minute": RECORDED,
    "145 words a minute": EspeakVoice("en", "", 50, 145),
    "180 words a minute": EspeakVoice("en", "", 50, 180),
    "m1, lower": EspeakVoice("en", "m1", 44, 165),
    "m3, higher, 175": EspeakVoice("en", "m3", 56, 175),
    "Annie": EspeakVoice("en", "Annie", 50, 165),
}
WORDS_MS = (0, 60, 80, 100, 2000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sentences", type=bounded(int, 1), default=150, help="(default 150)")
    asked = parser.parse_args()
    from myxtts.evaluation.acoustic_metrics import utterance_metrics  # and TensorFlow
    from myxtts.evaluation.speech import acoustic_features, copy_synthesis

    texts = load_grammar("en").draw(asked.sentences, random.Random(0))
    with isolated_copy() as espeak:
        said = {name: [_said(espeak, text, voice) for text in texts] for name, voice in AGAIN.items()}
        recorded = acoustic_features([wave for wave, _ in (_said(espeak, text, RECORDED) for text in texts)], "/CPU:0")

    def faults(waves) -> np.ndarray:
        """bool [sentences, 2]: skipped, repeated."""
        found = (utterance_metrics(*pair) for pair in zip(recorded, acoustic_features(waves, "/CPU:0"), strict=True))
        return np.array([(one.has_deletion, one.has_insertion) for one in found])

    alarms = faults(copy_synthesis([sound.mel for sound in recorded], "/CPU:0"))
    print("| said again | skipped | repeated | cut, found | said twice, found |\n|---|---|---|---|---|")
    print(f"| copy synthesis | {alarms[:, 0].sum()} | {alarms[:, 1].sum()} | – | – |")
    words_ms, cut_found, doubled_found = [], [], []
    for name, ones in said.items():
        waves, phonemes = [wave for wave, _ in ones], [known for _, known in ones]
        alarms, (cut, doubled) = faults(waves), plant_errors(waves, phonemes)
        cut_found.append(faults(cut)[:, 0])
        doubled_found.append(faults(doubled)[:, 1])
        words_ms += [1000 * np.diff(random_word(number, word_spans(known)))[0] for number, known in enumerate(phonemes)]
        counts = (alarms[:, 0], alarms[:, 1], cut_found[-1], doubled_found[-1])
        print(f"| {name} | {' | '.join(str(count.sum()) for count in counts)} |")
    lengths, cut_found, doubled_found = np.array(words_ms), np.concatenate(cut_found), np.concatenate(doubled_found)
    print("\n| length of the word | words | cut, found | said twice, found |\n|---|---|---|---|")
    for least, most in itertools.pairwise(WORDS_MS):
        own = (lengths >= least) & (lengths < most)
        if own.any():
            print(
                f"| {least}–{most} ms | {own.sum()} | {cut_found[own].mean():.0%} | {doubled_found[own].mean():.0%} |"
            )
    return 0


def _said(espeak, text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[Phoneme]]:
    samples, phonemes = speak_trimmed(espeak, text, voice)
    return samples.astype(np.float32) / 32768.0, [Phoneme(*one) for one in phonemes]


if __name__ == "__main__":
    sys.exit(report_errors(main))
