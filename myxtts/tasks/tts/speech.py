"""Mels of a voice, and how sure it is of its texts, for its evaluation."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import SILENCE
from myxtts.checkpoints.files import Record
from myxtts.config.synthesis import SynthesisOptions
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation.held_out import Utterance
from myxtts.tasks.evaluation.speech import batches_of, pad_rows
from myxtts.tasks.layers import normalised_mel
from myxtts.tasks.tts.network import XTTS
from myxtts.text.words import SEPARATORS


def predict_mels(
    network: XTTS,
    record: Record,
    utterances: Sequence[Utterance],
    options: SynthesisOptions,
    device: str,
    throttle: Throttle = no_throttle,
) -> list[np.ndarray]:
    """Return log-mels of the texts of utterances with their references, [frames, 80]."""
    vocabulary = record.vocabulary
    frontend = record.frontend
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
