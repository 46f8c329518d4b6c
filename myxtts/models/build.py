"""Models by the settings of a run."""

from collections.abc import Callable

import keras

from myxtts.batch import empty_batch
from myxtts.models import asr as recogniser
from myxtts.models import xtts


def build_xtts(size: str, symbols: int, languages: int, precision: str = "float32", **settings) -> xtts.XTTS:
    """XTTS with all its variables, on the device or replicas in whose scope this is called.

    Args:
        size: a key of SIZES.
        symbols, languages: rows of the tables.
        precision: Keras dtype policy of every layer; variables stay float32.
        settings: of training, as XTTS has them; none is needed to speak.
    """
    return _built(precision, lambda: xtts.XTTS(xtts.SIZES[size], symbols, languages, **settings))


def build_asr(
    size: str, symbols: int, encoder: str, subsampling: int, precision: str = "float32", **settings
) -> recogniser.ASRModel:
    """A recogniser likewise; `encoder`, `subsampling` and `settings` as Recogniser has them."""
    return _built(
        precision,
        lambda: recogniser.ASRModel(recogniser.SIZES[size], symbols, encoder, subsampling, **settings),
    )


def _built(precision: str, make: Callable[[], keras.Model]) -> keras.Model:
    policy_before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = make()
        model(empty_batch(model.BATCH_FIELDS))  # Keras makes variables at the first call: here, eagerly, in this scope
    finally:
        keras.config.set_dtype_policy(policy_before)
    return model
