"""A synthesizer with the smallest network and random weights, for texts."""

import itertools
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.hostile.texts import SENTENCES


@cache
def untrained_synthesizer():
    """Write the checkpoint of an untrained voice of English and Georgian characters, and
    load it.
    """
    import keras

    from myxtts.audio.format import AUDIO_FORMAT
    from myxtts.config.schema import Config
    from myxtts.models.build import build_xtts
    from myxtts.models.xtts import SIZES
    from myxtts.synthesis.synthesizer import Synthesizer
    from myxtts.text.frontend import symbols_of
    from myxtts.text.symbols import SymbolTable
    from myxtts.training.checkpoint_files import checkpoint_of, write_checkpoint

    config = Config.model_validate(
        {"model": {"model_size": "tiny"}, "data": {"text_frontend": "characters"}}
    )
    size = {
        "channels": 16,
        "encoder_blocks": 0,
        "decoder_blocks": 0,
        "flow_blocks": 1,
        "latents": 2,
    }
    symbols = SymbolTable.from_sequences(symbols_of(text, "en", "characters") for text in SENTENCES)
    keras.utils.set_random_seed(0)
    with (
        mock.patch.dict(SIZES, tiny=replace(SIZES["tiny"], **size)),
        tempfile.TemporaryDirectory() as folder,
    ):
        network = build_xtts("tiny", len(symbols), 2)
        arrays = [(variable.path, variable.value.numpy()) for variable in network.variables]
        metadata = {
            **{
                "step": 1,
                "best": None,
                "settings": config.model_dump(mode="json"),
                "audio_format": AUDIO_FORMAT,
            },
            **{"symbols": symbols.to_list(), "speakers": ["one"], "languages": ["en", "ka"]},
        }
        groups = [(group, arrays) for group in ("model", "averages")]
        write_checkpoint(checkpoint_of(Path(folder) / "checkpoints", 1), groups, metadata)
        return Synthesizer(Path(folder), iterations=1)


def first_waves(text: str, language: str | None) -> list[np.ndarray]:
    """Synthesize the first two sentences of a text: these are the first two batches."""
    synthesizer = untrained_synthesizer()
    options = replace(synthesizer.options, ode_steps=1, guidance=1.0)
    waves = list(itertools.islice(synthesizer.synthesize_sentences(text, (), language, options), 2))
    if not all(np.isfinite(wave).all() for wave in waves):
        raise AssertionError("a wave is not finite")
    return waves
