"""The presets of the audio format: features, runs, exports, and what is not mixed."""

import contextlib
import json
import re
import unittest
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

# isort: split

import librosa
import numpy as np
import soundfile
import tensorflow as tf

from myxtts.audio import format as audio
from myxtts.audio import mel, pitch
from myxtts.audio.audio_file import read_pcm
from myxtts.audio.excitation import pulse_train
from myxtts.audio.format import PRESETS, audio_format, sample_rate_hz, use_sample_rate
from myxtts.audio.sound_header import wav_header
from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.checkpoints.files import latest, read_record
from myxtts.checkpoints.inherited import (
    apply_teacher_settings,
    check_same_settings,
    inherit_settings,
    with_inherited_settings,
)
from myxtts.checkpoints.trained_run import TrainedRun, select_vocoder
from myxtts.commands import say
from myxtts.config.load import load
from myxtts.config.schema import Config, DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.extras.jobs.merge import check_compatible
from myxtts.extras.speakers import spoken
from myxtts.extras.store.packed import PackedRows
from myxtts.tasks.vocoder import network as vocoder
from tests import onnx_voice
from tests.fixtures import FolderCase, make_record, reported
from tests.sine_corpus import frequency, sine, write_corpus
from tests.test_loudness import loudness
from tests.tiny import Workspace
from tests.tiny_asr import small_asr_models
from tests.tiny_vocoder import small_vocoders

CACHES = mel.mel_filters, mel.inverse_mel_filters, pitch._lags, vocoder._interpolation
HAS_ONNX = all(map(find_spec, ("onnx", "onnxruntime")))


@contextlib.contextmanager
def process_at(rate_hz: int | None) -> Iterator[None]:
    """Work as another process would that has loaded a run of this rate; None: nothing yet."""
    used = None if rate_hz is None else (rate_hz, "runs/first")
    for cached in CACHES:
        cached.cache_clear()
    try:
        with mock.patch.object(audio, "_used", used):
            yield
    finally:
        for cached in CACHES:
            cached.cache_clear()


def settings_at(rate_hz: int, **sections) -> Config:
    data = {"sample_rate": rate_hz} | sections.pop("data", {})
    return Config.model_validate({"data": data, **sections})


def run_at(rate_hz: int, path: str, **sections) -> TrainedRun:
    """Return a run at a rate, without files."""
    record = make_record(settings=settings_at(rate_hz, **sections))
    record = record.model_copy(update={"audio_format": audio_format(rate_hz)})
    checkpoint = mock.Mock(path=Path(path, "checkpoints", "step-000001"), record=record)
    return TrainedRun(Path(path), checkpoint)


