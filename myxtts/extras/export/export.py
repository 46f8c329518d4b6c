"""Export of a trained run as a SavedModel for programs that have TensorFlow but not this package.

A voice has the signatures `serving_default` (ids → wave) and `reference` (wave → mel), a vocoder
`serving_default` (mel → wave) and `log_mel` (wave → mel). metadata.json next to saved_model.pb has
the audio format and the vocoder; a voice adds ids, text front end and default options.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, mel_bands, sample_rate_hz
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import OnnxVocoder, VocoderProtocol
from myxtts.base.errors import ConfigError
from myxtts.base.files import check_writable, new_folder, write_json
from myxtts.checkpoints.files import Record
from myxtts.checkpoints.trained_run import TrainedRun, VocoderChoice
from myxtts.config.parser import PRECISIONS
from myxtts.config.schema import PlacementConfig
from myxtts.extras.export.player_files import write_player_files
from myxtts.extras.export.web import npm_files, write_page
from myxtts.placement import devices
from myxtts.placement.settings import plan_routes
from myxtts.report.reporter import disk_errors
from myxtts.tasks import loading
from myxtts.tasks.tts.network import SYNTHESIS_SIGNATURE, XTTS
from myxtts.tasks.tts.task import synthesis_options
from myxtts.text.symbols import BEGIN_ID, END_ID, FIRST_SYMBOL_ID, PADDING_ID

FORMAT = 3
WAVE_SIGNATURE = (tf.TensorSpec([None], tf.float32, "wave"),)

log = logging.getLogger(__name__)


# Everything that can be wrong is checked before the network is built: the folder, the vocoder, the
# flags that do not go together, the packages of a page. Then one of three exports is written into a
# hidden folder beside the target and renamed: a SavedModel of a voice, a SavedModel of a vocoder,
# or files for players. The CPU traces it, so that no device name gets into the files.
def export_run(
    run: Path,
    out: Path,
    checkpoint: str | None = None,
    vocoder: str | None = None,
    iterations: int | None = None,
    form: str = "savedmodel",
    references: Mapping[str, Sequence[Path]] | None = None,
    language: str | None = None,
    node_modules: Path = Path("node_modules"),
    precisions: Sequence[str] | None = None,
) -> None:
    """Write a voice or a vocoder as a SavedModel that names no device, or as files for players.

    References by speaker and the language are for such files; "web" is "onnx" with a page and the
    files it needs of `node_modules`. Other arguments as in `Synthesizer`. Raises UserError if the
    run, the vocoder or the output is unusable.
    """
    check_new_folder(out)
    trained = TrainedRun.open_for_use(run, checkpoint)
    choice = None
    if trained.task != "vocoder":
        trained.check_task("tts")
        choice = trained.select_vocoder(vocoder, iterations)
    elif vocoder is not None or iterations is not None:
        raise ConfigError(
            f"{run} is a vocoder itself, not a voice. Leave out --vocoder and --iterations."
        )
    if (references or language) and (form == "savedmodel" or choice is None):
        raise ConfigError(
            "--reference and --language are for voices with --format onnx, web or litert. Leave"
            " them out."
        )
    if precisions and form in ("savedmodel", "web"):
        raise ConfigError(
            f"--precision {precisions[0]} was given, but is for --format onnx and litert. Leave it"
            " out."
        )
    npm = {}
    if form == "web":
        trained.check_task("tts")
        npm = npm_files(node_modules, trained.record.settings.data.text_frontend)
    placement = plan_routes(PlacementConfig(), gpu_count=0)
    devices.configure(placement)
    device = placement.routes[0].model
    with tf.device(device):
        if form != "savedmodel":
            with complete_folder(out) as folder:
                given = device, references or {}, language, precisions or PRECISIONS
                write_player_files(form, trained, choice, folder, *given)
                if form == "web":
                    write_page(folder, f"{trained.path.name}.onnx", npm)
        elif choice is None:
            network = loading.load_vocoder_network(trained, device)
            module = vocoder_module(network)
            signatures = {"serving_default": module.synthesize, "log_mel": module.log_mel}
            write_saved_model(module, signatures, vocoder_metadata(trained.record, network), out)
        else:
            write_voice(trained, choice, device, out)
    log.info("export         %s of %s", out, trained.checkpoint.path)


def write_voice(run: TrainedRun, choice: VocoderChoice, device: str, out: Path) -> None:
    """Write a voice with its vocoder as a SavedModel; raises CheckpointError on damage."""
    vocoder = loading.load_vocoder(choice, device)
    if isinstance(vocoder, OnnxVocoder):
        raise ConfigError(
            f"{vocoder.path} cannot be a part of a SavedModel. Give --format onnx, or the run of a"
            " vocoder with --vocoder."
        )
    network = loading.load_network(run, device, "tts")
    document = voice_metadata(run.record, vocoder)
    loudness = run.record.settings.data.loudness
    module = synthesis_module(network, vocoder, document["reference_samples"], loudness)
    signatures = {"serving_default": module.synthesize, "reference": module.reference_mel}
    write_saved_model(module, signatures, document, out)


def check_new_folder(out: Path) -> None:
    """Raise ConfigError if the folder of --out exists or cannot be made."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out {out} exists already. Give another folder, or remove this one.")
    check_writable("--out", out)


