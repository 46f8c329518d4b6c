"""Monotonic alignment search: which frames belong to which token."""

import tensorflow as tf

IMPOSSIBLE = -1e9


@tf.function(jit_compile=True)
def monotonic_path(score, token_count, frames):
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


def path_durations(path, tokens):
    """Frames of each token: int32 path [batch, frames] -> float32 [batch, tokens]."""
    return tf.reduce_sum(tf.one_hot(path, tokens), axis=1)
