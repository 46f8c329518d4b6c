"""Measure what `evaluate.py` finds of words that are left out of recordings, or repeated in them.

    python utilities/human/corpora.py festvox-ru
    python train_main.py --train-data data/human/festvox-ru/metadata_train.csv \\
        --val-data data/human/festvox-ru/metadata_eval.csv --max-steps 1000 --run ru
    python benchmarks/planted_errors.py runs/ru data/human/festvox-ru/metadata_eval.csv

Some words of each recording are cut out of it, or repeated, one at a time. Where a word begins and
ends is known by the alignment of the recording as it is.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from myxtts.tasks import loading

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded
from myxtts.corpus.layouts import read_corpus
from myxtts.text.frontend import symbols_of

THRESHOLDS = (0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0)  # nats
WORDS_MS = (0, 150, 300, 600, 10_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="run of a voice, whose aligner is measured")
    parser.add_argument("corpus", type=Path, help="recordings that it was not trained on")
    parser.add_argument("--checkpoint", help="its name; by default the best")
    parser.add_argument("--recordings", type=bounded(int, 1), default=100, help="at most")
    parser.add_argument("--words", type=bounded(int, 1), default=8, help="of each, at most")
    options = parser.parse_args()
    from myxtts.checkpoints.trained_run import TrainedRun
    from myxtts.placement import devices
    from myxtts.tasks.evaluation.speech import acoustic_features
    from myxtts.tasks.tts.utterances import token_log_probs
    from myxtts.tasks.tts.word_errors import split_words, word_gains

    device = devices.configure_default().routes[0].model
    trained = TrainedRun.open_for_use(options.run, options.checkpoint)
    network = loading.load_network(trained, device, "tts")
    vocabulary, frontend = trained.record.vocabulary, trained.record.settings.data.text_frontend
    read = read_corpus(options.corpus, "en")
    untouched, planted, lengths_ms = [], [], []
    for number, row in enumerate(read.rows[: options.recordings]):
        symbols = symbols_of(row.text, row.language, frontend)
        if vocabulary.symbols.unknown(symbols):
            continue
        tokens = vocabulary.symbols.encode(symbols)
        words = split_words(symbols, 1 + np.arange(len(tokens)))

        def align(wave, symbols=symbols, tokens=tokens):
            (features,) = acoustic_features([wave], device)
            return token_log_probs(network, features.mel, symbols, tokens, device)

        wave = read_wave(read.folder / row.audio)
        log_probs = align(wave)
        untouched.append(word_gains(log_probs, words).max(axis=1))
        spans = word_samples(log_probs, words)
        count = min(options.words, len(spans))
        for start, stop in random.Random(number).sample(spans, count):
            waves = [
                np.concatenate([wave[:start], wave[stop:]]),
                np.concatenate([wave[:stop], wave[start:]]),
            ]
            if len(waves[0]) > FFT_SAMPLES:
                gains = [word_gains(align(of), words)[kind].max() for kind, of in enumerate(waves)]
                planted.append(gains)
                lengths_ms.append(1000 * (stop - start) / SAMPLE_RATE_HZ)
    print_rates(np.array(untouched), np.array(planted), np.array(lengths_ms))
    return 0


def word_samples(log_probs: np.ndarray, words: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Return the first sample of each word, and of what follows it, on the likeliest path."""
    from myxtts.tasks.tts.word_errors import word_paths

    until, since = word_paths(log_probs, words)
    cuts = HOP_SAMPLES * (until + since).argmax(axis=0)[1:-1]
    return list(itertools.pairwise(cuts.tolist()))


def print_rates(untouched: np.ndarray, planted: np.ndarray, lengths_ms: np.ndarray) -> None:
    from myxtts.tasks.tts.word_errors import MIN_GAINS

    print(
        f"{len(untouched)} recordings, {len(planted)} words of each kind; thresholds {MIN_GAINS}\n"
    )
    print("| threshold, nats | left out: false alarms | found | repeated: false alarms | found |")
    print("|---|---|---|---|---|")
    for threshold in THRESHOLDS:
        alarms, found = (untouched > threshold).sum(axis=0), (planted > threshold).mean(axis=0)
        rates = f"{alarms[0]} | {found[0]:.1%} | {alarms[1]} | {found[1]:.1%}"
        print(f"| {threshold:g} | {rates} |")
    alarms = (untouched > MIN_GAINS).any(axis=1)
    print(f"\nrecordings with a false alarm: {alarms.sum()} ({alarms.mean():.1%})\n")
    print("| duration of the word | words | left out, found | repeated, found |")
    print("|---|---|---|---|")
    for lower, upper in itertools.pairwise(WORDS_MS):
        selected = (lengths_ms >= lower) & (lengths_ms < upper)
        if selected.any():
            found = (planted[selected] > MIN_GAINS).mean(axis=0)
            print(f"| {lower}–{upper} ms | {selected.sum()} | {found[0]:.1%} | {found[1]:.1%} |")


if __name__ == "__main__":
    sys.exit(report_errors(main))
