"""Feasibility of CTC (Graves et al. 2006) for a pair of speech and text. Does not import
TensorFlow.
"""

import numpy as np

# The padding of a text, which is never a label.
BLANK_ID = 0


def subsampled_length(frames, subsampling: int):
    """Return how many of `frames` (a number, an array or a tensor) are left if one of each
    `subsampling` is kept.
    """
    return (frames + subsampling - 1) // subsampling


def frames_needed(labels: np.ndarray) -> int:
    """Return the fewest frames for labels [U]: one per label, and one per blank between two equal
    labels.

    With fewer frames the loss is infinite, and a single step on it destroys the weights.
    """
    labels = np.asarray(labels)
    return len(labels) + int(np.count_nonzero(labels[1:] == labels[:-1]))
