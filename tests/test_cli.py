"""The command line: flags, messages, exit codes, and what --help costs."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import myxtts
from myxtts.commands import train
from myxtts.commands.console import report_errors
from myxtts.config.load import load
from myxtts.config.schema import Config
from myxtts.config.settings import SECTIONS, SETTINGS
from myxtts.errors import ConfigError, DataError

ROOT = Path(__file__).parents[1]


class FlagTest(unittest.TestCase):
    def refusal(self, *argv: str) -> str:
        with self.assertRaises(ConfigError) as caught:
            train.parse(argv)
        return str(caught.exception)

    def test_no_flags_are_the_defaults(self):
        config, options = train.parse([])
        self.assertEqual((config, options.print_config), (Config(), False))

    def test_hyphen_and_underscore_are_the_same(self):
        for flag in ("--data-gpu", "--data_gpu"):
            self.assertEqual(train.parse([flag, "3"])[0].placement.data_gpu, 3)
            self.assertEqual(train.parse([flag + "=3"])[0].placement.data_gpu, 3)

    def test_underscore_in_a_value_stays(self):
        self.assertEqual(train.parse(["--run=my_voice"])[0].run.run, "my_voice")

    def test_every_setting_has_a_flag_that_takes_its_default(self):
        for name, setting in SETTINGS.items():
            with self.subTest(flag=setting.flag):
                if setting.kind is bool:
                    argv = [setting.flag if setting.default else "--no-" + setting.flag[2:]]
                else:
                    argv = [setting.flag] if setting.many else [setting.flag, setting.default_text]
                self.assertEqual(train.parse(argv)[0], Config(), name)

    def test_list_takes_several_values(self):
        self.assertEqual(train.parse(["--model-gpus", "1", "2", "3"])[0].placement.model_gpus, (1, 2, 3))

    def test_null_takes_back_a_setting_of_the_file(self):
        argv = ["--config", str(ROOT / "configs/dual_gpu.yaml"), "--data-gpu", "null"]
        placement = train.parse(argv)[0].placement
        self.assertEqual((placement.data_gpu, placement.model_gpu), (None, 1))

    def test_flag_replaces_the_file_wherever_it_stands(self):
        file = ["--config", str(ROOT / "configs/dual_gpu_12gb.yaml")]
        for argv in ([*file, "--batch-size", "2"], ["--batch-size", "2", *file]):
            config = train.parse(argv)[0]
            self.assertEqual((config.data.batch_size, config.placement.model_gpu_memory), (2, 8192))

    def test_unknown_flag_is_refused_with_the_nearest(self):
        for argument, near in (
            ("--batch-sise", "--batch-size"),
            ("--batch_sise=8", "--batch-size"),
            ("--batch", "--batch-size"),
            ("-batch-size", "--batch-size"),
            ("--no-resum", "--no-resume"),
            ("--print_confg", "--print-config"),
        ):
            with self.subTest(argument=argument):
                message = self.refusal(argument, "8")
                self.assertTrue(message.endswith(f"is not a flag. Did you mean {near}?"), message)

    def test_argument_that_belongs_to_no_flag_is_refused(self):
        self.assertIn("'2' is not a flag", self.refusal("--model-gpu", "1", "2"))
        self.assertIn("'--zzzz' is not a flag", self.refusal("--zzzz"))

    def test_value_that_is_not_allowed_is_refused_in_one_line(self):
        for argv, message in (
            (("--batch-size", "-3"), "--batch-size is -3, but must be a whole number from 1 to 1000000."),
            (("--batch-size", "x"), "--batch-size is 'x', but must be a whole number from 1 to 1000000."),
            (("--batch-size", "8.5"), "--batch-size is '8.5', but must be a whole number from 1 to 1000000."),
            (("--ema-decay", "nan"), "--ema-decay is NaN, but must be a number of at least 0 and below 1."),
            (("--batch-seconds", "inf"), "--batch-seconds is Infinity, but must be a number from 0 to 86400."),
            (
                ("--model-size", "big\x1b[2J"),
                r"--model-size is 'big\x1b[2J', but must be one of tiny, small, normal, big.",
            ),
            (("--data-gpu", "none"), "--data-gpu is 'none', but must be a whole number from 0 to 1023, or null."),
            (("--batch-size",), "--batch-size: expected one argument. --help lists the flags."),
        ):
            with self.subTest(argv=argv):
                self.assertEqual(self.refusal(*argv), message)


def _raising(error: BaseException):
    def train(config: Config) -> int:
        raise error

    return train


def _training(train):
    """Puts `train` in the place of myxtts.run.train, without importing the one there."""
    return mock.patch.object(myxtts, "run", types.SimpleNamespace(train=train), create=True)


class MainTest(unittest.TestCase):
    def main(self, *argv: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = report_errors(lambda: train.main(argv))
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def test_print_config_prints_what_loads_back(self):
        code, out, err = self.main("--print-config", "--batch-size", "3", "--learning-rate", "1e-5")
        self.assertEqual((code, err), (0, ""))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(out, encoding="utf-8")
            self.assertEqual(load(path), load(None, {"batch_size": 3, "learning_rate": 1e-5}))

    def test_mistake_is_one_line_on_stderr_and_exit_code_2(self):
        code, out, err = self.main("--batch-sise", "8")
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(err, "error: '--batch-sise' is not a flag. Did you mean --batch-size?\n")

    def test_exit_code_is_that_of_training(self):
        for program, expected in (
            (lambda config: config.data.batch_size, (3, "", "")),
            (_raising(DataError("no corpus")), (2, "", "error: no corpus\n")),
            (_raising(KeyboardInterrupt()), (130, "", "stopped\n")),
        ):
            with self.subTest(expected=expected), _training(program):
                self.assertEqual(self.main("--batch-size", "3"), expected)

    def test_defect_keeps_its_traceback(self):
        with _training(_raising(ZeroDivisionError())), self.assertRaises(ZeroDivisionError):
            self.main()

    def test_help_names_each_section_flag_default_and_meaning(self):
        with mock.patch.dict(os.environ, COLUMNS="1000"):  # one line for each flag
            code, out, _ = self.main("--help")
        self.assertEqual(code, 0)
        words = " ".join(out.split())
        for section, meaning in SECTIONS.items():
            self.assertIn(f"{section}: {meaning}", words)
        for setting in SETTINGS.values():
            self.assertIn(setting.flag, words)
            self.assertIn(f"{setting.description} ({setting.allowed}; default {setting.default_text})", words)


class FreshInterpreterTest(unittest.TestCase):
    def test_help_and_print_config_take_under_a_second_and_no_tensorflow(self):
        for flag in ("--help", "--print-config"):
            code = (
                "import atexit, sys\n"
                "atexit.register(lambda: print({'tensorflow', 'keras', 'numpy'} & set(sys.modules), file=sys.stderr))\n"
                "from myxtts.commands import train\n"
                f"sys.exit(train.main(['{flag}']))\n"
            )
            before = os.times()
            done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
            after = os.times()
            with self.subTest(flag=flag):
                self.assertEqual((done.returncode, done.stderr), (0, "set()\n"))
                # Processor time: the wall clock would also measure what else the machine does.
                used_s = after.children_user + after.children_system - before.children_user - before.children_system
                self.assertLess(used_s, 1.0)

    def test_mistake_makes_nothing_and_shows_no_traceback(self):
        with tempfile.TemporaryDirectory() as folder:
            argv = [sys.executable, str(ROOT / "train_main.py"), "--config", "nowhere.yaml"]
            done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"\Aerror: nowhere\.yaml: the configuration cannot be read: .*\n\Z")
            self.assertEqual(list(Path(folder).iterdir()), [])


if __name__ == "__main__":
    unittest.main()
