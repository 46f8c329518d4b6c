"""Connectionist temporal classification (CTC, Graves et al. 2006): the loss.

Shape legend: B batch, T frames, V symbols, U labels.
"""

import tensorflow as tf

from myxtts.base import tf_internals
from myxtts.base.portable_ops import on_host
from myxtts.text.symbols import BLANK_ID, SymbolTable

# `cudnnCTCLoss` returns an error for a row of 256 labels or more (pytorch/pytorch issue 53505).
CUDNN_MAX_LABELS = 255
# Finite, so that differences and gradients of impossible paths are 0 and not NaN.
LOG_ZERO = -1e30


def ctc_labels(tokens, token_count):
    """Strip begin and end: tokens int32 [B, N] -> labels int32 [B, N - 2], and their counts."""
    # cuDNN needs labels and lengths in host memory.
    with on_host():
        count = tf.maximum(token_count - 2, 0)
        labels = tokens[:, 1:-1]
        return tf.where(tf.sequence_mask(count, tf.shape(labels)[1]), labels, BLANK_ID), count


# A batch comes in with a transcript for each row. On a CPU the kernel takes all of it. On a GPU,
# rows that are too long for cuDNN enter the kernel without labels, as empty rows do, and their
# losses are then overwritten by those of the recursion. Only batches with such rows pay for it.
# Which rows these are is decided on the host, where the counts lie, so that the GPU is not asked.
def ctc_losses(logits, frames, labels, count):
    """Return the CTC loss of each row, float32 [B]; 0 for a row without labels.

    Logits float32 [B, T, V], frames int32 [B], at least `LengthRule.frames_needed`, labels int32
    [B, U], padded with the blank, and their counts int32 [B].
    """
    if tf_internals.device_type_in_scope() != "GPU":
        return _losses_by_kernel(logits, frames, labels, count)
    with on_host():
        fits = count <= CUDNN_MAX_LABELS
        rows = tf.where(~fits)[:, 0]
        all_fit = tf.reduce_all(fits)
        fitting_count = tf.where(fits, count, 0)
    losses = _losses_by_kernel(logits, frames, labels, fitting_count)

    def with_long_rows():
        long_losses = ctc_losses_by_recursion(
            tf.gather(logits, rows),
            tf.gather(frames, rows),
            tf.gather(labels, rows),
            tf.gather(count, rows),
        )
        return tf.tensor_scatter_nd_update(losses, rows[:, None], long_losses)

    return tf.cond(all_fit, lambda: losses, with_long_rows)


def _losses_by_kernel(logits, frames, labels, count):
    """Compute `ctc_losses` by the kernel for the device.

    The labels are sparse: with dense labels TensorFlow uses no kernel, and the CPU takes 15 times
    as long or more. Kernels differ in how they treat lengths of 0, so a row without labels is
    passed as one frame with one label, and its loss is then replaced by 0.

    cuDNN leaves the gradient behind the end of a row as it was in memory (tensorflow/tensorflow
    issue 41280): it can be NaN there. `tf.where` stops it, because its gradient is a selection; a
    product with a mask does not, since 0 * NaN is NaN.
    """
    padded = tf.shape(logits)[1]
    with on_host():
        has_labels = count > 0
        real = tf.sequence_mask(tf.where(has_labels, frames, 0), padded)
        one_label = tf.pad(tf.ones_like(labels[:, :1]), [[0, 0], [0, tf.shape(labels)[1] - 1]])
        labels = tf.where(has_labels[:, None], labels, one_label)
        indices = tf.where(labels != BLANK_ID)
        shape = tf.shape(labels, out_type=tf.int64)
        sparse = tf.SparseTensor(indices, tf.gather_nd(labels, indices), shape)
        logit_length = tf.where(has_labels, frames, 1)
    losses = tf.nn.ctc_loss(
        labels=sparse,
        logits=tf.transpose(tf.where(real[:, :, None], logits, 0.0), [1, 0, 2]),
        label_length=None,
        logit_length=logit_length,
        blank_index=BLANK_ID,
    )
    return tf.where(has_labels, losses, 0.0)


# The labels "ab" become the states "-a-b-", with blanks between. A path starts in one of the first
# two states, and with each frame it stays, advances by one, or skips a blank between two different
# labels. It ends in one of the last two states of its row. This function prepares what each of
# these rules needs, as arrays by state; `_losses_of_paths` sums over the paths.
def ctc_losses_by_recursion(logits, frames, labels, count):
    """Compute the loss by the forward-backward recursion (Graves et al. 2006, section 4.1).

    Arguments and result are those of `ctc_losses`; each count is at least 1. Takes any number of
    labels on any device. `tf.nn.ctc_loss` with dense labels also does so, but multiplies by a
    matrix of all pairs of states at each frame: 97 times as long for 310 labels.
    """
    # A path may emit a blank before, between and behind the labels, so each of these is a state.
    states = tf.stack([tf.fill(tf.shape(labels), BLANK_ID), labels], axis=2)
    states = tf.reshape(states, [tf.shape(labels)[0], -1])
    states = tf.pad(states, [[0, 0], [0, 1]], constant_values=BLANK_ID)
    emissions = tf.gather(tf.nn.log_softmax(logits), states, axis=2, batch_dims=1)
    emissions = tf.transpose(emissions, [1, 0, 2])
    # A path may skip the blank between two different labels.
    before = tf.pad(states[:, :-2], [[0, 0], [2, 0]], constant_values=BLANK_ID)
    skips = (states != BLANK_ID) & (states != before)
    state = tf.range(tf.shape(states)[1])
    is_end = (state == 2 * count[:, None]) | (state == 2 * count[:, None] - 1)
    real = tf.sequence_mask(frames, tf.shape(emissions)[0])
    return _losses_of_paths(emissions, skips, is_end, tf.transpose(real)[:, :, None])