class PresetTest(unittest.TestCase):
    def test_presets_are_those_of_published_vocoders(self):
        # HiFi-GAN of SpeechBrain, HiFi-GAN, BigVGAN.
        self.assertEqual(
            PRESETS, {16_000: (80, 8_000.0), 22_050: (80, 8_000.0), 24_000: (100, 12_000.0)}
        )
        for rate_hz, (bands, high_hz) in PRESETS.items():
            named = audio_format(rate_hz)
            self.assertEqual((named["sample_rate_hz"], named["mel_bands"]), (rate_hz, bands))
            self.assertEqual((named["high_hz"], named["hop_samples"]), (high_hz, 256))

    def test_mels_are_those_of_librosa(self):
        random = np.random.default_rng(0)
        wave = random.normal(0.0, 0.1, 6_000).astype(np.float32)
        for rate_hz, (bands, high_hz) in PRESETS.items():
            with self.subTest(rate_hz), process_at(rate_hz):
                reflected = np.pad(wave.astype(np.float64), 384, mode="reflect")
                expected = librosa.feature.melspectrogram(
                    y=reflected, sr=rate_hz, n_fft=1024, hop_length=256, center=False, power=1.0,
                    n_mels=bands, fmin=0.0, fmax=high_hz,
                )  # fmt: skip
                found = mel.log_mel(tf.constant(wave[None]))[0].numpy()
                self.assertEqual(found.shape, (23, bands))
                np.testing.assert_allclose(found, np.log(expected.T), atol=1e-4)
                self.assertTrue(mel.mel_filters().any(axis=0).all())

    def test_f0_pulses_and_loudness_know_the_rate(self):
        for rate_hz in PRESETS:
            for hz in (70.0, 120.0, 233.0, 480.0):
                with self.subTest(rate_hz, hz=hz), process_at(rate_hz):
                    time_s = np.arange(rate_hz) / rate_hz
                    wave = sum(np.sin(2 * np.pi * k * hz * time_s) / k for k in range(1, 7)) / 6
                    waves = tf.constant(wave[None].astype(np.float32))
                    found, voiced = pitch.f0(waves, tf.constant([rate_hz]))
                    self.assertTrue(voiced[0, 4:-4].numpy().all())
                    np.testing.assert_allclose(found[0, 4:-4], hz, rtol=0.006)
                    pulses = pulse_train(tf.fill([1, 64], hz), tf.zeros([1, 64, 2]))[0].numpy()
                    power = np.abs(np.fft.rfft(pulses * np.hanning(len(pulses))))
                    step_hz = rate_hz / len(pulses)
                    first = power[: round(1.5 * hz / step_hz)].argmax() * step_hz
                    self.assertAlmostEqual(first, hz, delta=step_hz)
        tone = {rate: sine(997.0, 2.0, rate, 0.25).astype(np.float32) for rate in PRESETS}
        for rate_hz, wave in tone.items():
            with self.subTest(rate_hz), process_at(rate_hz):
                lufs = loudness(tf.constant(wave[None]), tf.constant([len(wave)]))[0]
                self.assertAlmostEqual(float(lufs), -3.01 + 20 * np.log10(0.25), delta=0.1)

    def test_warped_bands_are_never_empty(self):
        for rate_hz, factor in ((24_000, 0.8), (24_000, 1.2), (16_000, 0.8), (16_000, 1.0)):
            with self.subTest(rate_hz, factor=factor), process_at(rate_hz):
                filters = mel.warped_mel_filters(tf.constant([factor]))[0].numpy()
                highest = filters[:, -8:].sum(axis=0) / mel.mel_filters()[:, -8:].sum(axis=0)
                self.assertGreater(highest.min(), 0.2)
                if factor == 1.0:
                    np.testing.assert_allclose(filters, mel.mel_filters(), atol=1e-6)

    def test_nothing_takes_the_default_for_the_rate(self):
        allowed = {"format.py", "memory.py", "packed.py"}
        for path in Path(audio.__file__).parents[1].rglob("*.py"):
            imports = re.findall(r"audio\.format import (\([^)]*\)|.*)", path.read_text("utf-8"))
            if path.name not in allowed:
                self.assertNotIn("SAMPLE_RATE_HZ", " ".join(imports), path)


