"""Monotonic paths of a text through the frames of its recording: the best one, and all together.

Each real frame belongs to one token, each real token has at least one frame, and tokens follow each
other without a gap.
"""

import math
from itertools import pairwise

import tensorflow as tf

from myxtts.base.portable_ops import float32_matmul, indices, stateless_uniform

# Scale of the squared distance of a frame from a token's mean mel, in normalised units over 80
# bands.
DISTANCE_SCALE = 16.0
IMPOSSIBLE_SCORE = -1e9
# With 16, XLA splits a block into several kernels.
BLOCK_FRAMES = 8
# Log-probability of the blank, before the tokens share with it (Badlani et al. 2022).
BLANK_SCORE = -1.0
BLANK_SHARE = math.log1p(math.exp(BLANK_SCORE))


def mean_mel_scores(mel, mean):
    """Score how near each frame is to each token's mean mel: -log(1 + distance² / DISTANCE_SCALE).

    The log-likelihood of a Student's t-distribution without its constants: under a normal one, a
    frame of silence in the wrong token weighs as much as ten frames of wrong speech.

    Normalised mel float32 [B, T, D], mean mel of each token [B, N, D] -> [B, T, N], at most 0.
    """
    products = float32_matmul(mel, mean, transpose_b=True)
    of_frame, of_token = tf.reduce_sum(mel * mel, -1), tf.reduce_sum(mean * mean, -1)
    squared = of_frame[:, :, None] - 2.0 * products + of_token[:, None, :]
    return -tf.math.log1p(tf.maximum(squared, 0.0) / DISTANCE_SCALE)


# Two passes. Forward: `best` has the score of the best path to each token at the current frame. A
# path stays at its token or advances by one, and `advances` notes which of both was better.
# Backward: from the last token at the last real frame, the notes are followed to the first frame.
# Frames of padding get -1.
def search_by_frames(score, token_count, frames):
    """Find the best path through a score matrix (Kim et al. 2020, Glow-TTS, algorithm 1).

    Log-likelihood of each frame under each token, float32 [batch, frames, tokens], and the real
    tokens and frames, int32 [batch], at least one frame for each token -> the token of each frame,
    int32 [batch, frames]; -1 for padding.
    """
    score, first = _frame_major(score, token_count)
    padded_frames, batch, tokens = tf.unstack(tf.shape(score))

    def forward(t, best, advances):
        advance = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=IMPOSSIBLE_SCORE)
        return t + 1, tf.maximum(best, advance) + score[t], advances.write(t, advance > best)

    advances = tf.TensorArray(tf.bool, padded_frames, element_shape=[None, None])
    advances = advances.write(0, tf.fill([batch, tokens], False))
    *_, advances = tf.while_loop(lambda t, *_: t < padded_frames, forward, (1, first, advances))
    advances = advances.stack()

    # XLA knows the number of iterations of loops that count upwards only.
    def backward(i, current, path):
        t = padded_frames - 1 - i
        inside = t < frames
        step = tf.cast(tf.gather(advances[t], tf.maximum(current, 0), batch_dims=1), tf.int32)
        path = path.write(t, tf.where(inside, current, -1))
        return i + 1, tf.where(inside, current - step, current), path

    path = tf.TensorArray(tf.int32, padded_frames, element_shape=[None])
    *_, path = tf.while_loop(lambda i, *_: i < padded_frames, backward, (0, token_count - 1, path))
    return tf.transpose(path.stack())


# A GPU spends its time on launches, so both passes are made of few large operations. Forward: eight
# frames in each iteration, `_totals_by_blocks`, which XLA fuses into one kernel. Whether a path
# advances follows from the totals afterwards, for all frames at once. Backward: instead of a walk
# frame by frame, `_follow_back` composes steps of one frame to steps of two, four and so on
# (pointer doubling, Hillis & Steele 1986).
def search_by_blocks(score, token_count, frames):
    """Return the path of `search_by_frames` by fewer and larger operations, for a GPU."""
    score, first = _frame_major(score, token_count)
    totals = tf.concat([first[None], _totals_by_blocks(score, first)], axis=0)
    before = tf.pad(totals[:-1], [[1, 0], [0, 0], [1, 0]], constant_values=IMPOSSIBLE_SCORE)
    return _follow_back(before[:, :, :-1] > before[:, :, 1:], token_count, frames)


