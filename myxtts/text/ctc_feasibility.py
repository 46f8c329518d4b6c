"""Feasibility of CTC (Graves et al. 2006) for speech and its text. No TensorFlow."""

import numpy as np

# The padding of a text, which is never a label.
BLANK_ID = 0


def subsampled_length(frames, subsampling: int):
    """Return how many of `frames` remain if one of each `subsampling` is kept."""
    return (frames + subsampling - 1) // subsampling


def frames_needed(labels: np.ndarray) -> int:
    """Return the fewest frames for labels [U]: one each, and a blank between two equal ones.

    With fewer frames the loss is infinite, and a single step on it destroys the weights.
    """
    labels = np.asarray(labels)
    return len(labels) + int(np.count_nonzero(labels[1:] == labels[:-1]))
