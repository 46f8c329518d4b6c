"""Monotonic alignment search (Kim et al. 2020): which frames belong to which token."""

import tensorflow as tf

from myxtts.matmul import float32_matmul

IMPOSSIBLE_SCORE = -1e9
DISTANCE_SCALE = 16.0  # squared distance of a frame from its token's mean mel in a half-trained model


def frame_token_scores(mel, mean):
    """Score how well each frame fits each token: -log(1 + squared distance / DISTANCE_SCALE).

    This is the log-likelihood of a Student's t-distribution without its constants. Its heavy tails matter: under a
    normal distribution one frame of silence in the wrong token weighs as much as ten frames of wrong speech, and a
    comma that is once aligned with speech never recovers.

    Args:
        mel: normalised, float32 [B, T, D].
        mean: mean mel of each token, float32 [B, N, D].

    Returns:
        float32 [B, T, N], at most 0.
    """
    cross = float32_matmul(mel, mean, transpose_b=True)
    squared = tf.reduce_sum(mel * mel, -1)[:, :, None] - 2.0 * cross + tf.reduce_sum(mean * mean, -1)[:, None, :]
    return -tf.math.log1p(tf.maximum(squared, 0.0) / DISTANCE_SCALE)


@tf.function(jit_compile=True)
def monotonic_alignment_search(score, token_count, frames):
    """Find the best monotonic path through a score matrix (Kim et al. 2020, Glow-TTS, algorithm 1).

    Each real frame belongs to one token, each real token has at least one frame, and tokens follow
    each other without a gap. The search is vectorised over batch and text; XLA compiles it to one loop.

    Args:
        score: float32 [batch, frames, tokens], log-likelihood of each frame under each token.
        token_count: int32 [batch]; at most `frames` of the same row.
        frames: int32 [batch]. A row of 0 frames and 0 tokens gets an empty path.

    Returns:
        int32 [batch, frames]: the token of each frame; -1 for padding.
    """
    batch, padded_frames, tokens = tf.unstack(tf.shape(score))
    token = tf.range(tokens)[None, :]
    real_token = token < token_count[:, None]
    score = tf.where(real_token[:, None, :], score, IMPOSSIBLE_SCORE)
    frame_major = tf.transpose(score, [1, 0, 2])

    def forward(t, best, advanced):
        stay = best
        advance = tf.concat([tf.fill([batch, 1], IMPOSSIBLE_SCORE), best[:, :-1]], axis=1)
        # The path starts before token 0, so at frame 0 it can only advance.
        advance = tf.where((t == 0) & (token == 0), 0.0, advance)
        stay = tf.where(t == 0, IMPOSSIBLE_SCORE, stay)
        advances = tf.cast(advance > stay, tf.int32)  # int32: scattering booleans has no GPU kernel
        best = tf.maximum(stay, advance) + frame_major[t]
        return t + 1, best, tf.tensor_scatter_nd_update(advanced, [[t]], advances[None])

    advanced = tf.zeros([padded_frames, batch, tokens], tf.int32)
    _, _, advanced = tf.while_loop(
        lambda t, *_: t < padded_frames, forward, (0, tf.fill([batch, tokens], IMPOSSIBLE_SCORE), advanced)
    )

    def backward(t, current, path):
        inside = t < frames
        path = tf.tensor_scatter_nd_update(path, [[t]], tf.where(inside, current, -1)[None])
        step = tf.gather(advanced[t], tf.maximum(current, 0), batch_dims=1)
        return t - 1, tf.where(inside, current - step, current), path

    path = tf.zeros([padded_frames, batch], tf.int32)
    _, _, path = tf.while_loop(lambda t, *_: t >= 0, backward, (padded_frames - 1, token_count - 1, path))
    return tf.transpose(path)


def durations_of_path(path, tokens):
    """Count the frames of each token: int32 path [batch, frames] -> float32 [batch, tokens]."""
    return tf.reduce_sum(tf.one_hot(path, tokens), axis=1)


def path_from_ends(ends, token_count):
    """Return the path with the given token ends: int32 [batch, tokens] -> int32 [batch, max frames]; -1 for padding."""
    frames = ends[:, -1]
    frame = tf.tile(tf.range(tf.reduce_max(frames))[None, :], [tf.shape(ends)[0], 1])
    path = tf.minimum(tf.searchsorted(ends, frame, side="right"), token_count[:, None] - 1)
    return tf.where(frame < frames[:, None], path, -1)


def gather_rows(values, index):
    """Return the row at each index: [B, N, D], int32 [B, T] -> [B, T, D]; zeros where the index is -1."""
    rows = tf.gather(values, tf.maximum(index, 0), batch_dims=1)
    return rows * tf.cast(index >= 0, values.dtype)[:, :, None]


def position_in_token(path, frame, durations):
    """Return the position of each frame within its token.

    Args:
        path: int32 [B, S], the token of each frame; -1 for padding.
        frame: int32 [B, S], the index of each frame in its utterance.
        durations: float32 [B, N], frames of each token of the whole utterance.

    Returns:
        float32 [B, S, 2]: the elapsed fraction of the token, and the log of the token's frames.
    """
    starts = tf.cumsum(durations, axis=1, exclusive=True)
    tokens = tf.stack([starts, tf.maximum(durations, 1.0)], axis=-1)
    start, duration = tf.unstack(gather_rows(tokens, path), axis=-1)
    real = tf.cast(path >= 0, tf.float32)
    duration = tf.maximum(duration, 1.0)
    elapsed = (tf.cast(frame, tf.float32) - start + 0.5) / duration
    return tf.stack([elapsed * real, tf.math.log(duration)], axis=-1)


def random_segment(frames, padded, length, seed):
    """Return the frame indices of a random segment of each utterance.

    Args:
        frames: int32 [B], frames of each utterance.
        padded: int32 scalar, the largest number of frames in the batch.
        length: int, frames of the segment; a shorter utterance is taken whole.
        seed: int32 [2].

    Returns:
        int32 [B, min(length, padded)]; -1 for padding.
    """
    start_count = tf.cast(tf.maximum(frames - length, 0) + 1, tf.float32)
    start = tf.cast(tf.random.stateless_uniform(tf.shape(frames), seed) * start_count, tf.int32)
    frame = start[:, None] + tf.range(tf.minimum(length, padded))[None, :]
    return tf.where(frame < frames[:, None], frame, -1)
