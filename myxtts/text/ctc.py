"""What CTC (Graves et al. 2006) asks of a pair of speech and text. Free of TensorFlow: the manifest goes by it."""

import numpy as np

BLANK_ID = 0  # the padding of a text, which is never a label


def subsampled_length(frames, subsampling: int):
    """Frames that are left of `frames` when one of each `subsampling` is kept; for numbers, arrays and tensors."""
    return (frames + subsampling - 1) // subsampling


def frames_needed(labels: np.ndarray) -> int:
    """Fewest frames that labels [U] fit in: one for each, and one for the blank between two that are equal.

    The loss of a shorter utterance is infinite, and one step on it ruins the weights.
    """
    labels = np.asarray(labels)
    return len(labels) + int(np.count_nonzero(labels[1:] == labels[:-1]))