class SoundTest(FolderCase):
    def test_a_file_of_any_rate_is_read_at_the_rate_of_the_process(self):
        for written_hz in (8_000, 22_050, 44_100):
            soundfile.write(self.folder / "a.wav", sine(440.0, 1.0, written_hz), written_hz)
            for rate_hz in PRESETS:
                with self.subTest(written_hz, to=rate_hz), process_at(rate_hz):
                    pcm = read_pcm(str(self.folder / "a.wav"), rate_hz)
                    self.assertEqual(len(pcm), rate_hz)
                    found_hz = frequency(pcm.astype(float)) * rate_hz / 22_050
                    self.assertAlmostEqual(found_hz, 440.0, delta=1.0)
                    header = wav_header(2 * rate_hz)
                    self.assertEqual(int.from_bytes(header[24:28], "little"), rate_hz)

    def test_a_manifest_and_its_cache_have_the_rate_of_the_settings(self):
        write_corpus(self.folder, (0.5, 1.0))
        rows = read_corpus(self.folder / "corpus.csv", "en")
        found = {}
        for rate_hz in PRESETS:
            data = DataConfig(text_frontend="characters", sample_rate=rate_hz)
            with process_at(None):
                cache = self.folder / "manifest.npz"
                manifest, *_ = build_manifest(rows, data, LengthRule(), cache=cache)
            self.assertEqual(manifest.samples.tolist(), [rate_hz // 2, rate_hz])
            self.assertEqual(manifest.native.all(), rate_hz == 22_050)
            found[rate_hz] = manifest.fingerprint
        self.assertEqual(len({*found.values()}), 3)

    def test_what_a_voice_of_any_rate_has_spoken_can_be_inspected(self):
        write_corpus(self.folder, (0.5, 1.0))
        for rate_hz in PRESETS:
            with self.subTest(rate_hz), process_at(rate_hz):
                # A sine has flat peaks.
                faults = spoken._faults(self.folder / "corpus.csv", "phonemes")
                self.assertTrue(all(reason.startswith("clipping") for reason in faults.values()))


class MixingTest(FolderCase):
    """What is refused names both rates."""

    def refused(self, call, *parts: str, error=ConfigError) -> None:
        with self.assertRaises(error) as caught:
            call()
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_a_process_keeps_its_first_rate(self):
        with process_at(None):
            use_sample_rate(24_000, "runs/a")
            use_sample_rate(24_000, "runs/b")
            self.assertEqual(sample_rate_hz(), 24_000)
            parts = "runs/c has a sample rate of 22050 Hz, but runs/a has 24000 Hz. Give"
            self.refused(lambda: use_sample_rate(22_050, "runs/c"), parts)
        with process_at(None):
            self.assertEqual(sample_rate_hz(), 22_050)
            self.refused(lambda: use_sample_rate(16_000, "x"), "but this process has 22050 Hz")
            self.refused(lambda: use_sample_rate(8_000, "x"), "8000 Hz, but must have 16000, 22050")

    def test_settings_of_other_runs(self):
        given, other = settings_at(24_000), run_at(22_050, "runs/other")
        both = "sample_rate 24000 was given, but", "has 22050"
        self.refused(lambda: inherit_settings(given, other), *both, "--init-from")
        self.refused(lambda: apply_teacher_settings(given, other), *both, "--teacher")
        resumed = lambda: check_same_settings(other.checkpoint, given)  # noqa: E731
        both = "data.sample_rate is 24000, but", "was written with 22050", "--run"
        self.refused(resumed, *both, error=CheckpointError)
        inputs = [run_at(24_000, "runs/a"), other]
        both = "sample_rate is 24000 in the first and 22050 in the second"
        self.refused(lambda: check_compatible(inputs, True), both, error=CheckpointError)

    def test_what_is_left_out_comes_from_the_other_run(self):
        other = run_at(24_000, "runs/other")
        for inherited in (inherit_settings, apply_teacher_settings):
            self.assertEqual(inherited(Config(), other).data.sample_rate, 24_000)
        with mock.patch.object(TrainedRun, "open", lambda path: other):
            config = with_inherited_settings(Config.model_validate({"teacher": {"teacher": "x"}}))
        self.assertEqual(config.data.sample_rate, 24_000)

    def test_a_vocoder(self):
        other = run_at(22_050, "runs/vocoder", model={"task": "vocoder"})
        voice = settings_at(24_000)
        with mock.patch.object(TrainedRun, "open", lambda path: other):
            choose = lambda: select_vocoder(  # noqa: E731
                Path("runs/voice"), voice, audio_format(24_000), "runs/vocoder"
            )
            both = "sample_rate_hz 22050 instead of 24000", "mel_bands 80 instead of 100"
            self.refused(choose, *both, error=CheckpointError)

    def test_runs_in_one_process(self):
        run = run_at(24_000, "runs/voice")
        with process_at(22_050), mock.patch.object(TrainedRun, "open", lambda *_: run):
            both = "runs/voice has a sample rate of 24000 Hz, but runs/first has 22050 Hz"
            self.refused(lambda: TrainedRun.open_for_use(Path("runs/voice")), both)
        with process_at(22_050):
            rows = mock.Mock(rows=())
            build = lambda: build_manifest(rows, DataConfig(sample_rate=24_000), None)  # noqa: E731
            self.refused(build, "--sample-rate has a sample rate of 24000 Hz, but runs/first")

    def test_a_packed_corpus(self):
        packed = object.__new__(PackedRows)
        packed.base = "packed"
        for reading, found in (({"sample_rate": 16_000}, 16_000), ({}, 22_050)):
            packed.reading = reading
            both = (
                f"--sample-rate 24000 was requested, but the corpus packed was packed with {found}"
            )
            check = lambda: packed._check_reading({"sample_rate": 24_000})  # noqa: E731
            self.refused(check, both, error=DataError)
        packed._check_reading({"sample_rate": 22_050})

    def test_rates_that_no_preset_has(self):
        said = "--sample-rate is 48000, but must be one of 16000, 22050, 24000."
        self.refused(lambda: load(None, {"sample_rate": 48_000}), said)
        path = self.write("a.yaml", "data:\n  sample_rate: 24000\n")
        self.assertEqual(load(path, {}).data.sample_rate, 24_000)


class RunTest(unittest.TestCase):
    def test_voices_vocoders_and_recognisers_are_trained_and_resumed(self):
        workspace = Workspace.temporary(self.addCleanup)
        for rate_hz, tasks in ((16_000, ["tts"]), (24_000, ["tts", "vocoder", "asr"])):
            bands = PRESETS[rate_hz][0]
            for task in tasks:
                name = f"{task}{rate_hz}"
                flags = f"--task {task} --sample-rate {rate_hz} --max-steps 1"
                with self.subTest(name), process_at(None), small_vocoders(), small_asr_models():
                    done = workspace.train(name, flags)
                    self.assertEqual(done.code, 0, done.err)
                    record = read_record(latest(workspace.run_dir(name) / "checkpoints"))
                    self.assertEqual(record.audio_format, audio_format(rate_hz))
                    self.assertEqual(record.audio_format["mel_bands"], bands)
        with process_at(None), small_vocoders():
            done = workspace.train("tts24000", "--resume --max-steps 2")
            self.assertEqual(done.code, 2)
            self.assertRegex(done.err, "sample_rate is 22050, but .* written with 24000")
            flags = f"--vocoder {workspace.run_dir('vocoder24000')} --max-steps 1"
            done = workspace.train("mixed24000", flags)
            self.assertEqual(done.code, 2)
            self.assertIn("sample_rate_hz 24000 instead of 22050", done.err)


@unittest.skipUnless(HAS_ONNX, "onnx and onnxruntime")
class ExportTest(FolderCase):
    def test_an_exported_voice_is_said_at_its_rate(self):
        symbols = [*" abcdefghijklmnopqrstuvwxyzæəɪɛɐɔʊʌɹˈˌː."]
        rate_hz = 24_000
        with process_at(rate_hz):
            flags = onnx_voice.write_runs(self.folder, symbols, ["en"], sample_rate=rate_hz)
            out = self.folder / "voice"
            run = str(self.folder / "run")
            result = onnx_voice.program("--run", run, "--out", str(out), *flags)
            self.assertEqual(result, (0, ""))
        document = json.loads((out / "run.onnx.json").read_text("utf-8"))
        self.assertEqual(document["audio"]["sample_rate"], rate_hz)
        self.assertEqual(document["hop_length"], 256)
        import onnx

        model = onnx.load(out / "run.onnx")
        self.assertEqual({p.key: p.value for p in model.metadata_props}["sample_rate"], "24000")
        said = self.folder / "said.wav"
        argv = ["A man.", "--voice", str(out), "--out", str(said)]
        with process_at(None):
            self.assertEqual(reported(lambda: say.main(argv)), (0, ""))
        self.assertEqual(soundfile.info(said).samplerate, rate_hz)
        with process_at(22_050):
            code, message = reported(lambda: say.main(argv))
        self.assertEqual(code, 2)
        self.assertIn("run.onnx has a sample rate of 24000 Hz, but runs/first has 22050", message)
