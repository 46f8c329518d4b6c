"""The held-out utterances that a voice speaks in its evaluation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.batches import corpora
from myxtts.batches.pipeline import held_out_pipeline
from myxtts.batches.plan import Pass
from myxtts.corpus.sound import read_row
from myxtts.devicefeed.handover import HandOver
from myxtts.devicefeed.routes import Route
from myxtts.tasks.evaluation.held_out import MeasuredCorpus, Utterance, UtteranceBatch
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts.network import XTTS


# The held-out utterances pass the same feed and hand-over as in training, so that the network gets
# what it was trained on. Features are copied back to the host row by row; whole batches stay on the
# device for the alignment.
def load_utterances(
    network: XTTS, corpus: MeasuredCorpus, route: Route, folder: Path, count: int
) -> tuple[list[Utterance], list[UtteranceBatch]]:
    """Return at most `count` utterances, selected by the run's seed, and batches of these first."""
    manifest, config = corpus.manifest, corpus.config
    extractor = task_of(config).extractor(config, training=False)
    bucket = corpora.single_bucket_corpus(manifest, config)
    pipeline = held_out_pipeline(bucket, route, extractor, config, folder)

    hand_over = HandOver(network.BATCH_FIELDS, [route.model])
    utterances: list[Utterance] = []
    batches = []
    with pipeline.open_feed(Pass(epochs=1)) as feed:
        for ((planned, features, _),) in feed:
            (batch,) = hand_over([features])
            batches.append((batch, len(planned.rows)))
            arrays = {name: value.numpy() for name, value in batch.items()}
            for number, row in enumerate(planned.rows):
                utterance = Utterance(
                    id=manifest.ids[row],
                    text=manifest.texts[row],
                    language=int(manifest.language[row]),
                    speaker=int(manifest.speaker[row]),
                    tokens=arrays["tokens"][number, : arrays["token_count"][number]],
                    wave=read_row(manifest, row, config.data.loudness),
                    mel=arrays["mel"][number, : arrays["frames"][number]],
                    reference=arrays["reference"][number, : arrays["reference_frames"][number]],
                    path=np.zeros(0, np.int64),
                )
                utterances.append(utterance)
            if len(utterances) >= count:
                break
    return utterances[:count], batches


def align_utterances(
    network: XTTS, utterances: Sequence[Utterance], batches: Sequence[UtteranceBatch], device: str
) -> list[Utterance]:
    """Return the utterances of batches with the alignments of the network on the device."""
    paths: list[np.ndarray] = []
    with tf.device(device):
        for batch, count in batches:
            paths += list(network.compiled_align(batch).numpy()[:count])
    rows = zip(utterances, paths, strict=False)
    return [replace(utterance, path=path[: len(utterance.mel)]) for utterance, path in rows]
