"""A voice as a SavedModel, which speaks in programs that have TensorFlow and nothing of this package.

FOLDER/
    saved_model.pb  variables/  …    signatures `serving_default` and `reference`
    metadata.json                    how ids are made: symbols, languages, front end; and the defaults
"""

import json
import logging
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, MEL_BANDS, SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import ITERATIONS, griffin_lim
from myxtts.audio.mel import log_mel
from myxtts.config.schema import ModelConfig, PlacementConfig
from myxtts.errors import ConfigError
from myxtts.files import write_whole
from myxtts.models.xtts import SYNTHESIS_SIGNATURE, XTTS
from myxtts.placement import devices
from myxtts.placement.routes import plan_routes
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.text.symbols import BEGIN_ID, END_ID, FIRST_SYMBOL_ID, PADDING_ID
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import select_checkpoint, vocabulary_of

FORMAT = 1

log = logging.getLogger(__name__)


def export_run(run: Path, out: Path, checkpoint: str | None = None, iterations: int | None = None) -> None:
    """Write the voice of a run as a SavedModel, whole or not at all. Works on the CPU: the file holds no device.

    Args:
        out: folder to make.
        checkpoint: its name; the best, or the newest where none is best, by default.
        iterations: of Griffin-Lim; as in synthesis by default.

    Raises:
        UserError: the run or the output cannot be used.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out {out} was asked for, but it exists. Name another folder, or remove this one.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} was asked for, but there is no folder {out.parent}. Make it first.")
    chosen = select_checkpoint(run, checkpoint)
    placement = plan_routes(PlacementConfig(), gpu_count=0)
    devices.configure(placement)
    export_checkpoint(chosen, out, ITERATIONS if iterations is None else iterations, placement.routes[0].model)
    log.info("export         %s of %s", out, chosen)


def export_checkpoint(checkpoint: Path, out: Path, iterations: int, device: str) -> None:
    """Write a checkpoint's voice into a folder that does not exist; `device` is where the weights are meanwhile.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    metadata = read_metadata(checkpoint)
    voice = export_metadata(metadata, iterations)
    with tf.device(device):
        module = synthesis_module(load_model(checkpoint, metadata, device), iterations, voice["reference_samples"])
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        partial = Path(temporary) / out.name
        signatures = {"serving_default": module.synthesize, "reference": module.reference_mel}
        tf.saved_model.save(module, str(partial), signatures)
        write_whole(partial / "metadata.json", json.dumps(voice, ensure_ascii=False, indent=1).encode())
        os.replace(partial, out)


def synthesis_module(network: XTTS, iterations: int, reference_samples: int) -> tf.Module:
    """What is saved: `synthesize`, from ids to a wave, and `reference_mel`, from a wave to the mel of a reference.

    The module holds plain variables and functions, and no Keras object, so that nobody needs Keras to load it.
    """

    @tf.function(input_signature=SYNTHESIS_SIGNATURE)
    def synthesize(*inputs):
        mel, frames, _ = network.synthesize_mel(*inputs)
        *_, seed = inputs
        samples = frames * HOP_SAMPLES
        longest = tf.shape(mel)[1] * HOP_SAMPLES

        def wave_of(row):  # of its own frames alone, as `griffin_lim_waves` does it: what pads a row changes no sample
            wave = griffin_lim(mel[row : row + 1, : frames[row]], iterations, seed)[0]
            return tf.pad(wave, [[0, longest - samples[row]]])

        wave = tf.map_fn(wave_of, tf.range(tf.shape(mel)[0]), fn_output_signature=tf.TensorSpec([None], tf.float32))
        return {"wave": wave, "samples": samples, "mel": mel}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "wave")])
    def reference_mel(wave):
        mel = log_mel(wave[None, :reference_samples])
        return {"reference": mel, "reference_frames": tf.shape(mel)[1:2]}

    module = tf.Module(name="voice")
    module.weights = [v.value for v in network.variables]
    module.synthesize, module.reference_mel = synthesize, reference_mel
    return module


def export_metadata(metadata: dict[str, Any], iterations: int) -> dict[str, Any]:
    """metadata.json: all that a program needs to know to use the signatures.

    Args:
        about: state.json of the checkpoint.
    """
    settings, vocabulary = metadata["settings"], vocabulary_of(metadata)
    options = synthesis_options(ModelConfig(**settings["model"]))
    return {
        "format": FORMAT,
        "run": settings["run"]["run"],
        "step": metadata["step"],
        "sample_rate_hz": SAMPLE_RATE_HZ,
        "hop_samples": HOP_SAMPLES,
        "mel_bands": MEL_BANDS,
        "reference_samples": int(settings["data"]["reference_seconds"] * SAMPLE_RATE_HZ),
        "griffin_lim_iterations": iterations,
        "text_frontend": settings["data"]["text_frontend"],
        "padding_id": PADDING_ID,
        "begin_id": BEGIN_ID,
        "end_id": END_ID,
        "symbols": {symbol: FIRST_SYMBOL_ID + row for row, symbol in enumerate(vocabulary.symbols.symbols)},
        "languages": {language: row for row, language in enumerate(vocabulary.languages)},
        "defaults": asdict(options) | {"seed": [options.seed, 0]},
    }
