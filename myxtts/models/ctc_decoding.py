"""CTC decoding, from logits to text.

Shape legend: B batch, T frames, V symbols with the blank, U length of the longest text.
"""

from collections.abc import Sequence

import tensorflow as tf

from myxtts.text.ctc_feasibility import BLANK_ID
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable


def greedy_decode(logits, frames):
    """Take the most likely symbol of each frame, then merge repeats and remove blanks.

    TensorFlow's own decoder has no GPU kernel; every operation used here has one.

    Args:
        logits: [B, T, V].
        frames: int32 [B].

    Returns:
        Ids int32 [B, U], padded with 0, and their counts int32 [B].
    """
    rows, padded = tf.unstack(tf.shape(logits)[:2])
    best = tf.argmax(logits, axis=2, output_type=tf.int32)
    previous = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=BLANK_ID)
    emitted = tf.sequence_mask(frames, padded) & (best != BLANK_ID) & (best != previous)
    position = tf.cumsum(tf.cast(emitted, tf.int32), axis=1)
    counts = tf.reduce_max(tf.pad(position, [[0, 0], [1, 0]]), axis=1)
    # Frames that emit nothing are written to an extra column, which is cut off.
    column = tf.where(emitted, position - 1, padded)
    row = tf.broadcast_to(tf.range(rows)[:, None], [rows, padded])
    ids = tf.scatter_nd(tf.stack([row, column], axis=-1), best, [rows, padded + 1])
    return ids[:, : tf.reduce_max(tf.pad(counts, [[0, 1]]))], counts


def beam_search_decode(logits, frames, width: int):
    """Return the likeliest text by a prefix beam search (Graves 2012, section 7.5).

    Arguments and results are those of `greedy_decode`. Runs on the CPU, which has the only kernel.
    """
    with tf.device("/CPU:0"):
        # TensorFlow's decoder expects the blank as the last class.
        blank_last = tf.concat(
            [logits[:, :, BLANK_ID + 1 :], logits[:, :, BLANK_ID : BLANK_ID + 1]], axis=2
        )
        time_major = tf.transpose(tf.cast(blank_last, tf.float32), [1, 0, 2])
        (decoded,), _ = tf.nn.ctc_beam_search_decoder(
            time_major, frames, beam_width=width, top_paths=1
        )
        ids = tf.cast(tf.sparse.to_dense(decoded, default_value=-1), tf.int32) + 1
        return ids, tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def decoded_texts(ids, counts, symbols: SymbolTable) -> list[str]:
    """Return the texts of ids [B, U] with counts [B], without ids that are no symbols."""
    return [
        _text(row[:count], symbols) for row, count in zip(ids.numpy(), counts.numpy(), strict=True)
    ]


def _text(ids: Sequence[int], symbols: SymbolTable) -> str:
    return "".join(symbols.symbols[id_ - FIRST_SYMBOL_ID] for id_ in ids if id_ >= FIRST_SYMBOL_ID)
