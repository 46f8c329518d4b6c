"""The command line: flags, messages, exit codes, start-up time and stderr."""

import argparse
import contextlib
import errno
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import types
import unittest
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from myxtts.base import files, plugins
from myxtts.base.console import report_errors, set_environment
from myxtts.base.errors import ConfigError, DataError
from myxtts.commands import main, train
from myxtts.config.flags import SECTIONS, SETTINGS
from myxtts.config.load import load
from myxtts.config.parser import bounded
from myxtts.config.schema import Config
from myxtts.config.settings_parser import setting_help
from myxtts.extras.jobs import jobs_command as jobs
from myxtts.extras.jobs import shard_command as shard
from myxtts.extras.speakers import corpus_command as corpus
from tests.fixtures import FolderCase

ROOT = Path(__file__).parents[1]


def run_python(*arguments: str, folder: Path = ROOT, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, cwd=folder, text=True, **options)


class EnvironmentTest(unittest.TestCase):
    def test_keras_heeds_no_settings_of_other_projects(self):
        given = {"KERAS_BACKEND": "torch", "KERAS_NNX_ENABLED": "true", "KERAS_HOME": "/of/others"}
        with mock.patch.dict(os.environ, given):
            set_environment()
            actual = {name: os.environ[name] for name in os.environ if name.startswith("KERAS_")}
        self.assertEqual(actual, {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": os.devnull})


def fault(number: int, *file: str) -> OSError:
    return OSError(number, os.strerror(number), *file)


class FlagTest(unittest.TestCase):
    def error_of(self, arguments: str) -> str:
        with self.assertRaises(ConfigError) as caught:
            train.parse(arguments.split(" "))
        return str(caught.exception)

    def test_without_flags_the_settings_are_the_defaults(self):
        config, options = train.parse([])
        self.assertEqual((config, options.print_config), (Config(), False))

    def test_hyphens_and_underscores_are_equivalent_in_flags_only(self):
        for argv in (["--data-gpu", "3"], ["--data_gpu", "3"], ["--data_gpu=3"]):
            self.assertEqual(train.parse(argv)[0].placement.data_gpu, 3)
        self.assertEqual(train.parse(["--run=my_voice"])[0].run.run, "my_voice")

    def test_every_setting_has_a_flag_that_takes_its_default(self):
        for name, setting in SETTINGS.items():
            with self.subTest(flag=setting.flag):
                argv = [setting.flag] if setting.many else [setting.flag, setting.default_text]
                if setting.kind is bool:
                    argv = [setting.flag if setting.default else "--no-" + setting.flag[2:]]
                with mock.patch("myxtts.config.settings_parser.load") as load:
                    train.parse(argv)
                self.assertEqual(load.call_args.args[1], {name: setting.default})

    def test_a_list_may_be_given_at_once_or_in_parts(self):
        for argv in ("--model-gpus 0 1", "--model-gpus 0 --model-gpus 1"):
            self.assertEqual(train.parse(argv.split())[0].placement.model_gpus, (0, 1))

    def test_a_tilde_that_no_shell_expands_and_an_empty_text_are_rejected(self):
        home = os.path.expanduser("~/runs")
        self.assertRegex(self.error_of("--runs-dir=~/runs"), f"only a shell .* Write {home}\\.$")
        self.assertIn("--train-data is an empty text", self.error_of("--train-data "))

    def test_a_url_is_rejected_wherever_it_would_be_a_local_folder(self):
        url, expected = "s3://bucket/a", "is 's3://bucket/a', but must be a local path: .* Mount it"
        for flag in ("--sync-dir", "--audio-root", "--exclude", "--config"):
            self.assertRegex(self.error_of(f"{flag}={url}"), f"^{flag} {expected}")
        commands = (
            (corpus, "--out"),
            (shard, "--input"),
            (jobs, "--runs-dir"),
            (train, "--runs-dir"),
        )
        for command, flag in commands:
            with self.assertRaisesRegex(ConfigError, f"^{flag} {expected}"):
                command.main([flag, url])

    def test_corpora_may_be_in_object_stores(self):
        config, _ = train.parse(["--train-data=s3://b/a", "--val-data=s3://b/c"])
        self.assertEqual((config.data.train_data, config.data.val_data), ("s3://b/a", "s3://b/c"))

    def test_words_that_argparse_changes_are_answered(self):
        fixed = ["--gpus", "1", "--produce-ms", "1", "--step-ms", "1"]
        for words in (["--_foo"], ["--", "foo"], ["--5_0"], ["--\u200bbatch_size", "3"]):
            expected = "neither a flag nor the value|not a flag"
            with self.subTest(words), self.assertRaisesRegex(ConfigError, expected):
                main.load_command("plan").main([*fixed, *words], "plan")

    def test_flags_replace_the_file_in_any_order(self):
        placement = train.parse(["--config", f"{ROOT}/configs/dual_gpu.yaml", "--data-gpu", "null"])
        self.assertEqual(placement[0].placement.data_gpu, None)
        self.assertEqual(placement[0].placement.model_gpu, 1)
        file = ["--config", f"{ROOT}/configs/dual_gpu_12gb.yaml"]
        for argv in ([*file, "--batch-size", "2"], ["--batch-size", "2", *file]):
            config = train.parse(argv)[0]
            self.assertEqual((config.data.batch_size, config.placement.model_gpu_memory), (2, 8192))

    def test_error_for_an_unknown_flag_suggests_the_nearest(self):
        arguments = "--batch-sise --batch_sise=8 --batch-siz -batch-sixe --training.batch_sise=3"
        nearest = dict.fromkeys(arguments.split(), "--batch-size")
        nearest |= {"--no-resum": "--no-resume", "--print_confg": "--print-config"}
        for argument, near in nearest.items():
            with self.subTest(argument=argument):
                message = self.error_of(f"{argument} 8")
                self.assertTrue(message.endswith(f"is not a flag. Did you mean {near}?"), message)
        self.assertEqual(self.error_of("--zzzz"), "'--zzzz' is not a flag. --help lists the flags.")

    def test_argument_without_a_flag_is_rejected(self):
        for argv, word in (("x", "x"), ("--train-data my corpus", "corpus"), ("--resume r", "r")):
            message = f"'{word}' is neither a flag nor the value of one. --help lists the flags."
            self.assertEqual(self.error_of(argv), message)

    def test_former_flags_and_flags_of_other_trainers_are_answered(self):
        for argument, advice in (
            ("--lr", ". Use --learning-rate."),
            ("--no-recompute_activations", ": it was renamed to --gradient-checkpointing."),
            ("--real_time", ": it was removed: throughput is planned or measured, not emulated."),
            ("--checkpoint_dir", ". Use --runs-dir and --run."),
            ("--coqpit.lr=1", ". Use --learning-rate."),
        ):
            with self.subTest(argument=argument):
                flag = argument.partition("=")[0].replace("_", "-")
                self.assertEqual(self.error_of(argument), f"'{flag}' is not a flag{advice}")
        messages = self.error_of("--lr 1e-4 --batch-size 2 --dev_dir y").splitlines()
        self.assertEqual([line.partition(" ")[0] for line in messages], ["'--lr'", "'--dev-dir'"])

    def test_invalid_value_is_rejected_in_one_line(self):
        whole = "but must be a whole number from 1 to 1000000."
        for argv, message in (
            ("--batch-size -3", f"--batch-size is -3, {whole}"),
            ("--batch-size x", f"--batch-size is 'x', {whole}"),
            ("--batch-size 8.0", f"--batch-size is '8.0', {whole}"),
            ("--ema-decay nan", "is NaN, but must be a number of at least 0 and below 1."),
            ("--batch-seconds inf", "is Infinity, but must be a number from 0 to 86400."),
            ("--model-size big\x1b[2J", r"is 'big\x1b[2J', but must be one of tiny, small, normal"),
            ("--data-gpu none", "is 'none', but must be a whole number from 0 to 1023, or null."),
            ("--batch-size --resume", "--batch-size needs a value. --help lists the flags."),
            ("--config", "--config needs a value. --help lists the flags."),
        ):
            with self.subTest(argv):
                self.assertIn(message, self.error_of(argv))
                self.assertNotIn("\n", self.error_of(argv))

    def test_error_for_a_number_out_of_bounds_has_all_digits_of_the_bounds(self):
        expected = "a whole number from 0 to 2147483647"
        with self.assertRaisesRegex(argparse.ArgumentTypeError, expected):
            bounded(int, 0, 2**31 - 1)("-1")

    def test_help_of_a_setting_is_that_of_a_flag(self):
        for name, meaning in (
            ("data_gpu", "--model-gpus. (a whole number from 0 to 1023; default: not set)"),
            ("use_tf_native_loading", "Only without --cache-dataset. (default: on)"),
            ("subsampling", "Only with --task asr. (one of 1, 2, 4; default: 2)"),
        ):
            self.assertTrue(setting_help(SETTINGS[name]).endswith(meaning))


def _raising(error: BaseException):
    def train(config: Config) -> int:
        raise error

    return train


def _training(train):
    """Replace myxtts.run.page by a module with this function, without importing TensorFlow."""
    module = types.SimpleNamespace(train=lambda config, more: train(config))
    return mock.patch.dict(sys.modules, {"myxtts.run.page": module})


class MainTest(FolderCase):
    def main(self, *argv: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = report_errors(lambda: train.main(argv))
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def test_print_config_prints_a_file_that_loads(self):
        code, out, err = self.main("--print-config", "--batch-size", "3", "--learning-rate", "1e-5")
        self.assertEqual((code, err), (0, ""))
        expected = load(None, {"batch_size": 3, "learning_rate": 1e-5})
        self.assertEqual(load(self.write("config.yaml", out)), expected)

    def test_the_json_schema_has_every_name_of_a_file(self):
        code, out, _ = self.main("--print-json-schema")
        self.assertEqual(code, 0)
        schema = json.loads(out)
        self.assertEqual({*schema["properties"]}, {"defaults", *SECTIONS})
        sections = {name: schema["$defs"][type(value).__name__] for name, value in Config()}
        for name, setting in SETTINGS.items():
            form = sections[setting.section]["properties"][name]
            self.assertEqual(" ".join(form["description"].split()), setting.description)
        self.assertEqual(sections["data"]["additionalProperties"], False)

    def test_user_error_is_one_line_on_stderr_with_exit_code_2(self):
        message = "error: '--batch-sise' is not a flag. Did you mean --batch-size?\n"
        self.assertEqual(self.main("--batch-sise", "8"), (2, "", message))

    def test_exit_code_of_training_is_returned(self):
        for program, expected in (
            (lambda config: config.data.batch_size, (3, "", "")),
            (_raising(DataError("no corpus")), (2, "", "error: no corpus\n")),
            (_raising(KeyboardInterrupt()), (130, "", "stopped\n")),
        ):
            with self.subTest(expected=expected), _training(program):
                self.assertEqual(self.main("--batch-size", "3"), expected)

    def test_reader_of_stdout_that_ended_is_no_defect(self):
        reading, writing = os.pipe()
        os.close(reading)
        done = run_python("-m", "myxtts", "--help", stdout=writing)
        os.close(writing)
        self.assertEqual((done.returncode, done.stderr), (141, ""))

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
            self.assertIn(setting_help(setting), words)


class FreshInterpreterTest(FolderCase):
    def run_counting_modules(self, program: str, slow: set[str]) -> tuple[int, str]:
        """Run a program; return how many modules it imported, none of these, and its output."""
        count = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))"
        done = run_python("-c", f"{count}\n{program}")
        modules = set(done.stderr.split())
        self.assertEqual((done.returncode, slow & modules), (0, set()), done.stderr)
        return len(modules), done.stdout

    def test_help_and_print_config_are_fast_and_need_no_tensorflow(self):
        for flag in ("--help", "--print-config"):
            program = f"from myxtts.commands import train; sys.exit(train.main(['{flag}']))"
            modules, _ = self.run_counting_modules(program, {"tensorflow", "keras", "numpy"})
            # 271 take 0.3 s of processor time, TensorFlow's 8,500 take 5 s.
            self.assertLess(modules, 400)

    def test_list_of_commands_is_fast_and_needs_no_tensorflow(self):
        program = "from myxtts.commands import main; sys.exit(main.run(['--help']))"
        modules, output = self.run_counting_modules(program, {"tensorflow", "keras"})
        actual = re.findall(r"^  ([a-z-]+)  +[A-Z].*\.$", output, re.MULTILINE)
        self.assertEqual(actual, plugins.names("commands"))
        self.assertLess(modules, 700)  # 607; with TensorFlow 8,500

    def test_user_error_writes_no_file_and_no_traceback(self):
        arguments = [str(ROOT / "train_main.py"), "--config", "nowhere.yaml"]
        done = run_python(*arguments, folder=self.folder)
        self.assertEqual(done.returncode, 2)
        message = r"\Aerror: nowhere\.yaml: the configuration cannot be read: .*\n\Z"
        self.assertRegex(done.stderr, message)
        self.assertEqual(list(self.folder.iterdir()), [])


WITHOUT_EXTRAS = """
import importlib.util, sys
missing = {"tensorflow", "keras", "librosa", "tensorboard", "matplotlib", "jiwer", "PIL",
           "packaging", "damga", "ru_normalizr", "num2words"}


class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *p: None if name in missing else found(name, *p)
from myxtts.base.console import report_errors
from myxtts.commands.main import run
sys.exit(report_errors(lambda: run(sys.argv[1:])))
"""


class LightBaseTest(FolderCase):
    """The package without its extras: what is not in `dependencies` cannot be imported."""

    def test_what_needs_no_extra_works_and_the_rest_names_its_own(self):
        corpus, out = self.folder / "corpus", self.folder / "inspection"
        for arguments, code, expected in (
            ("--help", 0, "check-distributed"),
            (f"corpus --out {corpus} --utterances 4 --languages ka --speakers 1", 0, "made 4"),
            ("text გამარჯობა --language ka", 0, "phonemes"),
            (f"inspect --train-data {corpus} --language ka --out {out}", 0, str(out)),
            ("serve --help", 0, "--voice"),
            (f"serve --voice {self.folder}", 2, "has no file *.onnx"),
            ("plan --gpus 2 --produce-ms 1 --step-ms 2", 0, "best: "),
            ("train --help", 0, "--batch-size"),
            ("train", 2, 'myxtts train needs tensorflow, .* pip install "myxtts\\[train\\]"'),
            ("synthesize --run x --text y", 2, "needs tensorflow"),
            ("text Hello. --language en", 2, "pip install damga"),
        ):
            done = run_python("-c", WITHOUT_EXTRAS, *arguments.split())
            with self.subTest(arguments):
                self.assertEqual(done.returncode, code, done.stderr)
                pattern = expected if code else re.escape(expected)
                self.assertRegex(done.stdout + done.stderr, pattern.replace("*.onnx", r"\*.onnx"))
                self.assertNotIn("Traceback", done.stderr)

    def test_the_extras_and_the_requirements_of_a_checkout_name_the_same(self):
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        tables = re.findall(r"^(dependencies|train|text) = \[(.+?)\]$", project, re.M | re.S)
        self.assertEqual(len(tables), 3)
        of_project = {name for _, table in tables for name in re.findall(r'"([\w-]+)[>=]', table)}
        text = (ROOT / "requirements.txt").read_text("utf-8")
        self.assertEqual({*re.findall(r"^([\w-]+)[>=]", text, re.M)}, of_project)


class CommandTest(FolderCase):
    def test_every_command_has_a_name_a_help_line_and_flags(self):
        found = {*(ROOT / "myxtts/commands").glob("*.py"), *(ROOT / "myxtts").rglob("*_command.py")}
        modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found}
        shared = {"myxtts.commands.__init__", "myxtts.commands.main"}
        self.assertEqual({*plugins.GROUPS["commands"].values()}, modules - shared)
        for name in plugins.names("commands"):
            with (
                self.subTest(name=name),
                contextlib.redirect_stdout(io.StringIO()) as out,
                self.assertRaises(SystemExit) as stop,
            ):
                self.assertEqual(main.load_command(name).NAME, name)
                main.run([name, "--help"])
            self.assertEqual(stop.exception.code, 0)
            self.assertIn(f"usage: myxtts {name} ", out.getvalue())

    @unittest.skipUnless(find_spec("shtab"), "shtab")
    def test_a_shell_completes_commands_flags_and_choices(self):
        script = self.folder / "completion"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main.run(["--print-completion", "bash"]), 0)
        script.write_text(out.getvalue())
        for words, expected in (
            ("myxtts publ", "publish"),
            ("myxtts train --model-siz", "--model-size"),
            ("myxtts train --model-size ti", "tiny"),
            ("myxtts export --form", "--format"),
            (f"myxtts train --train-data {self.folder}/compl", str(script)),
            (f"myxtts synthesize --vocoder {self.folder}/compl", str(script)),
        ):
            source = (
                f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))"
            )
            source += '; _shtab_myxtts myxtts "${COMP_WORDS[-1]}"; echo "${COMPREPLY[@]}"'
            done = subprocess.run(["bash", "-c", source], capture_output=True, text=True)
            with self.subTest(words=words):
                self.assertEqual((done.stdout.split(), done.stderr), ([expected], ""))

    def test_completion_for_an_unknown_shell_is_an_error(self):
        with self.assertRaisesRegex(ConfigError, "shtab|Use one of bash"):
            main.run(["--print-completion", "csh"])

    def test_error_for_an_unknown_command_suggests_the_nearest(self):
        with self.assertRaisesRegex(ConfigError, "'trian' is not a command. Did you mean train?"):
            main.run(["trian"])

    def test_help_of_a_script_shows_the_name_that_the_user_typed(self):
        for script in ("train_main.py", "utilities/split_dataset.py"):
            done = run_python(script, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(f"usage: python {script} "), done.stdout[:200])

    def test_flags_of_every_command_are_suggested(self):
        shard = "shard --input x --out y"
        for argv, message in (
            ("evaluate --run x --utterence 3", "'--utterence' is not a flag. Did you mean --utter"),
            ("evaluate --run x --recogniser=y", "is not a flag: it was renamed to --asr"),
            (f"{shard} --parts 2", "'--parts' is not a flag: it was renamed to --shards"),
            (f"{shard} --validation-fraction 1", "--validation-fraction is 1.0, but"),
            ("train --subsampling 3", "--subsampling is 3, but must be one of 1, 2, 4."),
            ("jobs --rounds 5", "'--rounds' is not a flag: it was renamed to --num-syncs."),
            ("serve --voice x --prot 1", "'--prot' is not a flag. Did you mean --port?"),
            ("synthesize --run x --speaker_wav y", "--speaker-wav' is not a flag. Use --reference"),
            (
                "synthesize --lr 1",
                "'--lr' is not a flag. Use `python train_main.py` with --learning",
            ),
            ("plan --gpus 99", "--gpus is '99', but must be a whole number from 1 to 16."),
            ("launch --worker 2 -- x.py --worker", "'--worker' is not a flag. Did you mean --wo"),
        ):
            with self.subTest(argv), self.assertRaises(ConfigError) as caught:
                main.run(argv.split())
            self.assertIn(message, str(caught.exception))

    def test_error_for_a_folder_that_cannot_be_made_names_the_flag(self):
        out = self.write("file") / "shards"
        expected = f"{out} cannot be used: Not a directory. Choose another --out."
        with self.assertRaisesRegex(ConfigError, expected):
            main.run(["shard", "--input", "x", "--out", str(out)])

    def test_package_has_one_console_script_and_includes_its_types_and_data(self):
        """The configuration that a wheel is built from."""
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn('[project.scripts]\nmyxtts = "myxtts.commands.main:main"\n', text)
        patterns = re.findall(r'^"?(myxtts[.\w]*)"? = \["(.+)"\]$', text, re.MULTILINE)
        shipped = {
            path
            for package, names in patterns
            for name in names.split('", "')
            for path in ROOT.joinpath(*package.split(".")).glob(name)
        }
        present = filter(Path.is_file, (ROOT / "myxtts").rglob("*"))
        data = {path for path in present if path.suffix not in (".py", ".pyc")}
        self.assertEqual(data - shipped, set())
        self.assertIn(ROOT / "myxtts" / "py.typed", shipped)

    def test_a_stop_removes_the_unfinished_files_of_a_command(self):
        def main_of_command(argv, prog):
            with files.replaced_file(self.folder / "out.json"):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60.0)

        command = types.SimpleNamespace(NAME="evaluate", main=main_of_command)
        with (
            mock.patch.object(main, "load_command", lambda name: command),
            self.assertRaises(SystemExit) as stopped,
        ):
            main.run(["evaluate"])
        self.assertEqual((stopped.exception.code, list(self.folder.iterdir())), (143, []))


