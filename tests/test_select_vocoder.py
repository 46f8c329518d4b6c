"""The vocoder of a voice: which one is used or refused. Runs without weights are enough."""

import unittest
from pathlib import Path

from myxtts.audio.format import SAMPLE_RATE_HZ, audio_format
from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.checkpoints.files import write_record
from myxtts.checkpoints.trained_run import TrainedRun, VocoderChoice
from myxtts.config.schema import Config, ModelConfig
from myxtts.devicefeed.errors import UserError
from tests.fixtures import entered, make_record, temporary_folder, working_in

AUDIO_FORMAT = audio_format(SAMPLE_RATE_HZ)


class SelectVocoder(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        entered(self.addCleanup, working_in(self.folder))
        for name in ("vocoder", "other"):
            self.write(f"runs/{name}", task="vocoder")
        self.voice = self.write("runs/voice")

    def write(self, run: str, *, audio_format: dict = AUDIO_FORMAT, **model) -> Path:
        """Write a run of one checkpoint without weights."""
        checkpoint = self.folder / run / "checkpoints" / "step-000007"
        checkpoint.mkdir(parents=True, exist_ok=True)
        settings = Config(model=ModelConfig(**model))
        write_record(checkpoint, make_record(settings=settings, step=7, audio_format=audio_format))
        return Path(run)

    def select(self, *requested):
        return TrainedRun.open(Path("runs/voice")).select_vocoder(*requested)

    def assert_refused(self, error: type[UserError], expected: str, *requested):
        with self.assertRaisesRegex(error, expected):
            self.select(*requested)

    def test_the_requested_vocoder_goes_before_the_named_one_and_griffin_lim_is_last(self):
        griffin_lim = VocoderChoice(note=" (no --vocoder was given)")
        self.assertEqual(self.select(), griffin_lim)
        self.assertEqual(self.select("griffin-lim", 60), VocoderChoice(iterations=60))
        self.assertEqual(self.select("runs/other").trained.path, Path("runs/other"))
        self.write("runs/voice", vocoder="runs/vocoder")
        checkpoint = self.select().trained.checkpoint.path
        self.assertEqual(checkpoint, Path("runs/vocoder/checkpoints/step-000007"))
        self.assertEqual(self.select(Path("runs/other")).trained.path, Path("runs/other"))
        self.assertEqual(self.select("griffin-lim"), VocoderChoice())

    def test_iterations_are_for_griffin_lim_only(self):
        self.assertEqual(self.select(None, 5).iterations, 5)
        for iterations in (0, -1, 1.5, float("nan")):
            self.assert_refused(ConfigError, "iterations is .* from 1 to 1000", None, iterations)
        message = "--iterations 5 was given, .* --vocoder runs/vocoder was given"
        self.assert_refused(ConfigError, message, "runs/vocoder", 5)
        self.write("runs/voice", vocoder="runs/vocoder")
        message = "runs/voice has the setting vocoder runs/vocoder"
        self.assert_refused(ConfigError, message, None, 5)

    def test_a_missing_run_is_an_error_and_never_griffin_lim(self):
        message = "--vocoder runs/vocodr was given, but runs/vocodr has no checkpoint"
        self.assert_refused(CheckpointError, message, "runs/vocodr")
        (self.folder / "exported").mkdir()
        (self.folder / "exported" / "voice.onnx").touch()
        self.assert_refused(CheckpointError, "exported is an exported voice", "exported")
        self.write("runs/voice", vocoder="runs/gone")
        message = "runs/voice has the setting vocoder runs/gone.* --vocoder griffin-lim"
        self.assert_refused(CheckpointError, message)

    def test_a_run_of_another_task_is_refused_by_its_task(self):
        for task in ("tts", "asr"):
            self.write("runs/other", task=task)
            self.assert_refused(CheckpointError, f"trained with --task {task}", "runs/other")

    def test_another_audio_format_is_refused_by_names_and_values(self):
        other = AUDIO_FORMAT | {"hop_samples": 300, "high_hz": 11_025.0}
        self.write("runs/other", task="vocoder", audio_format=other)
        message = "hop_samples 300 instead of 256, high_hz 11025.0 instead of 8000.0"
        self.assert_refused(CheckpointError, message, "runs/other")
        self.write("runs/other", task="vocoder", audio_format={})
        self.assert_refused(CheckpointError, "sample_rate_hz None instead of 22050", "runs/other")
