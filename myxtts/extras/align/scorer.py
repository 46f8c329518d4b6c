"""The aligner of a voice alone: how well sounds fit symbols, learnt from texts and their sound."""

import random
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import frame_count
from myxtts.audio.mel import log_mel
from myxtts.tasks.evaluation.speech import pad_rows
from myxtts.tasks.layers import length_mask, normalised_mel
from myxtts.tasks.tts import alignment
from myxtts.tasks.tts.aligner import Aligner
from myxtts.text.symbols import PADDING_ID

BATCH_UTTERANCES = 8
LEARNING_RATE = 2e-3
MOST_TIMES = 4


class SymbolScorer:
    """An aligner that may learn, and scores any symbol at any frame.

    A sound has no place in a text here, so that a frame is compared with the average of all
    symbols, which occur as often as `shares` says, float32 [symbols].
    """

    def __init__(self, aligner: Aligner, shares: np.ndarray, device: str):
        self.log_shares = np.log(np.maximum(shares, 1e-6)).astype(np.float32)
        symbols = np.arange(len(shares), dtype=np.int32)[None]
        optimizer = keras.optimizers.Adam(LEARNING_RATE)

        def mel_of(wave, samples):
            frames = frame_count(samples)
            mel = normalised_mel(log_mel(wave, samples))
            return mel, length_mask(frames, tf.shape(mel)[1], tf.float32)[:, :, 0]

        def learn(wave, samples, tokens, token_count):
            with tf.device(device):
                mel, real = mel_of(wave, samples)
                with tf.GradientTape() as tape:
                    scores, _ = aligner(mel, real, tokens, token_count)
                    sums = alignment.path_losses(
                        scores, real, token_count, alignment.sum_over_paths
                    )
                    loss = tf.reduce_sum(sums) / tf.reduce_sum(real)
                variables = aligner.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)

        def gains(wave, samples):
            with tf.device(device):
                mel, real = mel_of(wave, samples)
                products = aligner.products(mel, real, symbols)[0]
                average = tf.reduce_logsumexp(products + self.log_shares, -1, keepdims=True)
                return products - average

        def path(scores):
            with tf.device(device):
                frames, tokens = tf.unstack(tf.shape(scores))
                return alignment.search_by_frames(scores[None], tokens[None], frames[None])[0]

        waves, rows, counts = (
            tf.TensorSpec([None, None]),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None], tf.int32),
        )
        signature = [waves, counts, rows, counts]
        self._learn = tf.function(learn, input_signature=signature, autograph=False)
        self._gains = tf.function(gains, input_signature=signature[:2], autograph=False)
        self._path = tf.function(path, input_signature=[waves], autograph=False)

    def learn(self, spoken: Sequence[tuple[np.ndarray, np.ndarray]], steps: int) -> None:
        """Learn from waves, float32 [samples], and the tokens of their texts, int32 [N].

        Few are not heard more than MOST_TIMES each: others of the person would fit worse.
        """
        steps = min(steps, -(-MOST_TIMES * len(spoken) // BATCH_UTTERANCES))
        # Utterances of similar lengths share a batch, so that little is padded.
        order = sorted(range(len(spoken)), key=lambda row: len(spoken[row][0]))
        source = random.Random(0)
        for _ in range(steps):
            first = source.randrange(max(len(order) - BATCH_UTTERANCES, 0) + 1)
            rows = [spoken[row] for row in order[first : first + BATCH_UTTERANCES]]
            waves, tokens = zip(*rows, strict=True)
            self._learn(*pad_rows(waves, 0.0), *pad_rows(tokens, PADDING_ID))

    def gains(self, wave: np.ndarray) -> np.ndarray:
        """Return how much better each symbol fits than the average, float32 [frames, symbols].

        In nepers of probability, for a wave, float32 [samples], that was cut from a recording.
        """
        return self._gains(wave[None], np.array([len(wave)], np.int32)).numpy()

    def path(self, scores: np.ndarray) -> np.ndarray:
        """Return the token of each frame of the best path: float32 [T, N] -> int [T]."""
        return self._path(scores).numpy()
