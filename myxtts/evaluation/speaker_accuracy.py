"""The fraction of synthesized utterances that a classifier takes for their speaker."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from myxtts.data.manifest import Manifest
from myxtts.evaluation.acoustic_metrics import AcousticFeatures
from myxtts.evaluation.held_out import Utterance, read_row, rows_of_each_speaker
from myxtts.evaluation.report import Metrics
from myxtts.evaluation.speakers import SpeakerClassifier, speaker_embedding
from myxtts.evaluation.speech import log_mels

RECORDINGS_PER_SPEAKER = 20  # for its centroid


def speaker_accuracy(
    training: Manifest,
    measured: Manifest,
    utterances: Sequence[Utterance],
    features: Mapping[str, Sequence[AcousticFeatures]],
    device: str,
) -> tuple[Metrics, str]:
    """Return the fraction of utterances that are classified as their speaker, and a note; needs
    several speakers.

    Args:
        training: has the recordings of the speakers seen in training.
        measured: has the recordings of the other speakers; those of `utterances` are left out.
        features: of `utterances` by column, with the column "recorded".
    """
    unseen = ~np.isin(measured.speaker, training.speaker)
    unseen &= ~np.isin(measured.ids, [utterance.id for utterance in utterances])
    seen_rows = rows_of_each_speaker(training, np.arange(len(training)), RECORDINGS_PER_SPEAKER)
    unseen_rows = rows_of_each_speaker(measured, np.flatnonzero(unseen), RECORDINGS_PER_SPEAKER)
    unseen_speakers = measured.speaker[unseen_rows]
    speakers = np.concatenate([training.speaker[seen_rows], unseen_speakers])
    count = len(np.unique(speakers))
    if count < 2:
        return {}, "speaker accuracy is left out: there is only one speaker"
    # One after the other: the recordings of 2,000 speakers would take 20 GB.
    waves = chain(
        (read_row(training, row) for row in seen_rows.tolist()),
        (read_row(measured, row) for row in unseen_rows.tolist()),
    )
    classifier = SpeakerClassifier(
        np.stack([*map(speaker_embedding, log_mels(waves, device))]), speakers
    )
    metrics: Metrics = {}
    groups = []
    for group, members in (
        ("seen", np.unique(training.speaker)),
        ("unseen", np.unique(unseen_speakers)),
    ):
        rows = [row for row, utterance in enumerate(utterances) if utterance.speaker in members]
        if rows:
            targets = [utterances[row].speaker for row in rows]
            accuracy: dict[str, float] = {
                column: classifier.accuracy([column_features[row].mel for row in rows], targets)
                for column, column_features in features.items()
            }
            recorded = accuracy.pop("recorded")
            groups.append(
                f"{len(rows)} utterances of {group} speakers ({recorded:.0%} of their recordings)"
            )
            metrics[f"speaker_accuracy_{group}"] = {**accuracy}
    if not groups:
        return (
            {},
            "speaker accuracy is left out: there are no other recordings of the utterances'"
            " speakers",
        )
    note = (
        f"speaker accuracy is among {count} speakers (chance {1 / count:.1%}), for"
        f" {' and '.join(groups)}"
    )
    return metrics, note