def _frame_major(score, token_count):
    """Return scores [frames, batch, tokens], IMPOSSIBLE_SCORE behind each row's last token.

    And the totals at frame 0, [batch, tokens]: a path begins with token 0.
    """
    token = tf.range(tf.shape(score)[2])[None, :]
    real_token = (token < token_count[:, None])[:, None, :]
    score = tf.transpose(tf.where(real_token, score, IMPOSSIBLE_SCORE), [1, 0, 2])
    return score, tf.where(token == 0, 0.0, IMPOSSIBLE_SCORE) + score[0]


# Token n after 8 frames depends on the tokens n - 8 to n before them. The window therefore has the
# totals shifted by 0 to 8 tokens, and each of the eight frames replaces neighbouring pairs of it by
# their maximum, so that one shift fewer remains. After eight frames shift 0 alone is left, which is
# the state of the next iteration. The first of each step are the totals that are stored.
def _totals_by_blocks(score, first):
    """Return the totals of the best paths to frames 1, 2, …: [frames - 1, batch, tokens]."""
    padded_frames, batch, tokens = tf.unstack(tf.shape(score))
    blocks = tf.maximum((padded_frames + BLOCK_FRAMES - 2) // BLOCK_FRAMES, 1)
    padding = [[0, blocks * BLOCK_FRAMES - (padded_frames - 1)], [0, 0], [BLOCK_FRAMES, 0]]
    score = tf.pad(score[1:], padding, constant_values=IMPOSSIBLE_SCORE)
    score = tf.reshape(score, [blocks, BLOCK_FRAMES, batch, tokens + BLOCK_FRAMES])

    def from_token_before(values, shift):
        return tf.slice(values, [0, BLOCK_FRAMES - shift], [batch, tokens])

    def forward(block, best, totals):
        padded = tf.pad(best, [[0, 0], [BLOCK_FRAMES, 0]], constant_values=IMPOSSIBLE_SCORE)
        window = [from_token_before(padded, shift) for shift in range(BLOCK_FRAMES + 1)]
        of_frames = []
        for frame_score in tf.unstack(score[block], BLOCK_FRAMES):
            window = [
                tf.maximum(stays, advances) + from_token_before(frame_score, shift)
                for shift, (stays, advances) in enumerate(pairwise(window))
            ]
            of_frames.append(window[0])
        return block + 1, window[0], totals.write(block, tf.stack(of_frames))

    totals = tf.TensorArray(tf.float32, blocks, element_shape=[BLOCK_FRAMES, None, None])
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape(None))
    *_, totals = tf.while_loop(
        lambda block, *_: block < blocks, forward, (0, first, totals), shape_invariants=shapes
    )
    return tf.reshape(totals.stack(), [blocks * BLOCK_FRAMES, batch, tokens])[: padded_frames - 1]


# `source` starts as the step of one frame backwards. Doubled until it spans all frames, it gives,
# for each frame, the token that a path has there if it ends at a given token of the last frame.
# Frames of padding step to the same token, so every row can begin at the last frame of the batch.
def _follow_back(advances, token_count, frames):
    """Return the path, int32 [batch, frames], from bool [frames, batch, tokens], its advances."""
    padded_frames, batch, tokens = tf.unstack(tf.shape(advances))
    frame = tf.range(padded_frames)
    token = tf.range(tokens)[None, None, :]
    inside = frame[:, None] < frames[None, :]
    step = tf.cast(advances & inside[:, :, None] & (token > 0), tf.int32)
    # source[t, b, n]: the token at frame t of a path with token n at frame t + distance, or at the
    # last frame if that comes first.
    source = tf.concat([(token - step)[1:], tf.tile(token, [1, batch, 1])], axis=0)

    def double(i, distance, source):
        later = tf.gather(source, tf.minimum(frame + distance, padded_frames - 1))
        later = tf.where((frame + distance < padded_frames)[:, None, None], later, token)
        return i + 1, 2 * distance, tf.gather(source, later, batch_dims=2, axis=2)

    log2 = tf.math.log(tf.cast(padded_frames, tf.float32)) / tf.math.log(2.0)
    doublings = tf.cast(log2, tf.int32) + 1
    *_, source = tf.while_loop(lambda i, *_: i < doublings, double, (0, 1, source))
    last = tf.maximum(token_count - 1, 0)
    path = tf.gather(tf.transpose(source, [1, 0, 2]), last, axis=2, batch_dims=1)
    return tf.where(tf.transpose(inside), path, -1)


def path_losses(score, real, token_count, sum_over_paths):
    """Return minus the log-likelihood of all paths, float32 [batch].

    The arguments are those of `sum_over_paths`, and this function or the same compiled by XLA.
    """

    @tf.custom_gradient
    def losses_of(score):
        losses, posterior = sum_over_paths(score, real, token_count)
        return losses, lambda upstream: -posterior * upstream[:, None, None]

    return losses_of(score)


