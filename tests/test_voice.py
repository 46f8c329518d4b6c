"""`myxtts voice`: which commands it runs, and what it does when it is typed again."""

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from unittest import mock

from myxtts.base.errors import ConfigError
from myxtts.config.load import load
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.extras.voice import voice_command as voice
from tests.fixtures import FolderCase
from tests.html_checker import Checker
from tests.long import long
from tests.sine_corpus import write_corpus

ROOT = Path(__file__).parents[1]
STEP_S = 0.5


class VoiceTest(FolderCase):
    """The commands are faked: they write their results, and end with the code of `codes`."""

    def setUp(self):
        super().setUp()
        write_corpus(self.folder / "corpus", [1.0, 4.0, 4.5, 1.2])
        # Not the default of --language.
        table = self.folder / "corpus/corpus.csv"
        head, *rows = table.read_text("utf-8").splitlines()
        lines = [f"{head},language", *(f"{row},ru" for row in rows)]
        table.write_text("\n".join(lines), "utf-8")
        self.ran, self.codes, self.trained = [], {}, {}
        self.enterContext(mock.patch.object(voice.Work, "_run", self.fake_run))
        self.enterContext(mock.patch.object(voice.Work, "close"))
        self.enterContext(mock.patch.object(voice.TrainedRun, "newest", self.newest))
        self.enterContext(mock.patch.object(voice, "visible_gpus", list))

    def fake_run(self, argv, stop):
        command, *words = argv
        options = dict(zip(words[::2], words[1::2], strict=False))
        self.ran.append((command, options.get("--run", Path(options.get("--config", "")).stem)))
        if code := self.codes.get(self.ran[-1], 0):
            return code
        if "--runs-dir" in options:
            trial = Path(options["--runs-dir"], options["--run"])
            trial.mkdir(exist_ok=True)
            (trial / "metrics.jsonl").write_text(
                json.dumps({"step": 30, "loss": 1, "step_s": STEP_S}) + "\n"
            )
        elif command == "train":
            config = load(Path(options["--config"]))
            self.trained[config.run.run] = config.training.max_steps
        else:
            Path(options["--json"]).write_text("{}")
        return 0

    def newest(self, run):
        if run.name not in self.trained:
            return None
        record = types.SimpleNamespace(step=self.trained[run.name], pending_observations=())
        return types.SimpleNamespace(record=record)

    def type(self, *flags):
        self.ran.clear()
        words = ["--train-data", str(self.folder / "corpus/corpus.csv"), "--run", "v", "--minutes"]
        words += ["3", "--runs-dir", str(self.folder / "runs"), "--text-frontend", "characters"]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = voice.main([*words, *flags])
        return code, output.getvalue()

    def test_both_runs_have_the_sample_rate_that_is_given(self):
        runs = str(self.folder / "runs")
        config, _ = voice.parse(f"--train-data x --sample-rate 16000 --runs-dir {runs}".split())
        work = voice.Work(config, 3.0)
        for stage in voice.OF_TASK:
            with mock.patch.object(work, "_write") as write:
                work._write_settings(stage, {}, None)
            self.assertEqual(write.call_args[0][1]["data"]["sample_rate"], 16_000)

    def test_stages_run_once_in_order_with_the_steps_that_their_minutes_allow(self):
        code, output = self.type()
        trials = [("train", "vocoder_speed"), ("train", "voice_speed")]
        runs = [("train", "vocoder"), ("train", "voice")]
        evaluation = ("evaluate", str(self.folder / "runs/v"))
        self.assertEqual((code, self.ran), (0, [*trials, *runs, evaluation]))
        self.assertIn("little speech", output)
        self.assertEqual(self.trained, {"v_vocoder": 102, "v": 204})
        config = load(self.folder / "runs/v/voice/voice.yaml")
        vocoder = str(self.folder / "runs/v_vocoder")
        self.assertEqual((config.model.model_size, config.model.vocoder), ("tiny", vocoder))
        self.assertEqual((self.type()[0], self.ran), (0, []))

    def test_typed_again_after_any_stage_has_ended_early_it_goes_on_there_with_its_code(self):
        self.type()
        stages = list(self.ran)
        for place, stage in enumerate(stages):
            with self.subTest(stage=stage):
                self.trained.clear()
                shutil.rmtree(self.folder / "runs")
                self.codes = {stage: 143}
                self.assertEqual((self.type()[0], self.ran), (143, stages[: place + 1]))
                self.codes = {}
                self.assertEqual((self.type()[0], self.ran), (0, stages[place:]))

    def test_bad_input_is_an_error_that_says_what_to_give(self):
        self.type()
        with self.assertRaisesRegex(ConfigError, "minutes is 5.0.*begun with 3.0. Give that, or"):
            self.type("--minutes", "5")
        with self.assertRaisesRegex(ConfigError, "--model-size is small.*begun with normal"):
            self.type("--model-size", "small")
        with self.assertRaisesRegex(ConfigError, "a corpus.*none was given. Give one with"):
            voice.main(["--run", "v"])
        (self.folder / "runs/other/checkpoints").mkdir(parents=True)
        with self.assertRaisesRegex(ConfigError, "other already holds a run"):
            self.type("--run", "other")

    def test_it_starts_from_the_installed_base_where_that_fits_and_says_why_not(self):
        phonemes = "--text-frontend", "phonemes"
        base = types.SimpleNamespace(path=Path("base"), record=self.record(24_000, ["en-us", "ru"]))
        vocoder = types.SimpleNamespace(path=Path("base/vocoder"), record=base.record)
        base.select_vocoder = lambda: types.SimpleNamespace(trained=vocoder)
        installed = {"base": types.SimpleNamespace(folder=Path("base"))}
        self.enterContext(mock.patch.object(voice, "voices", lambda: installed))
        self.enterContext(mock.patch.object(voice.TrainedRun, "open", lambda path: base))
        for flags, reason in (
            ((), "text_frontend is characters, and that of `base` phonemes"),
            ((*phonemes, "--sample-rate", "22050"), "sample_rate is 22050, and that of `base` 24"),
            ((*phonemes, "--model-size", "small"), "model_size is small, and that of `base` tiny"),
            ((*phonemes, "--init-from", "none"), "from nothing, as --init-from says"),
        ):
            _, output = self.type(*flags)
            self.assertIn(reason, output)
            self.assertIn("little speech for a voice from scratch", output)
            self.assertEqual(self.starts(), (None, None))
            shutil.rmtree(self.folder / "runs")
        _, output = self.type(*phonemes)
        self.assertIn("from the voice `base`; --init-from none starts from nothing", output)
        self.assertNotIn("little speech", output)
        self.assertEqual(self.starts(), ("base", "base/vocoder"))
        with self.assertRaisesRegex(ConfigError, "init-from is none.*begun with None"):
            self.type(*phonemes, "--init-from", "none")
        shutil.rmtree(self.folder / "runs")
        base.record.languages = ["en-us"]
        self.assertIn("`base` speaks en, not ru", self.type(*phonemes)[1])
        shutil.rmtree(self.folder / "runs")
        self.assertIn(
            "from runs/ann, as --init", self.type(*phonemes, "--init-from", "runs/ann")[1]
        )
        self.assertEqual(self.starts(), ("base", "base/vocoder"))
        shutil.rmtree(self.folder / "runs")
        base.select_vocoder = lambda: types.SimpleNamespace(trained=None)
        self.type(*phonemes, "--init-from", "runs/ann")
        self.assertEqual(self.starts(), ("base", None))

    def record(self, rate_hz, languages):
        settings = load(None, {"sample_rate": rate_hz, "model_size": "tiny"})
        return types.SimpleNamespace(settings=settings, languages=languages)

    def starts(self):
        folder = self.folder / "runs/v/voice"
        configs = [load(folder / f"{stage}.yaml") for stage in ("voice", "vocoder")]
        rates = {config.data.sample_rate for config in configs}
        self.assertEqual(rates == {24_000}, configs[0].training.init_from is not None)
        return tuple(config.training.init_from for config in configs)


class WholeVoiceTest(FolderCase):
    @long
    def test_killed_in_each_stage_and_typed_again_a_voice_is_made(self):
        make_demo_corpus(self.folder / "corpus", 60, ("en",), 1, seed=0)
        command = [sys.executable, "-m", "myxtts", "voice", "--train-data", "corpus"]
        command += ["--run", "v", "--minutes", "0.2"]
        settings = "/vocoder.yaml --resume", "/voice.yaml --resume"
        ends = zip(
            ("plan: ", "vocoder_speed", *settings, "evaluate: "),
            (signal.SIGKILL, signal.SIGTERM) * 3,
            strict=False,
        )
        for line, number in ends:
            with self.subTest(line=line, signal=number):
                self.stop_at(command, line, number)
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"Listen:  file://.*\nSpeak:   python .*--out hello.wav")
        Checker(self, (self.folder / "runs/v/report.html").read_text("utf-8"))

    def stop_at(self, command, line, number):
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        with process:
            for printed in process.stdout:
                if line in printed:
                    time.sleep(1.0)
                    process.send_signal(number)
                    break
            process.stdout.read()
        self.assertIn(process.returncode, (-number, 128 + number))
