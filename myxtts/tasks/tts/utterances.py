"""The held-out utterances of a voice in its evaluation: read, spoken, and scored by its aligner."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import SILENCE
from myxtts.batches import corpora
from myxtts.batches.pipeline import held_out_pipeline
from myxtts.batches.plan import Pass
from myxtts.checkpoints.files import Record
from myxtts.config.synthesis import SynthesisOptions
from myxtts.corpus.sound import read_row
from myxtts.devicefeed.handover import HandOver
from myxtts.devicefeed.routes import Route
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation.held_out import MeasuredCorpus, Utterance
from myxtts.tasks.evaluation.speech import batches_of, pad_rows
from myxtts.tasks.layers import normalised_mel
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts.network import XTTS
from myxtts.text.words import SEPARATORS


# The held-out utterances pass the same feed and hand-over as in training, so that the network gets
# what it was trained on. Features and alignments are copied back to the host row by row.
def load_utterances(
    network: XTTS,
    corpus: MeasuredCorpus,
    route: Route,
    folder: Path,
    count: int,
    aligned: bool = False,
) -> list[Utterance]:
    """Return at most `count` utterances, selected by the run's seed, with paths if `aligned`."""
    manifest, config = corpus.manifest, corpus.config
    extractor = task_of(config).extractor(config, training=False)
    bucket = corpora.single_bucket_corpus(manifest, config)
    pipeline = held_out_pipeline(bucket, route, extractor, config, folder)
    hand_over = HandOver(network.BATCH_FIELDS, [route.model])
    utterances: list[Utterance] = []
    with pipeline.open_feed(Pass(epochs=1)) as feed:
        for ((planned, features, _),) in feed:
            (batch,) = hand_over([features])
            arrays = {name: value.numpy() for name, value in batch.items()}
            paths = np.zeros([len(planned.rows), 0], np.int64)
            if aligned:
                with tf.device(route.model):
                    paths = network.compiled_align(batch).numpy()
            for number, row in enumerate(planned.rows):
                frames = arrays["frames"][number]
                utterance = Utterance(
                    id=manifest.ids[row],
                    text=manifest.texts[row],
                    language=int(manifest.language[row]),
                    speaker=int(manifest.speaker[row]),
                    tokens=arrays["tokens"][number, : arrays["token_count"][number]],
                    wave=read_row(manifest, row, config.data.loudness),
                    mel=arrays["mel"][number, :frames],
                    reference=arrays["reference"][number, : arrays["reference_frames"][number]],
                    path=paths[number, :frames],
                )
                utterances.append(utterance)
            if len(utterances) >= count:
                break
    return utterances[:count]


def predict_mels(
    network: XTTS,
    record: Record,
    utterances: Sequence[Utterance],
    options: SynthesisOptions,
    device: str,
    throttle: Throttle = no_throttle,
) -> list[np.ndarray]:
    """Return log-mels of the texts of utterances with their references, [frames, 80]."""
    vocabulary, frontend = record.vocabulary, record.frontend
    tokens = []
    for of in utterances:
        symbols = frontend.symbols(of.text, vocabulary.languages[of.language])
        tokens.append(vocabulary.symbols.encode(symbols))
    predicted: list[np.ndarray] = []
    for rows in batches_of(len(tokens)):
        throttle()
        ids, counts = pad_rows(tokens[rows], 0)
        mels, frames = pad_rows([of.reference for of in utterances[rows]], SILENCE)
        languages = tf.constant([of.language for of in utterances[rows]])
        with tf.device(device):
            batch, lengths, _ = network.synthesize(ids, counts, languages, mels, frames, options)
        rows_of_batch = zip(batch.numpy(), lengths.numpy(), strict=True)
        predicted += [mel[:length] for mel, length in rows_of_batch]
    return predicted


def token_log_probs(
    network: XTTS, mel: np.ndarray, symbols: Sequence[str], tokens: np.ndarray, device: str
) -> np.ndarray:
    """Return log-probabilities of the tokens in each frame by the aligner of a voice, [T, 1 + N].

    Column 0 is the log-probability of a pause, which people also make where no mark is. Log-mel [T,
    80], the N - 2 symbols of the text, and their tokens with begin and end, int32 [N].
    """
    with tf.device(device):
        scores, _ = network.aligner(
            normalised_mel(tf.constant(mel[None])),
            tf.ones([1, len(mel)]),
            tf.constant(tokens[None]),
            tf.constant([len(tokens)]),
        )
    log_probs = scores[0].numpy()
    is_pause = np.array([True, *(symbol in SEPARATORS for symbol in symbols), True])
    return np.concatenate([log_probs[:, is_pause].max(axis=1, keepdims=True), log_probs], axis=1)
