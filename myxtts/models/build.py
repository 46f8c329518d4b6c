"""Models by the settings of a run."""

import keras
import tensorflow as tf

from myxtts.batch import FEATURES
from myxtts.models.xtts import SIZES, XTTS


def build_xtts(size: str, symbols: int, languages: int, precision: str = "float32", **settings) -> XTTS:
    """XTTS with all its variables, on the device in whose scope this is called.

    Args:
        size: a key of SIZES.
        symbols, languages: rows of the tables.
        precision: Keras dtype policy of every layer; variables stay float32.
        settings: of training, as XTTS has them; none is needed to speak.
    """
    policy_before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = XTTS(SIZES[size], symbols, languages, **settings)
        model(smallest_batch())  # Keras makes variables at the first call: here, eagerly, on this device
    finally:
        keras.config.set_dtype_policy(policy_before)
    return model


def smallest_batch() -> dict[str, tf.Tensor]:
    """FEATURES of one empty row."""
    sizes = {"batch": 1, "tokens": 8, "frames": 8, "reference_frames": 8}
    batch = {
        name: tf.zeros([sizes.get(dim, dim) for dim in field.dims], field.dtype) for name, field in FEATURES.items()
    }
    return batch | {"step_frames": tf.constant(1.0), "step_tokens": tf.constant(1.0)}
