"""Measure what the scores of a voice are at worst: the right voice with the wrong sentence.

    python -m myxtts evaluate --run runs/demo
    python benchmarks/worst_values.py runs/demo

shuffled texts: each held-out utterance is synthesized with the text of another one, of the same
language if there is one. A score near this value means that the text does not come through.

another sentence, for the distortion: the next recording of the same speaker instead of this one.
People never say a sentence twice alike, so the distortion of a perfect voice is far above that of
copy synthesis; this is where nothing of the sentence is left.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from myxtts.tasks import loading

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

if TYPE_CHECKING:
    from myxtts.tasks.evaluation.held_out import Utterance


def main() -> int:
    options = parse()
    # Imports TensorFlow, which takes seconds; --help does not need it.
    from myxtts.base.errors import DataError
    from myxtts.checkpoints.trained_run import TrainedRun
    from myxtts.placement.devices import configure_default
    from myxtts.tasks.evaluation import held_out, metrics, speech
    from myxtts.tasks.evaluation.table import ColumnScore
    from myxtts.tasks.tts import evaluation as tts

    route = configure_default().routes[0]
    trained = TrainedRun.open_for_use(options.run, options.checkpoint)
    corpus = held_out.load_held_out(trained, options.run)
    chosen = held_out.EvaluationOptions(
        utterances=options.utterances,
        variety=options.variety,
        guidance=options.guidance,
        asr=options.asr,
        perceptual=False,
    )
    evaluation = held_out.Evaluation(options.run, trained.record, corpus, chosen, route)
    vocoder = loading.load_vocoder(trained.select_vocoder(options.vocoder), route.model)
    network = loading.load_network(trained, route.model, "tts")
    evaluator = tts.TTSEvaluator(evaluation, network, {"": vocoder})
    utterances = evaluator.utterances
    if len(utterances) == 1:
        raise DataError("a single utterance has no other text: hold out two or more.")
    mels = evaluator.predict(with_other_texts(utterances))
    waves = speech.vocode_mels(vocoder, mels, route.model)
    columns = {"shuffled_texts": evaluator.column(waves)}
    rows = range(len(utterances))
    measured = tts.column_metrics(rows, columns, {}, evaluator.references)
    cut = [metrics.trimmed(features).mel for features in evaluator.recorded]
    others = next_of_speaker([utterance.speaker for utterance in utterances])
    others_db = [metrics.align(cut[row], cut[other])[1].mean() for row, other in others.items()]
    if others_db:
        measured["mel_cepstral_distortion"]["another_sentence"] = float(np.mean(others_db))
    score = ColumnScore(
        run=str(options.run),
        checkpoint=trained.checkpoint.path.name,
        utterances=len(utterances),
        columns=("shuffled_texts", "another_sentence"),
        metrics=measured,
        groups={},
        notes=(f"{len(utterances)} {corpus.source}",),
    )
    print(score.table())
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="run of a voice")
    parser.add_argument("--checkpoint", help="its name; by default the best")
    parser.add_argument("--utterances", type=bounded(int, 1), default=50, help="at most")
    parser.add_argument("--variety", type=bounded(float, 0.0), help="default: the run's")
    parser.add_argument("--guidance", type=bounded(float, 0.0), help="default: the run's")
    parser.add_argument("--vocoder", help="run of a vocoder; default: the run's")
    parser.add_argument("--asr", type=Path, help="run of a recogniser, for error rates")
    return parser.parse_args()


def with_other_texts(utterances: "Sequence[Utterance]") -> "list[Utterance]":
    """Return the utterances with texts of others, of the same language where possible."""
    by_language: dict[int, list[int]] = defaultdict(list)
    for index, utterance in enumerate(utterances):
        by_language[utterance.language].append(index)
    others = {}
    for indices in by_language.values():
        others |= dict(zip(indices, indices[1:] + indices[:1], strict=True))
    # Utterances that are alone in their language take turns rather than keep their texts.
    alone = [index for index, other in others.items() if index == other]
    others |= dict(zip(alone, alone[1:] + alone[:1], strict=True))
    if len(alone) == 1:
        others[alone[0]] = alone[0] - 1  # of the first, the last
    shuffled = []
    for index, voice in enumerate(utterances):
        text = utterances[others[index]]
        shuffled.append(replace(voice, text=text.text, language=text.language))
    return shuffled


def next_of_speaker(speakers: Sequence[int]) -> dict[int, int]:
    """Return the row of another recording of the same speaker for each row that has one."""
    by_speaker: dict[int, list[int]] = defaultdict(list)
    for row, speaker in enumerate(speakers):
        by_speaker[speaker].append(row)
    return {
        row: other
        for rows in by_speaker.values()
        if len(rows) > 1
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
    }


if __name__ == "__main__":
    sys.exit(report_errors(main))