@contextmanager
def complete_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes `out` if the scope ends without an error."""
    with disk_errors(out.parent), new_folder(out) as folder:
        yield folder


def write_saved_model(
    module: tf.Module, signatures: dict[str, Any], metadata: dict[str, Any], out: Path
) -> None:
    with complete_folder(out) as folder:
        tf.saved_model.save(module, str(folder), signatures)
        write_json(folder / "metadata.json", metadata)


def synthesis_module(
    network: XTTS, vocoder: VocoderProtocol, reference_samples: int, loudness: float | None = None
) -> tf.Module:
    """Return a voice without Keras: `synthesize` (ids to waves), `reference_mel` (wave to mel)."""

    @tf.function(input_signature=SYNTHESIS_SIGNATURE, autograph=False)
    def synthesize(*inputs):
        # The seed of the mel also draws the phases or the noise of the vocoder.
        mel, frames, _ = network.synthesize_mel(*inputs)
        *_, seed = inputs
        return padded_waves(vocoder, mel, frames, seed) | {"mel": mel}

    @tf.function(input_signature=WAVE_SIGNATURE, autograph=False)
    def reference_mel(wave):
        mel = log_mel(with_loudness(wave[None, :reference_samples], loudness))
        return {"reference": mel, "reference_frames": tf.shape(mel)[1:2]}

    module = tf.Module(name="synthesizer")
    module.weights = [*(v.value for v in network.variables), *vocoder.variables]
    module.synthesize, module.reference_mel = synthesize, reference_mel
    return module


def vocoder_module(vocoder: VocoderProtocol) -> tf.Module:
    """Return a vocoder without Keras: `synthesize` (mels to waves), `log_mel` (wave to mel)."""

    signature = (
        tf.TensorSpec([None, None, mel_bands()], tf.float32, "mel"),
        tf.TensorSpec([None], tf.int32, "frames"),
        tf.TensorSpec([2], tf.int32, "seed"),
    )

    @tf.function(input_signature=signature, autograph=False)
    def synthesize(mel, frames, seed):
        return padded_waves(vocoder, mel, frames, seed)

    @tf.function(input_signature=WAVE_SIGNATURE, autograph=False)
    def mel_of_wave(wave):
        mel = log_mel(wave[None])
        return {"mel": mel, "frames": tf.shape(mel)[1:2]}

    module = tf.Module(name="vocoder")
    module.weights = vocoder.variables
    module.synthesize, module.log_mel = synthesize, mel_of_wave
    return module


def padded_waves(vocoder: VocoderProtocol, mel, frames, seed):
    """Return `wave`, float32 [batch, samples], silent behind `samples`, int32 [batch]."""
    # Each row alone, without its padding, as in `vocode`, so that padding changes no sample.
    samples = frames * HOP_SAMPLES
    max_samples = tf.shape(mel)[1] * HOP_SAMPLES

    def row_wave(row):
        wave = vocoder.synthesize(mel[row : row + 1, : frames[row]], seed)[0]
        return tf.pad(wave, [[0, max_samples - samples[row]]])

    rows = tf.range(tf.shape(mel)[0])
    wave = tf.map_fn(row_wave, rows, fn_output_signature=tf.TensorSpec([None], tf.float32))
    return {"wave": wave, "samples": samples}


def vocoder_metadata(record: Record, vocoder: VocoderProtocol) -> dict[str, Any]:
    """Return the metadata.json of a vocoder; a voice's has the same and more."""
    settings = record.settings
    origin = {"task": settings.model.task, "run": settings.run.run, "step": record.step}
    return {"format": FORMAT, **origin, **record.audio_format, "vocoder": vocoder.metadata}


def voice_metadata(record: Record, vocoder: VocoderProtocol) -> dict[str, Any]:
    """Return the metadata.json of a voice, which a program needs to call the signatures."""
    data, vocabulary = record.settings.data, record.vocabulary
    options = synthesis_options(record.settings.model)
    symbols = vocabulary.symbols.symbols
    return vocoder_metadata(record, vocoder) | {
        "reference_samples": int(data.reference_seconds * sample_rate_hz()),
        "trim": data.trim,
        "text_frontend": data.text_frontend,
        "text_normaliser": data.text_normaliser,
        "lexicon": record.lexicon,
        "frontend_version": record.frontend_version,
        "padding_id": PADDING_ID,
        "begin_id": BEGIN_ID,
        "end_id": END_ID,
        "symbols": {symbol: row for row, symbol in enumerate(symbols, FIRST_SYMBOL_ID)},
        "languages": {language: row for row, language in enumerate(vocabulary.languages)},
        "defaults": asdict(options) | {"seed": [options.seed, 0]},
    }
