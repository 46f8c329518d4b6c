"""From the logits of CTC to text. Shapes: B batch, T frames, V symbols with the blank, U length of the longest text."""

from collections.abc import Sequence

import tensorflow as tf

from myxtts.text.ctc import BLANK_ID
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable


def greedy_decode(logits, frames):
    """The likeliest symbol of each frame, repeats joined, blanks left out.

    TensorFlow's own decoder has no GPU kernel; this is made of operations that have one.

    Args:
        logits: [B, T, V].
        frames: int32 [B].

    Returns:
        Ids int32 [B, U], padded with 0, and their counts int32 [B].
    """
    rows, padded = tf.unstack(tf.shape(logits)[:2])
    best = tf.argmax(logits, axis=2, output_type=tf.int32)
    before = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=BLANK_ID)
    said = tf.sequence_mask(frames, padded) & (best != BLANK_ID) & (best != before)
    place = tf.cumsum(tf.cast(said, tf.int32), axis=1)
    counts = tf.reduce_max(tf.pad(place, [[0, 0], [1, 0]]), axis=1)
    # What is not said goes to one more column, which is cut off.
    column = tf.where(said, place - 1, padded)
    row = tf.broadcast_to(tf.range(rows)[:, None], [rows, padded])
    ids = tf.scatter_nd(tf.stack([row, column], axis=-1), best, [rows, padded + 1])
    return ids[:, : tf.reduce_max(tf.pad(counts, [[0, 1]]))], counts


def beam_search_decode(logits, frames, width: int):
    """The likeliest text among the `width` best prefixes (Graves 2012, section 7.5), each over all of its paths.

    Arguments and results are those of `greedy_decode`. The only kernel is the host's, so it runs there.
    """
    with tf.device("/CPU:0"):
        # TensorFlow's decoder has the blank as its last class.
        blank_last = tf.concat([logits[:, :, BLANK_ID + 1 :], logits[:, :, BLANK_ID : BLANK_ID + 1]], axis=2)
        time_major = tf.transpose(tf.cast(blank_last, tf.float32), [1, 0, 2])
        (found,), _ = tf.nn.ctc_beam_search_decoder(time_major, frames, beam_width=width, top_paths=1)
        ids = tf.cast(tf.sparse.to_dense(found, default_value=-1), tf.int32) + 1
        return ids, tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def decoded_texts(ids, counts, symbols: SymbolTable) -> list[str]:
    """The text of each row of ids [B, U] with counts [B]; begin and end, which no label is, are left out."""
    return [_text(row[:count], symbols) for row, count in zip(ids.numpy(), counts.numpy(), strict=True)]


def _text(ids: Sequence[int], symbols: SymbolTable) -> str:
    return "".join(symbols.symbols[one - FIRST_SYMBOL_ID] for one in ids if one >= FIRST_SYMBOL_ID)
