"""Measure what the deletion and insertion metrics detect in sentences with and without planted
errors.

    python benchmarks/planted_errors.py

espeak-ng synthesizes each sentence with the voice of the demo corpus, which represents the
recording, and then with other voices: another rate, pitch or timbre. These have no errors. Then one
word of each sentence is deleted or repeated.
"""

import argparse
import itertools
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.data.demo_corpus import load_grammar, speak_trimmed
from myxtts.text.espeak import EspeakVoice, isolated_copy

if TYPE_CHECKING:
    from myxtts.evaluation.boundaries import Phoneme

RECORDED = EspeakVoice("en", "", 50, 165)
SYNTHESES = {
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
    parser.add_argument(
        "--sentences", type=bounded(int, 1), default=150, help="number of sentences (default 150)"
    )
    options = parser.parse_args()
    from myxtts.audio.vocoder import GriffinLim  # imports TensorFlow
    from myxtts.evaluation.boundaries import plant_errors, random_word, word_spans
    from myxtts.evaluation.metrics import utterance_metrics
    from myxtts.evaluation.speech import acoustic_features, vocode_mels

    texts = load_grammar("en").draw(options.sentences, random.Random(0))
    with isolated_copy() as espeak:
        syntheses = {
            name: [_synthesize(espeak, text, voice) for text in texts]
            for name, voice in SYNTHESES.items()
        }
        recorded = acoustic_features(
            [_synthesize(espeak, text, RECORDED)[0] for text in texts], "/CPU:0"
        )

    def detect(waves) -> np.ndarray:
        """Return bool [sentences, 2]: has a deletion, has an insertion."""
        pairs = zip(recorded, acoustic_features(waves, "/CPU:0"), strict=True)
        metrics = [utterance_metrics(*pair) for pair in pairs]
        return np.array(
            [(utterance.has_deletion, utterance.has_insertion) for utterance in metrics]
        )

    false_alarms = detect(
        vocode_mels(GriffinLim(), [features.mel for features in recorded], "/CPU:0")
    ).sum(axis=0)
    print(
        "| synthesized again | deletions | insertions | deleted, detected | inserted, detected"
        " |\n|---|---|---|---|---|"
    )
    print(f"| copy synthesis | {false_alarms[0]} | {false_alarms[1]} | – | – |")
    words_ms, deletions, insertions = [], [], []
    for name, sentences in syntheses.items():
        waves, alignments = [wave for wave, _ in sentences], [phonemes for _, phonemes in sentences]
        false_alarms, (deleted, inserted) = (
            detect(waves).sum(axis=0),
            plant_errors(waves, alignments),
        )
        deletions.append(detect(deleted)[:, 0])
        insertions.append(detect(inserted)[:, 1])
        spans = [
            random_word(number, word_spans(phonemes)) for number, phonemes in enumerate(alignments)
        ]
        words_ms += [1000 * (end_s - start_s) for start_s, end_s in spans]
        counts = (*false_alarms, deletions[-1].sum(), insertions[-1].sum())
        print(f"| {name} | {' | '.join(map(str, counts))} |")
    durations_ms, all_deletions, all_insertions = (
        np.array(words_ms),
        np.concatenate(deletions),
        np.concatenate(insertions),
    )
    print(
        "\n| duration of the word | words | deleted, detected | inserted, detected"
        " |\n|---|---|---|---|"
    )
    for lower, upper in itertools.pairwise(WORDS_MS):
        selected = (durations_ms >= lower) & (durations_ms < upper)
        if selected.any():
            rates = f"{all_deletions[selected].mean():.0%} | {all_insertions[selected].mean():.0%}"
            print(f"| {lower}–{upper} ms | {selected.sum()} | {rates} |")
    return 0


def _synthesize(espeak, text: str, voice: EspeakVoice) -> tuple[np.ndarray, "list[Phoneme]"]:
    from myxtts.evaluation.boundaries import Phoneme

    samples, phonemes = speak_trimmed(espeak, text, voice)
    return samples.astype(np.float32) / 32768.0, [Phoneme(*phoneme) for phoneme in phonemes]


if __name__ == "__main__":
    sys.exit(report_errors(main))
