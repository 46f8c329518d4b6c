"""Construction of networks on the current device or replicas."""

from collections.abc import Callable

import keras

from myxtts.batch import empty_batch
from myxtts.models import asr, vocoder, xtts


def build_xtts(
    size: str, symbols: int, languages: int, precision: str = "float32", **settings
) -> xtts.XTTS:
    """Build XTTS with all its variables, on the device or replicas in whose scope the caller is.

    Args:
        size: a key of `xtts.SIZES`.
        symbols, languages: rows of the embeddings.
        precision: Keras dtype policy of every layer; variables stay float32.
        settings: further arguments of XTTS, for training only.
    """
    return _build(precision, lambda: xtts.XTTS(xtts.SIZES[size], symbols, languages, **settings))


def build_asr(
    size: str, symbols: int, encoder: str, subsampling: int, precision: str = "float32", **settings
) -> asr.ASRModel:
    """Build ASRModel in the same way; `encoder`, `subsampling` and `settings` are its arguments."""
    return _build(
        precision, lambda: asr.ASRModel(asr.SIZES[size], symbols, encoder, subsampling, **settings)
    )


def build_vocoder(size: str, precision: str = "float32", **settings) -> vocoder.Vocoder:
    """Build Vocoder in the same way; `settings` are its arguments."""
    model = _build(precision, lambda: vocoder.Vocoder(vocoder.SIZES[size], **settings))
    if model.discriminators is not None:
        # Creates the discriminators' variables.
        model(empty_batch(model.BATCH_FIELDS), training=True)
    return model


def _build(precision: str, create: Callable[[], keras.Model]) -> keras.Model:
    policy_before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = create()
        # Keras creates variables at the first call: eagerly, in this scope.
        model(empty_batch(model.BATCH_FIELDS))
    finally:
        keras.config.set_dtype_policy(policy_before)
    return model