# States are the tokens, and a blank before each of them and behind the last. The forward loop sums
# over the paths that lead to each state of a frame and stores the sums of the tokens. The backward
# loop sums over the paths that lead on from each state. Padded frames leave both unchanged. The sum
# over all paths is read at the end of the forward loop. Forward times backward over that sum is the
# posterior probability of a token at a frame, which is the gradient that `path_losses` uses.
def sum_over_paths(score, real, token_count):
    """Sum the probabilities of all paths by the forward-backward algorithm (Graves et al. 2006).

    Between two tokens a frame may belong to none of them, a blank of constant score: it needs no
    token that fits, so that one token does not learn to fit everything. The sum is a CTC loss whose
    labels are the tokens in order, in a thirtieth of the time of TensorFlow's on a CPU.

    Log-probability of each token at each frame, float32 [batch, frames, tokens]; `real`, float32
    [batch, frames], 0 for padding; and int32 [batch], at most the real frames -> minus the log of
    the sum, float32 [batch], 0 without tokens; and the probability of each token at each frame,
    given that the path is one of them, which is minus the gradient of `score`.
    """
    real = tf.transpose(real)[:, :, None] > 0.0
    real_token = tf.range(tf.shape(score)[2]) < token_count[:, None]
    score = tf.where(real_token[:, None, :], score - BLANK_SHARE, IMPOSSIBLE_SCORE)
    score = tf.transpose(score, [1, 0, 2])
    padded, rows, tokens = tf.unstack(tf.shape(score))

    # Blanks are [rows, tokens + 1]: before each token, and behind the last. Tokens are [rows,
    # tokens].
    def forward(t, blanks, totals, stored):
        new = _reach(blanks, totals, score[t])
        blanks, totals = tf.where(real[t], new[0], blanks), tf.where(real[t], new[1], totals)
        return t + 1, blanks, totals, stored.write(t, totals)

    def backward(i, blanks, rests, stored):
        t = padded - 1 - i
        new = _leave(blanks, rests, score[t + 1])
        blanks = tf.where(real[t + 1], new[0], blanks)
        rests = tf.where(real[t + 1], new[1], rests)
        return i + 1, blanks, rests, stored.write(t, rests)

    def store():
        return tf.TensorArray(tf.float32, padded, element_shape=[None, None])

    nowhere = tf.fill([rows, tokens], IMPOSSIBLE_SCORE)
    start = tf.concat([tf.zeros([rows, 1]), nowhere], axis=1), nowhere
    _, *last, totals = tf.while_loop(lambda t, *_: t < padded, forward, (0, *start, store()))
    # A path ends with the last token or the blank behind it.
    is_end = tf.range(tokens + 1) == token_count[:, None]
    end = [tf.where(ends, 0.0, IMPOSSIBLE_SCORE) for ends in (is_end, is_end[:, 1:])]
    log_sum = tf.reduce_logsumexp(tf.concat(last, 1) + tf.concat(end, 1), axis=1, keepdims=True)
    state = 1, *end, store().write(padded - 1, end[1])
    *_, rests = tf.while_loop(lambda i, *_: i < padded, backward, state)
    posterior = tf.where(real, tf.exp(totals.stack() + rests.stack() - log_sum), 0.0)
    return tf.where(token_count > 0, -log_sum[:, 0], 0.0), tf.transpose(posterior, [1, 0, 2])


def _reach(blanks, totals, score):
    """Return the logs of the sums over all paths to each state of the next frame."""
    before = tf.concat([_no_token(totals), totals], axis=1)
    reached = _log_add(_log_add(totals, blanks[:, :-1]), before[:, :-1]) + score
    return _log_add(blanks, before) + BLANK_SCORE - BLANK_SHARE, reached


def _leave(blanks, rests, score):
    """Return the logs of the sums over all paths from each state of the frame before."""
    blanks, rests = blanks + BLANK_SCORE - BLANK_SHARE, rests + score
    after = tf.concat([rests, _no_token(rests)], axis=1)
    return _log_add(blanks, after), _log_add(_log_add(rests, blanks[:, 1:]), after[:, 1:])


def _no_token(scores):
    """Return a column of impossible scores; `tf.pad` would read the score from a GPU each time."""
    return tf.fill([tf.shape(scores)[0], 1], IMPOSSIBLE_SCORE)


def _log_add(left, right):
    """Return log(exp(left) + exp(right))."""
    largest = tf.maximum(left, right)
    return largest + tf.math.log1p(tf.exp(tf.minimum(left, right) - largest))


