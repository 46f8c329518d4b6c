"""Monotonic alignment search: which frames belong to which token."""

import tensorflow as tf

IMPOSSIBLE = -1e9
DISTANCE_SCALE = 16.0  # squared, of a frame from its token's mean mel in a model that is learnt by half


def frame_token_scores(mel, mean):
    """How well each frame fits each token: -log(1 + squared distance / DISTANCE_SCALE).

    This is the likelihood of a Student distribution, but for its constants. Under a normal one a frame of silence in
    the wrong token weighs as much as ten frames of wrong speech, and a comma once taken for speech stays so.

    Args:
        mel: normalised, float32 [B, T, D].
        mean: mean mel of each token, float32 [B, N, D].

    Returns:
        float32 [B, T, N], at most 0.
    """
    cross = tf.matmul(mel, mean, transpose_b=True)
    squared = tf.reduce_sum(mel * mel, -1)[:, :, None] - 2.0 * cross + tf.reduce_sum(mean * mean, -1)[:, None, :]
    return -tf.math.log1p(tf.maximum(squared, 0.0) / DISTANCE_SCALE)


@tf.function(jit_compile=True)
def monotonic_alignment_search(score, token_count, frames):
    """Best monotonic path through a score matrix (Kim et al. 2020, Glow-TTS, algorithm 1).

    Each real frame belongs to one token, each real token has at least one frame, and tokens follow
    each other without a gap. Vectorised over the batch and the text; XLA makes one loop of it.

    Args:
        score: float32 [batch, frames, tokens], log-likelihood of each frame under each token.
        token_count: int32 [batch]; at most `frames` of the same row.
        frames: int32 [batch]. A row of 0 frames and 0 tokens gets an empty path.

    Returns:
        int32 [batch, frames]: the token of each frame; frames behind the last real one have -1.
    """
    batch, padded_frames, tokens = tf.unstack(tf.shape(score))
    token = tf.range(tokens)[None, :]
    real_token = token < token_count[:, None]
    score = tf.where(real_token[:, None, :], score, IMPOSSIBLE)
    frame_major = tf.transpose(score, [1, 0, 2])

    def forward(t, best, stepped):
        stay = best
        advance = tf.concat([tf.fill([batch, 1], IMPOSSIBLE), best[:, :-1]], axis=1)
        # Before frame 0 the path stands before token 0, from where it can only advance.
        advance = tf.where((t == 0) & (token == 0), 0.0, advance)
        stay = tf.where(t == 0, IMPOSSIBLE, stay)
        came_by_step = tf.cast(advance > stay, tf.int32)  # int32: scattering booleans has no GPU kernel
        best = tf.maximum(stay, advance) + frame_major[t]
        return t + 1, best, tf.tensor_scatter_nd_update(stepped, [[t]], came_by_step[None])

    stepped = tf.zeros([padded_frames, batch, tokens], tf.int32)
    _, _, stepped = tf.while_loop(
        lambda t, *_: t < padded_frames, forward, (0, tf.fill([batch, tokens], IMPOSSIBLE), stepped)
    )

    def backward(t, current, path):
        inside = t < frames
        path = tf.tensor_scatter_nd_update(path, [[t]], tf.where(inside, current, -1)[None])
        step = tf.gather(stepped[t], tf.maximum(current, 0), batch_dims=1)
        return t - 1, tf.where(inside, current - step, current), path

    path = tf.zeros([padded_frames, batch], tf.int32)
    _, _, path = tf.while_loop(lambda t, *_: t >= 0, backward, (padded_frames - 1, token_count - 1, path))
    return tf.transpose(path)


def durations_of_path(path, tokens):
    """Frames of each token: int32 path [batch, frames] -> float32 [batch, tokens]."""
    return tf.reduce_sum(tf.one_hot(path, tokens), axis=1)


def path_from_ends(ends, token_count):
    """The path of given token ends, int32 [batch, tokens] -> int32 [batch, most frames]; -1 behind the end."""
    frames = ends[:, -1]
    frame = tf.tile(tf.range(tf.reduce_max(frames))[None, :], [tf.shape(ends)[0], 1])
    path = tf.minimum(tf.searchsorted(ends, frame, side="right"), token_count[:, None] - 1)
    return tf.where(frame < frames[:, None], path, -1)


def gather_rows(values, index):
    """The row of each index: [B, N, D], int32 [B, T] -> [B, T, D]; zeros where the index is -1."""
    chosen = tf.gather(values, tf.maximum(index, 0), batch_dims=1)
    return chosen * tf.cast(index >= 0, values.dtype)[:, :, None]


def position_in_token(path, frame, tokens_of_path):
    """Where frames stand in their tokens.

    Args:
        path: int32 [B, S], the token of each frame; -1 behind the end.
        frame: int32 [B, S], the number of each frame in its utterance.
        tokens_of_path: float32 [B, N], frames of each token of the whole utterance.

    Returns:
        float32 [B, S, 2]: share of the token that has passed, and log frames of the token.
    """
    duration = tf.maximum(tokens_of_path, 1.0)
    start = tf.cumsum(tokens_of_path, axis=1, exclusive=True)
    own_start, own_duration = tf.unstack(gather_rows(tf.stack([start, duration], axis=-1), path), axis=-1)
    real = tf.cast(path >= 0, tf.float32)
    own_duration = tf.maximum(own_duration, 1.0)
    passed = (tf.cast(frame, tf.float32) - own_start + 0.5) / own_duration
    return tf.stack([passed * real, tf.math.log(own_duration)], axis=-1)


def random_segment(frames, padded, length, seed):
    """Numbers of the frames of a random stretch of each utterance.

    Args:
        frames: int32 [B], of each utterance.
        padded: int32 scalar, the most that any has.
        length: int, of the stretch; a shorter utterance is taken whole.
        seed: int32 [2].

    Returns:
        int32 [B, min(length, padded)]; -1 behind an utterance's end.
    """
    spare = tf.cast(tf.maximum(frames - length, 0) + 1, tf.float32)
    start = tf.cast(tf.random.stateless_uniform(tf.shape(frames), seed) * spare, tf.int32)
    frame = start[:, None] + tf.range(tf.minimum(length, padded))[None, :]
    return tf.where(frame < frames[:, None], frame, -1)
