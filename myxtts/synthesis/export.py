"""Export of a trained run as a SavedModel for programs that have TensorFlow but not this package.

FOLDER/
    saved_model.pb  variables/  …    signatures `serving_default` and `reference`
    metadata.json                    ids of symbols and languages, text front end, and default options
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
    """Write a run as a SavedModel. The export runs on the CPU, and the SavedModel names no device.

    Args:
        out: folder to make. It appears only when it is complete.
        checkpoint: name of a checkpoint; by default the best, or the newest if none was validated.
        iterations: number of Griffin-Lim iterations; by default as in synthesis.

    Raises:
        UserError: the run or the output is unusable.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out {out} exists already. Give another folder, or remove this one.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} cannot be written: there is no folder {out.parent}. Make the folder first.")
    selected = select_checkpoint(run, checkpoint)
    placement = plan_routes(PlacementConfig(), gpu_count=0)
    devices.configure(placement)
    export_checkpoint(selected, out, ITERATIONS if iterations is None else iterations, placement.routes[0].model)
    log.info("export         %s of %s", out, selected)


def export_checkpoint(checkpoint: Path, out: Path, iterations: int, device: str) -> None:
    """Write a checkpoint as a SavedModel.

    Args:
        out: folder to make, which must not exist.
        device: the device to load the weights on.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    metadata = read_metadata(checkpoint)
    document = export_metadata(metadata, iterations)
    with tf.device(device):
        network = load_model(checkpoint, metadata, device, task="tts")
        module = synthesis_module(network, iterations, document["reference_samples"])
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        partial = Path(temporary) / out.name
        signatures = {"serving_default": module.synthesize, "reference": module.reference_mel}
        tf.saved_model.save(module, str(partial), signatures)
        write_whole(partial / "metadata.json", json.dumps(document, ensure_ascii=False, indent=1).encode())
        os.replace(partial, out)


def synthesis_module(network: XTTS, iterations: int, reference_samples: int) -> tf.Module:
    """Return the module to save: `synthesize` maps ids to waves, and `reference_mel` a reference wave to its mel.

    The module has plain variables and functions and no Keras object, so loading it does not need Keras.
    """

    @tf.function(input_signature=SYNTHESIS_SIGNATURE)
    def synthesize(*inputs):
        mel, frames, _ = network.synthesize_mel(*inputs)
        *_, seed = inputs
        samples = frames * HOP_SAMPLES
        max_samples = tf.shape(mel)[1] * HOP_SAMPLES

        def row_wave(row):  # without its padding, as in `griffin_lim_waves`, so that padding changes no sample
            wave = griffin_lim(mel[row : row + 1, : frames[row]], iterations, seed)[0]
            return tf.pad(wave, [[0, max_samples - samples[row]]])

        wave = tf.map_fn(row_wave, tf.range(tf.shape(mel)[0]), fn_output_signature=tf.TensorSpec([None], tf.float32))
        return {"wave": wave, "samples": samples, "mel": mel}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "wave")])
    def reference_mel(wave):
        mel = log_mel(wave[None, :reference_samples])
        return {"reference": mel, "reference_frames": tf.shape(mel)[1:2]}

    module = tf.Module(name="synthesizer")
    module.weights = [v.value for v in network.variables]
    module.synthesize, module.reference_mel = synthesize, reference_mel
    return module


def export_metadata(metadata: dict[str, Any], iterations: int) -> dict[str, Any]:
    """Return the content of metadata.json, which a program needs to call the signatures.

    Args:
        metadata: content of state.json of the checkpoint.
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
