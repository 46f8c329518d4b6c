"""An exported run has the outputs of the original, with and without this package."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ, audio_format
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import GriffinLim, vocode
from myxtts.base.console import report_errors
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import Config
from myxtts.config.synthesis import SynthesisOptions
from myxtts.extras.export import export
from myxtts.extras.export import export_command as export_model
from myxtts.tasks import loading
from tests import tiny_vocoder
from tests.fixtures import entered, make_record, temporary_folder
from tests.sine_corpus import sine
from tests.tiny import (
    SYMBOLS,
    build_model,
    cached_network,
    cached_networks,
    save_checkpoint,
    small_models,
    training_state,
)

ITERATIONS = 4
LETTERS = [chr(ord("a") + i) for i in range(SYMBOLS - 3)]
NUMBERS = {"speed": 1.5, "pitch_semitones": 2.0, "energy_db": -3.0, "variety": 0.5}
NUMBERS |= {"ode_steps": 3, "guidance": 2.0, "accent_strength": 1.5}
OPTIONS = SynthesisOptions(**NUMBERS, seed=5)
CHILD = """
import sys
sys.modules["keras"] = sys.modules["myxtts"] = None  # importing them is an error
import numpy as np
import tensorflow as tf

tf.config.set_soft_device_placement(False)
voice, vocoder, griffin_lim, inputs, out = sys.argv[1:]
synthesizer, *vocoders = [tf.saved_model.load(folder) for folder in (voice, vocoder, griffin_lim)]
inputs = dict(np.load(inputs))
wave = tf.constant(inputs.pop("reference_wave"))
reference = synthesizer.signatures["reference"](wave=wave)
tensors = {name: tf.constant(value) for name, value in inputs.items()}
speech = synthesizer.signatures["serving_default"](**tensors)
outputs = reference | speech
for name, vocoder in zip(("vocoder", "griffin_lim"), vocoders):
    mels = {"mel": speech["mel"], "frames": speech["samples"] // 256, "seed": tensors["seed"]}
    vocoded = vocoder.signatures["serving_default"](**mels)
    outputs |= {f"{name}_{key}": value for key, value in vocoded.items()}
log_mel = vocoders[0].signatures["log_mel"](wave=wave)
outputs |= {f"vocoder_{key}": value for key, value in log_mel.items()}
np.savez(out, **{name: value.numpy() for name, value in outputs.items()})
"""


def write_run(folder: Path) -> Path:
    """Write a run with random weights and one checkpoint; returns the checkpoint."""
    model, data = {"model_size": "tiny", "ode_steps": 6}, {"text_frontend": "characters"}
    names = {"symbols": tuple(LETTERS), "speakers": ("s",), "languages": ("en", "ka")}
    record = make_record(settings=Config(model=model, data=data), **names)
    state = training_state(build_model())
    random = np.random.default_rng(0)
    for average in state.averages:
        average.assign_add(random.normal(0.0, 0.1, average.shape))
    state.step = 7
    return save_checkpoint(folder, record, state)


def write_vocoder(folder: Path) -> Path:
    """Write the run of a vocoder with initial weights; returns its checkpoint."""
    settings = Config(model={"task": "vocoder", "model_size": "tiny"})
    record = make_record(settings=settings, symbols=(), speakers=(), languages=())
    return save_checkpoint(folder, record, training_state(tiny_vocoder.vocoder()))


class StubModule(tf.Module):
    """A replacement for the exported module in tests that ignore its output."""

    @tf.function(input_signature=[])
    def synthesize(self):
        return {"wave": tf.zeros([1])}

    reference_mel = synthesize


class Exported(unittest.TestCase):
    """A checkpoint exported by the program."""

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.run_folder = cls.folder / "run"
        cls.exported, cls.exported_vocoder = cls.folder / "voice", cls.folder / "vocoder"
        cls.vocoder_folder = cls.folder / "vocoder_run"
        with small_models():
            cls.checkpoint = write_run(cls.run_folder)
        write_vocoder(cls.vocoder_folder)
        entered(cls.addClassCleanup, tiny_vocoder.small_vocoders())
        with cached_networks():
            flags = ("--checkpoint", cls.checkpoint.name, "--vocoder", str(cls.vocoder_folder))
            cls.result = cls.program("--out", str(cls.exported), *flags)
        cls.vocoder_result = cls.program(
            "--run", str(cls.vocoder_folder), "--out", str(cls.exported_vocoder)
        )
        cls.griffin_lim = cls.folder / "griffin_lim"
        module = export.vocoder_module(GriffinLim(ITERATIONS))
        tf.saved_model.save(module, str(cls.griffin_lim), {"serving_default": module.synthesize})
        cls.metadata = json.loads((cls.exported / "metadata.json").read_text(encoding="utf-8"))

    def test_program_succeeds(self):
        self.assertEqual((self.result, self.vocoder_result), ((0, ""), (0, "")))

    def test_outputs_match_the_original_in_a_fresh_process(self):
        """One row has a reference longer than the used part, and one row has no reference."""
        wave = sine(220.0, 4.0).astype(np.float32)
        ids = [self.metadata["symbols"][letter] for letter in "badgeface"]
        begin, end = self.metadata["begin_id"], self.metadata["end_id"]
        rows = [[begin, *row, end] for row in (ids, ids[:4])]
        tokens = np.full([2, len(rows[0])], self.metadata["padding_id"], np.int32)
        for target, row in zip(tokens, rows, strict=True):
            target[: len(row)] = row
        network = cached_network(self.checkpoint, "/CPU:0")  # the exported checkpoint
        with tf.device("/CPU:0"):
            reference = log_mel(tf.constant(wave[None, : 3 * SAMPLE_RATE_HZ]))
            frames = reference.shape[1]
            inputs = {
                "tokens": tokens,
                "token_count": np.array([len(row) for row in rows], np.int32),
                "language": np.array([1, 0], np.int32),
                "reference": np.tile(reference, [2, 1, 1]),
                "reference_frames": np.array([frames, 0], np.int32),
            }
            mel, lengths, _ = network.synthesize(*map(tf.constant, inputs.values()), OPTIONS)
            vocoder = loading.load_vocoder_network(TrainedRun.open(self.vocoder_folder), "/CPU:0")
            waves, griffin_lim_waves = (
                vocode(way, mel, lengths, (OPTIONS.seed, 0))
                for way in (vocoder, GriffinLim(ITERATIONS))
            )

        inputs |= {name: np.float32(value) for name, value in NUMBERS.items()}
        inputs |= {"ode_steps": np.int32(3), "seed": np.array([5, 0], np.int32)}
        np.savez(self.folder / "inputs.npz", reference_wave=wave, **inputs)
        folders = self.exported, self.exported_vocoder, self.griffin_lim
        child = [sys.executable, "-I", "-c", CHILD, *folders, "inputs.npz", "outputs.npz"]
        subprocess.run(child, cwd=self.folder, check=True)
        outputs = np.load(self.folder / "outputs.npz")
        names = "wave samples mel reference reference_frames vocoder_wave vocoder_samples"
        names += " griffin_lim_wave griffin_lim_samples vocoder_mel vocoder_frames"
        self.assertEqual(set(outputs), set(names.split()))
        np.testing.assert_array_equal(outputs["reference_frames"], [frames])
        np.testing.assert_allclose(outputs["reference"], reference, atol=1e-4)
        np.testing.assert_array_equal(outputs["samples"], lengths.numpy() * HOP_SAMPLES)
        np.testing.assert_allclose(outputs["mel"], mel, atol=1e-4)
        self.assertEqual(outputs["wave"].shape, (2, outputs["samples"].max()))
        expected_waves = {"": waves, "vocoder_": waves, "griffin_lim_": griffin_lim_waves}
        for name, expected in expected_waves.items():
            np.testing.assert_array_equal(outputs[f"{name}samples"], outputs["samples"])
            for row, wave in zip(outputs[f"{name}wave"], expected, strict=True):
                np.testing.assert_allclose(row[: len(wave)], wave, atol=1e-4)
                np.testing.assert_array_equal(row[len(wave) :], 0.0)
                self.assertGreater(np.abs(wave).max(), 0.0)
        self.assertGreater(np.ptp(outputs["mel"]), 1.0)
        inner = np.s_[:, : frames - 2]
        np.testing.assert_array_equal(outputs["vocoder_mel"][inner], reference[inner])
        self.assertEqual(outputs["vocoder_frames"], [4 * SAMPLE_RATE_HZ // HOP_SAMPLES])

    def test_saved_model_names_no_device(self):
        saved = SavedModel.FromString((self.exported / "saved_model.pb").read_bytes())
        (meta,) = saved.meta_graphs
        # Except the functions that read and write the variables, which TensorFlow binds to the
        # host.
        library = meta.graph_def.library.function
        functions = [f for f in library if "_traced_" not in f.signature.name]
        nodes = [node for f in functions for node in f.node_def]
        self.assertGreater(len(nodes), 1000)
        self.assertEqual([node.name for node in nodes if node.device], [])

    def test_metadata_has_the_ids_and_the_default_options(self):
        expected = {
            "symbols": {letter: 3 + i for i, letter in enumerate(LETTERS)},
            "languages": {"en": 0, "ka": 1},
            **{"padding_id": 0, "begin_id": 1, "end_id": 2, "text_frontend": "characters"},
            **{"task": "tts", "step": 7, "sample_rate_hz": 22_050},
            "vocoder": {"run": str(self.vocoder_folder), "step": 0},
            "defaults": {
                **{"speed": 1.0, "pitch_semitones": 0.0, "energy_db": 0.0},
                **{"variety": 0.5, "ode_steps": 6, "guidance": 1.0, "seed": [0, 0]},
                "accent_strength": 1.0,
            },
        }
        self.assertEqual(self.metadata, self.metadata | expected)

    def test_metadata_of_a_vocoder_has_its_audio_format(self):
        metadata = json.loads((self.exported_vocoder / "metadata.json").read_text(encoding="utf-8"))
        expected = {"format": 3, "task": "vocoder", "run": "default", "step": 0}
        expected |= audio_format(SAMPLE_RATE_HZ)
        self.assertEqual(metadata, expected | {"vocoder": self.metadata["vocoder"]})

    @classmethod
    def program(cls, *flags: str) -> tuple[int, str]:
        """Return the exit code and the error message."""
        stderr = io.StringIO()
        argv = ["--run", str(cls.run_folder), *flags]
        with (
            # This process has configured its devices.
            mock.patch.object(export.devices, "configure"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(stderr),
        ):
            return report_errors(lambda: export_model.main(argv)), stderr.getvalue()

    def test_unusable_arguments_exit_with_2(self):
        broken = shutil.copytree(self.vocoder_folder, self.folder / "broken")
        (averages,) = broken.glob("checkpoints/*/averages.safetensors")
        os.truncate(averages, 1_000)
        vocoder = f"--run {self.vocoder_folder}"
        for flags, expected in (
            (f"--vocoder {self.run_folder}", "it was trained with --task tts"),
            (f"--vocoder {self.vocoder_folder} --iterations 9", "--iterations 9 was given"),
            (f"{vocoder} --vocoder griffin-lim", "is a vocoder itself, not a voice"),
            (f"{vocoder} --iterations 9", "Leave out --vocoder and --iterations"),
            (f"--run {broken}", "averages.safetensors cannot be read"),
            (f"--out {self.exported}", "exists already. Give another folder"),
            (f"--out {self.folder}/none/new", "there is no folder"),
            ("--checkpoint step-000008", "checkpoint 'step-000008' was requested"),
            (f"--run {self.folder}", "has no checkpoint"),
        ):
            with self.subTest(flags=flags):
                code, message = self.program("--out", str(self.folder / "new"), *flags.split())
                self.assertEqual(code, 2)
                self.assertIn(expected, message)
        self.assertFalse((self.folder / "new").exists())

    def test_what_a_disk_refuses_to_tensorflow_is_an_error_of_the_disk(self):
        message = "variables.data; No space left on device"
        refused = tf.errors.ResourceExhaustedError(None, None, message)
        with (
            mock.patch("tensorflow.saved_model.save", side_effect=refused),
            self.assertRaises(OSError) as raised,
        ):
            export.write_saved_model(StubModule(), {}, {}, self.folder / "full")
        error = raised.exception
        self.assertEqual((error.errno, error.filename), (28, str(self.folder)))
        self.assertFalse((self.folder / "full").exists())

    def test_a_full_disk_leaves_no_files(self):
        before = sorted(self.folder.iterdir())
        written = []

        def full(path: Path, _: dict) -> None:
            written.extend(path.parent.iterdir())
            raise OSError(28, "No space left on device")

        with (
            cached_networks(),
            # Quick to save.
            mock.patch.object(export, "synthesis_module", return_value=StubModule()),
            mock.patch.object(export, "write_json", side_effect=full),
        ):
            self.assertEqual(self.program("--out", str(self.folder / "full"))[0], 2)
        self.assertIn("saved_model.pb", {path.name for path in written})
        self.assertEqual(sorted(self.folder.iterdir()), before)