def evidence(score, prior, path):
    """Return what a recording tells of the tokens of its frames, beyond their place: float32 [B].

    The gain of log-probability over the prior on the path, as a fraction of all that there is to
    gain: 1 if each frame is certain of its token, 0 if the sound tells nothing. `score` and `prior`
    are log-probabilities [B, T, N], path int64 [B, T], -1 for padding.
    """
    real = tf.cast(path >= 0, tf.float32)
    token = tf.maximum(path, 0)
    sums = [
        tf.reduce_sum(real * tf.gather(tf.stop_gradient(x), token, batch_dims=2), axis=1)
        for x in (score, prior)
    ]
    return 1.0 - sums[0] / tf.minimum(sums[1], -1e-6)


def durations_of_path(path, tokens):
    """Count the frames of each token: int path [batch, frames] -> float32 [batch, tokens]."""
    return tf.reduce_sum(tf.one_hot(path, tokens), axis=1)


def path_from_ends(ends, token_count, padded):
    """Return the path with the given token ends: int32 [B, N] -> [B, padded]; -1 for padding."""
    frame = tf.tile(tf.range(padded)[None, :], [tf.shape(ends)[0], 1])
    path = tf.minimum(tf.searchsorted(ends, frame, side="right"), token_count[:, None] - 1)
    return tf.where(frame < ends[:, -1:], path, -1)


def path_within(ends, padded):
    """Return the path of `path_from_ends` up to `padded` frames, without int32, which is int64.

    The ends are whole numbers in float32; padded tokens end with the last real one.
    """
    frame = tf.cast(indices(padded), tf.float32)[None, :]
    path = tf.reduce_sum(tf.cast(frame[:, :, None] >= ends[:, None, :], tf.float32), axis=2)
    return tf.where(frame < ends[:, -1:], tf.cast(path, tf.int64), -1)


def gather_rows(values, index):
    """Return rows by index: [B, N, D], int [B, T] -> [B, T, D]; zeros where it is -1.

    In training, indices of frames and tokens are int64: a GPU computes with int32 on the host.
    """
    index = tf.cast(index, tf.int64)
    real = tf.cast(index >= 0, values.dtype)[:, :, None]
    return _gather_from_batch(values, tf.maximum(index, 0)) * real


@tf.custom_gradient
def _gather_from_batch(values, index):
    """Return `tf.gather(values, index, batch_dims=1)`; its own gradient would wait for a GPU."""
    batch, rows, _ = tf.unstack(tf.shape(values))
    channels = values.shape[2]
    flat = tf.reshape(index + tf.cast(tf.range(batch) * rows, tf.int64)[:, None], [-1])
    gathered = tf.gather(tf.reshape(values, [-1, channels]), flat)

    def gradient(upstream):
        upstream = tf.reshape(upstream, [-1, channels])
        summed = tf.math.unsorted_segment_sum(upstream, flat, batch * rows)
        return tf.reshape(summed, [batch, rows, channels]), None

    return tf.reshape(gathered, tf.concat([tf.shape(index), [channels]], axis=0)), gradient


def position_in_token(path, frame, durations):
    """Return the elapsed fraction of each frame's token, and the log of its frames: [B, S, 2].

    From the token and the index of each frame, int64 [B, S], -1 for padding, and the frames of each
    token of the whole utterance, float32 [B, N].
    """
    starts = tf.cumsum(durations, axis=1, exclusive=True)
    tokens = tf.stack([starts, tf.maximum(durations, 1.0)], axis=-1)
    start, duration = tf.unstack(gather_rows(tokens, path), axis=-1)
    real = tf.cast(path >= 0, tf.float32)
    duration = tf.maximum(duration, 1.0)
    elapsed = (tf.cast(frame, tf.float32) - start + 0.5) / duration
    return tf.stack([elapsed * real, tf.math.log(duration)], axis=-1)


def random_segment(frames, padded, length: int, seed):
    """Return the frame indices of a random segment of each utterance; a shorter one is taken whole.

    Utterances of `frames`, integers [B], the most of which is `padded`, int32 scalar -> int64 [B,
    min(length, padded)]; -1 for padding.
    """
    start_count = tf.cast(tf.maximum(frames - length, 0) + 1, tf.float32)
    start = tf.cast(stateless_uniform(tf.shape(frames), seed) * start_count, tf.int64)
    frame = start[:, None] + indices(tf.minimum(length, padded))
    return tf.where(frame < tf.cast(frames, tf.int64)[:, None], frame, -1)


def frame_indices(path):
    """Return the index of each frame of a path [B, T], int64 [B, T]; -1 for padding."""
    return tf.where(path >= 0, indices(tf.shape(path)[1])[None, :], -1)