class FaultTest(FolderCase):
    def report(self, task) -> tuple[int, str]:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = report_errors(task)
        return code, err.getvalue()

    def test_pipes_and_devices_are_never_replaced_by_a_file(self):
        pipe = self.pipe()
        # As `command | tail`, where stdout is a pipe.
        for descriptor in (descriptors := os.pipe()):
            self.addCleanup(os.close, descriptor)
        output = Path(f"/proc/self/fd/{descriptors[1]}")
        for path in (pipe, Path("/dev/null"), Path("/dev/stdout"), output):
            with self.subTest(path), self.assertRaisesRegex(ConfigError, "is a pipe or a device"):
                files.check_writable("--json", path)
        self.assertTrue(pipe.is_fifo())

    def test_errors_of_disks_and_limits_name_the_file_and_what_to_do(self):
        path = self.folder / "report.json"
        with mock.patch("os.fsync", side_effect=fault(errno.ENOSPC)):
            code, message = self.report(lambda: files.write_whole(path, b"x"))
        self.assertEqual((code, list(self.folder.iterdir())), (2, []))
        self.assertTrue(message.startswith(f"error: {path}: No space left on device. Check the "))
        for number in (errno.EIO, errno.EFBIG, errno.EMFILE, errno.EISDIR, errno.ENAMETOOLONG):
            refused = mock.Mock(side_effect=fault(number, "runs/a/.lock"))
            code, message = self.report(refused)
            words = f"error: runs/a/.lock: {os.strerror(number)}. Check the free space"
            self.assertEqual((code, message[: len(words)]), (2, words))

    def test_a_full_disk_behind_stdout_ends_no_program(self):
        def program() -> int:
            for _ in range(2):
                logging.getLogger("myxtts.tests").info("step")
            return 0

        for task, expected in ((program, (0, 1)), (lambda: print("settings") or 0, (2, 1))):
            with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
                code, message = self.report(task)
            self.assertEqual((code, message.count("No space left on device")), expected)

    def test_a_lack_of_memory_says_where_and_what_to_do(self):
        class ResourceExhaustedError(Exception):
            # As TensorFlow says it of an operation in a compiled function.
            message = (
                "Graph execution error:\n\nDetected at node Mul defined at (most recent call last):"
            )
            message += "\n  (0) RESOURCE_EXHAUSTED: OOM when allocating tensor on GPU_0_bfc.\nHint"

        errors = types.SimpleNamespace(ResourceExhaustedError=ResourceExhaustedError)
        for error, expected in (
            (MemoryError("Unable to allocate 88. GiB"), "Unable to allocate 88. GiB. End other"),
            (ResourceExhaustedError(), "memory: OOM when allocating tensor on GPU_0_bfc. End"),
        ):
            with mock.patch.dict(sys.modules, tensorflow=types.SimpleNamespace(errors=errors)):
                code, message = self.report(mock.Mock(side_effect=error))
            self.assertEqual((code, message.count("\n")), (2, 1))
            self.assertIn(expected, message)

    def test_only_listed_lines_of_tensorflows_log_are_dropped(self):
        noise = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1.1   1 port.cc:153] oneDNN custom operations are on. You may see other results.
I0000 1 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
E0000 00:00:1.1   1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)
I0000 00:00:1.1   1 service.cc:153] XLA service 0x5 initialized for platform Host. Devices:
I0000 00:00:1.1   1 service.cc:161]   StreamExecutor [0]: Host, Default Version
[src/libmpg123/layer3.c:1774] error: part2_3_length (3264) too large for available bit count (3232)
"""
        real = """\
E0000 00:00:1.1   1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA_ERROR_NO_DEVICE (100)
W0000 00:00:1.1   1 service.cc:153] XLA service is slow
Traceback (most recent call last):
Warning: Xing stream size off by more than 1%, fuzzy seeking may be even more fuzzy than by design!
"""
        # Also the last lines of a process that aborts arrive.
        last = "F0000 the last line"
        code = "from myxtts.base.console import filter_stderr, os, sys\nfilter_stderr()\n"
        code += "os.write(2, sys.argv[1].encode()); os.abort()"
        done = run_python("-c", code, noise + real + last)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGABRT, real + last))
