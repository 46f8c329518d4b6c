"""Export as ONNX or LiteRT: a voice with its vocoder as `piper` describes, or a vocoder alone.

The graph has no complex numbers and needs no further input: see `onnx_graph`, `litert_graph`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import mel_bands, sample_rate_hz
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import NetworkVocoder, OnnxVocoder
from myxtts.base.errors import ConfigError, DataError, check_packages
from myxtts.base.files import write_json, write_whole
from myxtts.checkpoints.trained_run import TrainedRun, VocoderChoice
from myxtts.corpus.manifest import read_manifest
from myxtts.corpus.sound import read_row
from myxtts.extras.export import piper
from myxtts.extras.export.litert_graph import litert_models
from myxtts.extras.export.onnx_graph import OPSET, onnx_graph
from myxtts.speak.chunks import load_onnx, player_ids_of, voice_inputs
from myxtts.tasks import loading
from myxtts.tasks.tts.network import XTTS, SpeakerCondition
from myxtts.tasks.tts.synthesizer import reference_mel
from myxtts.tasks.tts.task import synthesis_options
from myxtts.text.espeak import voice_of

_OF_ONNX = "onnx", "onnxruntime"
PACKAGES = {"onnx": _OF_ONNX, "web": _OF_ONNX, "litert": ("ai_edge_litert",)}
# Tensors with fewer values are biases and the like, and stay float32.
MIN_REDUCED = 1024
REPEATS = 3

README = Path(__file__).with_name("files.md").read_text("utf-8")


class Graph(NamedTuple):
    """A traced function, and what its ONNX file says of it."""

    traced: Any
    outputs: Sequence[str]
    metadata: dict[str, str]
    variables: Sequence[Any]  # which it refers to weakly
    example: dict[str, np.ndarray]  # inputs, to measure it
    vocoder: OnnxVocoder | None = None  # which follows in the file


# A vocoder alone is one graph. A voice is a graph from ids to sound, with the vocoder inside; each
# speaker is a reference that is encoded now, once. The graph is written in several precisions, and
# each file is loaded again and measured, so that README.md has its speed and its error.
def write_player_files(
    form: str,
    run: TrainedRun,
    choice: VocoderChoice | None,
    folder: Path,
    device: str,
    references: Mapping[str, Sequence[Path]],
    language: str | None,
    precisions: Iterable[str],
) -> None:
    """Write a voice with its vocoder, or a vocoder if `choice` is None, and README.md.

    Raises UserError if packages are missing, or a speaker or the language is unusable.
    """
    check_packages(f"--format {form}", *PACKAGES[form])
    name, speakers, document, text = run.path.name, "", None, "a random mel"
    if choice is None:
        graph = vocoder_graph(run, device)
    else:
        vocoder = loading.load_vocoder(choice, device)
        is_onnx = form != "litert"
        kinds = (NetworkVocoder, OnnxVocoder) if is_onnx else NetworkVocoder
        if not isinstance(vocoder, kinds):
            needed = "a trained vocoder" if is_onnx else "the run of a vocoder"
            raise ConfigError(
                f"--format {form} needs {needed}, but {run.path} would use"
                f" {vocoder.description}. Give the run of a vocoder with --vocoder."
            )
        language = run.record.choose_language(language)
        mels = speaker_mels(run, references)
        spoken = held_out_texts(run)[0]
        graph, document = voice_graph(run, vocoder, mels, spoken, language, device)
        speakers = f", language {language}, speakers {', '.join(mels)}"
        text = f"[{''.join(spoken)}]"
        if is_onnx:
            ids = document["phoneme_id_map"].items()
            tokens = "".join(f"{point} {number}\n" for point, (number,) in ids)
            write_whole(folder / "tokens.txt", tokens.encode())
    table = write_models(form, graph, folder, name, document, precisions)
    source = f"step {run.record.step} of {name}"
    names = {"name": name, "form": form, "source": source, "speakers": speakers}
    write_whole(folder / "README.md", README.format(**names, table=table, text=text).encode())


# The network is asked now what it makes of each speaker and the language, so the graph has these as
# constants. What is left as input is what a player knows: ids, their number, three scales, and the
# number of the speaker. A vocoder that is itself a file of ONNX is appended later, so then the
# graph ends with the mel.
def voice_graph(
    run: TrainedRun,
    vocoder: NetworkVocoder | OnnxVocoder,
    speakers: Mapping[str, np.ndarray],
    example: Sequence[str],
    language: str,
    device: str,
) -> tuple[Graph, dict[str, Any]]:
    """Return the graph of a voice and the JSON beside it.

    `speakers` are reference log-mels, float32 [R, 80], and `example` has the symbols of a text.
    """
    network = loading.load_network(run, device, "tts")
    record = run.record
    options = synthesis_options(record.settings.model)
    row, symbols = record.vocabulary.languages.index(language), record.vocabulary.symbols.symbols
    conditions = [speaker_condition(network, mel, row) for mel in speakers.values()]
    condition = SpeakerCondition._make(map(np.concatenate, zip(*conditions, strict=True)))
    table = piper.player_ids(symbols)
    mel_of = piper.mel_function(network, condition, table, options)
    file, output = None, "output"
    if isinstance(vocoder, OnnxVocoder):
        file, output = vocoder, "mel"

    def speak(*inputs):
        (mel, frames), seed = mel_of(*inputs), tf.constant([options.seed, 0])
        if isinstance(vocoder, OnnxVocoder):
            return tf.transpose(mel, vocoder.order), frames
        return piper.faded(vocoder.synthesize.python_function(mel, seed)), frames

    signature = piper.voice_signature(len(speakers))
    traced = tf.function(speak, input_signature=signature, autograph=False)
    espeak_voice = voice_of(language)
    document = piper.voice_document(
        table, language, espeak_voice, list(speakers), record.frontend, symbols
    )
    metadata = piper.sherpa_metadata(language, espeak_voice, len(speakers), record.frontend.kind)
    inputs = voice_inputs(player_ids_of(example, document["phoneme_id_map"]), len(speakers))
    variables = [*network.variables, *vocoder.variables]
    outputs = output, piper.DURATIONS
    graph = Graph(traced.get_concrete_function(), outputs, metadata, variables, inputs, file)
    return graph, document


def held_out_texts(run: TrainedRun) -> list[list[str]]:
    """Return the symbols of the utterances that a run held out; all of its table without a list."""
    symbols = run.record.vocabulary.symbols
    found = read_manifest(run.path / "manifest-validation.npz")
    if not found or not len(found[0]):
        return [[*symbols.symbols]]
    manifest, _ = found
    return [symbols.decode(manifest.tokens_of(row)) for row in range(len(manifest))]


def vocoder_graph(run: TrainedRun, device: str) -> Graph:
    """Return the graph of a vocoder: `mel` float32 [1, 80, T] → `wave` [1, T * 256].

    As HiFi-GAN's, Vocos' and Matcha's. Raises CheckpointError if it is damaged.
    """
    vocoder = loading.load_vocoder_network(run, device)
    synthesize = vocoder.synthesize.python_function

    def wave_of(mel):
        return synthesize(tf.transpose(mel, [0, 2, 1]), tf.constant([0, 0]))

    signature = [tf.TensorSpec([1, mel_bands(), None], tf.float32, "mel")]
    traced = tf.function(wave_of, input_signature=signature, autograph=False)
    metadata = {"model_type": "vocoder", "comment": "myxtts", "sample_rate": str(sample_rate_hz())}
    mel = np.random.default_rng(0).normal(-5.0, 2.0, [1, mel_bands(), 300])
    example = {"mel": mel.astype(np.float32)}
    return Graph(traced.get_concrete_function(), ["wave"], metadata, vocoder.variables, example)


def speaker_condition(network: XTTS, mel: np.ndarray, language: int) -> SpeakerCondition:
    """Return what a reference log-mel, float32 [R, 80], tells the network; one row."""
    batch = {
        "reference": tf.constant(mel[None]),
        "reference_frames": tf.constant([len(mel)]),
        "language": tf.constant([language]),
    }
    return network.speaker_condition(batch, tf.ones([1]))


def speaker_mels(
    run: TrainedRun, references: Mapping[str, Sequence[Path]]
) -> dict[str, np.ndarray]:
    """Return reference log-mels by speaker: of recordings, or of the corpus of the run.

    In a corpus it is the beginning of the longest utterance, and who has most of them comes first:
    players speak with the first. Raises DataError if none can be read.
    """
    data = run.record.settings.data
    if references:
        return {name: reference_mel(paths, data) for name, paths in references.items()}
    found = read_manifest(run.path / "manifest-train.npz")
    advice = "Give recordings of each speaker with --reference NAME=FILE."
    if found is None:
        raise DataError(f"{run.path} does not have the list of its corpus. {advice}")
    manifest, vocabulary = found
    mels = {}
    counts = np.bincount(manifest.speaker, minlength=len(vocabulary.speakers))
    for row in np.argsort(-counts, kind="stable"):
        name = vocabulary.speakers[row]
        (utterances,) = np.nonzero(manifest.speaker == row)
        if len(utterances):
            longest = utterances[manifest.samples[utterances].argmax()]
            try:
                whole = read_row(manifest, longest)
            except DataError as error:
                raise DataError(f"{error}. {advice}") from error
            wave = whole[None, : int(data.reference_seconds * sample_rate_hz())]
            mels[name] = log_mel(with_loudness(tf.constant(wave), data.loudness))[0].numpy()
    return mels


# The vocoder's file is brought to the same opset, its names get a prefix, and its input is
# connected to the mel. Its output gets the shape that players expect.
def with_vocoder(model, vocoder: OnnxVocoder):
    """Return the model of a voice, whose first output is a mel, with a vocoder behind it."""
    from onnx import TensorProto, compose, helper, load, numpy_helper, version_converter

    other = load(vocoder.path)
    if {entry.domain: entry.version for entry in other.opset_import}.get("") != OPSET:
        other = version_converter.convert_version(other, OPSET)
    other.ir_version = model.ir_version
    del other.metadata_props[:]
    other = compose.add_prefix(other, "vocoder/")
    mel, frames = model.graph.output
    wave = other.graph.output[0].name
    joined = compose.merge_models(model, other, [(mel.name, other.graph.input[0].name)])
    # Files of others may name the same domain twice.
    del joined.opset_import[:]
    joined.opset_import.append(helper.make_opsetid("", OPSET))
    shape = numpy_helper.from_array(np.array([1, 1, -1]), "output_shape")
    joined.graph.initializer.append(shape)
    joined.graph.node.append(helper.make_node("Reshape", [wave, shape.name], ["output"]))
    del joined.graph.output[:]
    info = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, "samples"])
    joined.graph.output.extend([info, frames])
    return joined


def trained_names(model, variables: Sequence[Any]) -> set[str]:
    """Return the names of the constants that are trained matrices of two or three dimensions."""
    from onnx import numpy_helper

    arrays = [np.asarray(v) for v in variables if v.shape.rank in (2, 3)]
    matrices = (x.reshape(-1, x.shape[-1]) for x in arrays if x.size >= MIN_REDUCED)
    known = {matrix.tobytes() for matrix in matrices}
    constants = ((x.name, numpy_helper.to_array(x)) for x in model.graph.initializer)
    return {name for name, array in constants if array.tobytes() in known}


def onnx_models(graph: Graph, name: str, precisions: Iterable[str]) -> dict[str, bytes]:
    """Return the models of a graph by their precision; the smaller ones reduce trained matrices."""
    model = onnx_graph(graph.traced, name, graph.outputs, graph.metadata)
    if graph.vocoder:
        model = with_vocoder(model, graph.vocoder)
    trained = trained_names(model, graph.variables)
    models = {kind: reduced_model(model, trained, kind) for kind in precisions}
    return {kind: of.SerializeToString() for kind, of in models.items()}


# Each trained matrix is replaced by a smaller constant and nodes that restore it under the old
# name, so the rest of the graph need not change. These nodes come first, and runtimes fold them.
# DequantizeLinear they would compute in each sentence, and again where a matrix is used again.
def reduced_model(model, trained: Collection[str], kind: str):
    """Store trained matrices of a model in fewer bits; in int8, each column has its own scale."""
    from onnx import ModelProto, TensorProto, helper, numpy_helper

    if kind == "float32":
        return model
    reduced = ModelProto()
    reduced.CopyFrom(model)
    nodes = []
    for tensor in [x for x in reduced.graph.initializer if x.name in trained]:
        name, array = tensor.name, numpy_helper.to_array(tensor)
        small, stored, restored = array.astype(np.float16), f"{name}_{kind}", name
        if kind == "int8":
            scale = np.maximum(np.abs(array).max(axis=0), 1e-9) / np.float32(127.0)
            small, restored = np.rint(array / scale).astype(np.int8), f"{name}_scaled"
            reduced.graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
            nodes.append(helper.make_node("Mul", [restored, f"{name}_scale"], [name]))
        nodes.insert(0, helper.make_node("Cast", [stored], [restored], to=TensorProto.FLOAT))
        tensor.CopyFrom(numpy_helper.from_array(small, stored))
    nodes += reduced.graph.node
    del reduced.graph.node[:]
    reduced.graph.node.extend(nodes)
    return reduced


def write_models(
    form: str,
    graph: Graph,
    folder: Path,
    name: str,
    document: dict[str, Any] | None,
    precisions: Iterable[str],
) -> str:
    """Write the variants of a graph and their JSON; return the table of README.md."""
    expected = tf.nest.flatten(graph.traced(*map(tf.constant, graph.example.values())))[0]
    if graph.vocoder:
        expected = graph.vocoder.synthesize(tf.transpose(expected, graph.vocoder.order), None)
    models_of, load, extension = _FORMS[form]
    rows = []
    for kind, model in models_of(graph, name, precisions).items():
        stem = name if kind == "float32" else f"{name}-{kind}"
        path = folder / f"{stem}.{extension}"
        write_whole(path, model)
        if document is not None:
            write_json(path.with_name(f"{path.name}.json"), document)
        speak = partial(load(path), graph.example)
        wave = speak()[0]
        factor = min(repeat(speak, number=1, repeat=REPEATS)) / (wave.size / sample_rate_hz())
        figures = f"{len(model) / 1e6:.1f} | {factor:.3f} | {difference(wave, expected.numpy())}"
        rows.append(f"| {path.name} | {figures} |")
    return "\n".join(rows)


def load_litert(path: Path) -> Callable:
    """Return a function of the inputs of a LiteRT file that returns its outputs, on one core."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    speak = interpreter.get_signature_runner()
    return lambda inputs: [*speak(**inputs).values()]


_ONNX = onnx_models, load_onnx, "onnx"
_LITERT = load_litert, "tflite"
_FORMS: dict[str, tuple[Callable, Callable, str]] = {
    "onnx": _ONNX,
    "web": _ONNX,
    "litert": (lambda of, _, kinds: litert_models(of.traced, of.outputs, kinds), *_LITERT),
}


def difference(wave: np.ndarray, expected: np.ndarray) -> str:
    """Return the RMS of the difference over the RMS of the wave."""
    if wave.size != expected.size:
        return f"{wave.size / expected.size:.3f} of the length"
    error = np.sqrt(np.mean(np.square(wave.ravel() - expected.ravel())))
    return f"{error / np.sqrt(np.mean(np.square(expected))):.1e}"