# `until` has the sum over all paths from the start to each state, its frame included, and `after`
# the sum from each state to an end, its frame excluded. Their product at any frame is the sum over
# all paths, so the loss is read at frame 0. The share of the paths that are in a state at a frame,
# its occupancy, is minus the gradient of the loss with respect to that emission.
@tf.custom_gradient
def _losses_of_paths(emissions, skips, is_end, real):
    """Sum the probabilities of all paths from the first two states to the ends; in logarithms.

    The gradient is written out: that which TensorFlow derives of a loop copies 16 shapes to the
    host at each frame.

    Log-probability of the symbol of each state, float32 [T, B, S]; whether a path may come from two
    states before, and whether it may end here, bool [B, S]; and real frames, bool [T, B, 1].
    """
    padding = tf.fill([tf.shape(skips)[0], 2], tf.cast(LOG_ZERO, emissions.dtype))

    def forward(paths, emission):
        before = tf.concat([padding, paths], axis=1)
        skipped = tf.where(skips, before[:, :-2], LOG_ZERO)
        return emission + tf.reduce_logsumexp(tf.stack([paths, before[:, 1:-1], skipped]), axis=0)

    def backward(paths, inputs):
        emission, is_inside = inputs
        after = tf.concat([emission + paths, padding], axis=1)
        skipped = tf.concat([tf.where(skips, emission + paths, LOG_ZERO), padding], axis=1)[:, 2:]
        following = tf.reduce_logsumexp(tf.stack([after[:, :-2], after[:, 1:-1], skipped]), axis=0)
        return tf.where(is_inside, following, ends)

    ends = tf.where(is_end, tf.zeros_like(emissions[0]), LOG_ZERO)
    impossible = tf.fill(tf.shape(ends[:, 1:]), padding[0, 0])
    start = tf.concat([tf.zeros_like(ends[:, :1]), impossible], axis=1)
    until = tf.scan(forward, emissions, start)
    is_inside = tf.concat([real[1:], tf.zeros_like(real[:1])], axis=0)  # the row has a later frame
    later = tf.concat([emissions[1:], tf.zeros_like(emissions[:1])], axis=0)
    after = tf.scan(backward, (later, is_inside), ends, reverse=True)
    losses = -tf.reduce_logsumexp(until[0] + after[0], axis=1)

    def gradient(upstream):
        occupancy = tf.exp(until + after + losses[:, None])
        return tf.where(real, -occupancy * upstream[:, None], 0.0), None, None, None

    return losses, gradient


def emissions(logits, frames):
    """Return the most likely symbol of each frame, int32 [B, T], and where it begins, bool [B, T].

    Where a symbol begins it is no blank, and another than the frame before. Logits [B, T, V],
    frames int32 [B].
    """
    best = tf.argmax(logits, axis=2, output_type=tf.int32)
    previous = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=BLANK_ID)
    is_real = tf.sequence_mask(frames, tf.shape(logits)[1])
    return best, is_real & (best != BLANK_ID) & (best != previous)


def greedy_decode(logits, frames):
    """Take the most likely symbol of each frame, then merge repeats and remove blanks.

    Logits [B, T, V], frames int32 [B] -> ids int32 [B, U], padded with 0, and their counts int32
    [B]. TensorFlow's own decoder has no GPU kernel; every operation used here has one.
    """
    rows, padded = tf.unstack(tf.shape(logits)[:2])
    best, emitted = emissions(logits, frames)
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
        blank = logits[:, :, BLANK_ID : BLANK_ID + 1]
        blank_last = tf.concat([logits[:, :, BLANK_ID + 1 :], blank], axis=2)
        time_major = tf.transpose(tf.cast(blank_last, tf.float32), [1, 0, 2])
        (decoded,), _ = tf.nn.ctc_beam_search_decoder(time_major, frames, width, top_paths=1)
        ids = tf.cast(tf.sparse.to_dense(decoded, default_value=-1), tf.int32) + 1
        return ids, tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def decoded_texts(ids, counts, symbols: SymbolTable) -> list[str]:
    """Return the texts of ids [B, U] with counts [B], without ids that are no symbols."""
    rows = zip(ids.numpy(), counts.numpy(), strict=True)
    return ["".join(symbols.decode(row[:count])) for row, count in rows]
