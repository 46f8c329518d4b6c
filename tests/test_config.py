"""YAML and flags become a Config, or an error with the location of the mistake."""

import ast
import contextlib
import errno
import io
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from myxtts.commands.main import COMMANDS, load_command
from myxtts.config import load as loading
from myxtts.config import schema
from myxtts.config.flags import SECTIONS, SETTINGS
from myxtts.config.load import dump, load
from myxtts.config.names import SCRIPTS, foreign_names, former_names
from myxtts.config.schema import Config, ModelConfig
from myxtts.errors import ConfigError
from myxtts.placement.routes import plan_routes
from tests.fixtures import FolderCase, temporary_folder

ROOT = Path(__file__).parents[1]


class YamlTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_folder(self.addCleanup) / "c.yaml"

    def load(self, text: str | bytes, **overrides) -> Config:
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(self.path, overrides)

    def error_of(self, text: str | bytes, **overrides) -> str:
        """Return the error message of a file that must be rejected, without the folder."""
        with self.assertRaises(ConfigError) as caught:
            self.load(text, **overrides)
        return str(caught.exception).replace(str(self.path), "c.yaml")

    def test_file_without_settings_loads_the_defaults(self):
        for text in ("", "# nothing\n", "---\n", "data:\nmodel:\n  # dropout: 0.1\n", "\ufeff"):
            self.assertEqual(self.load(text), Config())

    def test_override_replaces_file_and_file_replaces_default(self):
        config = self.load("data:\n  batch_size: 8\n  buckets: 4\n", batch_size=3)
        actual = (config.data.batch_size, config.data.buckets, config.data.num_workers)
        self.assertEqual(actual, (3, 4, 2))

    def test_plain_values_are_those_of_yaml_1_2(self):
        for setting, text, value in (
            ("learning_rate", "1e-4", 0.0001),
            ("weight_decay", "5E-3", 0.005),
            ("weight_decay", ".5", 0.5),
            ("max_steps", "100_000", 100_000),
            ("max_steps", "010", 10),
            ("ema_decay", "0", 0.0),
            ("compile", "off", "off"),
            ("language", "no", "no"),
            ("run", "2026-01-31", "2026-01-31"),
            ("resume", "True", True),
            ("model_gpus", "[2, 0]", (2, 0)),
        ):
            with self.subTest(setting=setting, text=text):
                section = SETTINGS[setting].section
                config = self.load(f"{section}:\n  {setting}: {text}\n")
                self.assertEqual(SETTINGS[setting].of(config), value)

    def test_error_for_an_invalid_value_names_line_and_bound(self):
        whole = "must be a whole number from 1 to 1000000."
        for value, found in (
            ("-1", "-1"),
            ("0", "0"),
            ("true", "true"),
            ("8.0", "8.0"),
            ("'8'", "'8'"),
            ("eight", "'eight'"),
            ("0x10", "'0x10'"),
            ("", "null"),
            ("[8]", "[8]"),
        ):
            with self.subTest(value=value):
                message = self.error_of(f"data:\n  buckets: 4\n  batch_size: {value}\n")
                self.assertEqual(message, f"c.yaml, line 3: batch_size is {found}, but {whole}")

    def test_misspelt_choice_is_answered_by_the_nearest(self):
        for text, hint in (
            ("model:\n  model_size: bigg\n", " Did you mean big?"),
            ("training:\n  freeze: [decodr]\n", " Did you mean decoder?"),
            ("model:\n  model_size: huge\n", " normal, big."),
        ):
            with self.subTest(text=text):
                self.assertTrue(self.error_of(text).endswith(hint), self.error_of(text))

    def test_booleans_are_only_true_and_false(self):
        for value in ("yes", "on", "1", "'true'"):
            with self.subTest(value=value):
                self.assertIn("line 2: resume is ", self.error_of(f"run:\n  resume: {value}\n"))

    def test_non_finite_number_is_rejected(self):
        for value in (".nan", ".inf", "-.inf", "1e999", "nan", "!!float nan", "!!float inf"):
            with self.subTest(value=value):
                message = self.error_of(f"data:\n  model_start_delay: {value}\n")
                self.assertIn("c.yaml, line 2: model_start_delay is ", message)

    def test_all_invalid_values_are_named(self):
        message = self.error_of("model:\n  dropout: 1\n  model_size: huge\n", batch_size=0)
        self.assertEqual(
            message.splitlines(),
            [
                "c.yaml, line 2: dropout is 1, but must be a number of at least 0 and below 1.",
                "c.yaml, line 3: model_size is 'huge', but must be one of tiny, small, normal,"
                " big.",
                "--batch-size is 0, but must be a whole number from 1 to 1000000.",
            ],
        )

    def test_override_replaces_an_invalid_value_of_the_file(self):
        self.assertEqual(self.load("data:\n  batch_size: 0\n", batch_size=2).data.batch_size, 2)

    def test_number_in_quotes_is_rejected_with_advice(self):
        self.assertTrue(self.error_of("run:\n  run: 7\n").endswith("Put it in quotes."))

    def test_error_for_an_unknown_name_suggests_the_nearest(self):
        sections = f"defaults, {', '.join(SECTIONS)}"
        settings = ", ".join(ModelConfig.model_fields)
        for text, message in (
            ("data:\n  batch_sise: 3\n", "2: 'batch_sise' is unknown. Did you mean 'batch_size'?"),
            ("data:\n  batch-size: 3\n", "2: 'batch-size' is unknown. Did you mean 'batch_size'?"),
            (
                "model:\n\n  batch_sise: 3\n",
                "3: 'batch_sise' is unknown. Did you mean 'batch_size' under 'data:'?",
            ),
            ("model:\n  batch_size: 3\n", "2: 'batch_size' belongs under 'data:'."),
            ("batch_size: 3\n", "1: 'batch_size' belongs under 'data:'."),
            ("trainig:\n  seed: 3\n", "1: 'trainig' is unknown. Did you mean 'training'?"),
            ("داده: 3\n", f"1: 'داده' is unknown. Known names: {sections}."),
            ("model:\n  <<: {dropout: 0}\n", f"2: '<<' is unknown. Known names: {settings}."),
        ):
            with self.subTest(text=text):
                self.assertEqual(self.error_of(text), f"c.yaml, line {message}")

    def test_former_names_are_rejected_with_what_to_use_instead(self):
        for text, message in (
            (
                "training:\n  ema: 0.9\n",
                "line 2: 'ema' is unknown: it was renamed to 'ema_decay' under 'training:'.",
            ),
            ("independent:\n  jobs: 2\n", "line 1: 'independent' was renamed to 'local_sgd'."),
            (
                "model:\n  task: voice\n",
                "line 2: task is 'voice', but must be one of tts, asr, vocoder. Use tts.",
            ),
            (
                "data:\n  real_time: true\n",
                "is unknown: it was removed. It belonged to --emulate. Leave it out.",
            ),
        ):
            with self.subTest(text=text):
                self.assertTrue(self.error_of(text).endswith(message), self.error_of(text))

    def test_names_of_other_trainers_are_translated(self):
        for text, advice in (
            (
                "training:\n  lr: 1e-4\n",
                "line 2: 'lr' is unknown. Use 'learning_rate' under 'training:'.",
            ),
            ("lr: 1e-4\n", "line 1: 'lr' is unknown. Use 'learning_rate' under 'training:'."),
            ("data:\n  patience: 2\n", "line 2: 'patience' is unknown: a run does not stop early"),
        ):
            with self.subTest(text=text):
                self.assertIn(advice, self.error_of(text))

    def test_all_unknown_names_of_a_file_are_listed(self):
        actual = len(self.error_of("training:\n  lr: 1\n  fp16: 1\nseeds:\n  a: 1\n").splitlines())
        self.assertEqual(actual, 3)

    def test_name_given_twice_is_rejected(self):
        self.assertEqual(
            self.error_of("data:\n  buckets: 3\n  buckets: 3\n"),
            "c.yaml, line 3: broken YAML: 'buckets' was already given in line 2. Keep one of them.",
        )
        message = self.error_of("data: {}\ndata: {}\n")
        self.assertIn("line 2: broken YAML: 'data' was already given in line 1", message)

    def test_file_that_is_not_a_mapping_of_sections_is_rejected(self):
        for text, place in (
            ("- data\n", "line 1: the file must hold"),
            ("hello\n", "line 1: the file must hold"),
            ("run: demo\n", "line 1: the section 'run' must hold"),
            ("data:\n  - buckets: 3\n", "line 1: the section 'data' must hold"),
            ("? [a]\n: 3\n", "line 1: broken YAML: a name must precede the colon"),
            ("data:\n  buckets: {a: 1}\n", 'line 2: buckets is {"a": 1}, but must be'),
        ):
            with self.subTest(text=text):
                self.assertIn(place, self.error_of(text))

    def test_broken_yaml_is_rejected_with_its_line(self):
        for text, line in (
            ("data:\n\tbuckets: 3\n", 2),
            ("data:\n  language: 'en\n", 3),
            ("data: *nowhere\n", 1),
            ("data: {}\n---\nmodel: {}\n", 2),
            (b"data:\n  train_data: caf\xe9\n", 2),
            (b"data:\n  train_data: a\x00\n", 2),
        ):
            with self.subTest(text=text):
                self.assertTrue(self.error_of(text).startswith(f"c.yaml, line {line}: "))

    def test_yaml_is_never_built_into_objects(self):
        marker = self.path.with_name("made")
        doublings = "".join(f"  a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(64))
        for text in (
            f"x:\n  a0: &a0 [x, x]\n{doublings}",
            f"data:\n  train_data: !!python/object/apply:os.mkdir ['{marker}']\n",
            "!!python/object:os.error\ndata: {}\n",
        ):
            with self.subTest(text=text[:40]):
                self.error_of(text)
        self.assertFalse(marker.exists())

    def test_file_that_does_not_exist_is_answered_by_those_that_do(self):
        folder = self.path.parent
        for name in ("voice.yaml", "voices.yml", "notes.txt"):
            (folder / name).touch()
        listed = f"Files in {folder}: voice.yaml, voices.yml."
        with mock.patch.object(loading, "SHIPPED", folder):
            for path, message in (
                (folder / "config.yaml", f"there is no such file. {listed}"),
                (
                    folder / "vioce.yaml",
                    f"there is no such file. Did you mean {folder / 'voice.yaml'}? {listed}",
                ),
                (
                    folder / "voices",
                    f"there is no such file. Did you mean {folder / 'voices.yml'}? {listed}",
                ),
                (
                    folder / "nowhere" / "voices.yaml",
                    f"there is no such file. Did you mean {folder / 'voices.yml'}? {listed}",
                ),
                (folder / "voice.yaml" / "x", f"there is no such file. {listed}"),
                (folder, f"Is a directory. {listed}"),
            ):
                with self.subTest(path=path), self.assertRaises(ConfigError) as caught:
                    load(path)
                actual = str(caught.exception)
                self.assertEqual(actual, f"{path}: the configuration cannot be read: {message}")

    def test_file_without_permission_is_rejected(self):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self.path.touch()
        with (
            mock.patch.object(Path, "read_text", side_effect=denied),
            self.assertRaisesRegex(ConfigError, "Fix the perm"),
        ):
            load(self.path)

    def test_epochs_replace_the_default_of_max_steps_only(self):
        def limits(text: str, **flags) -> tuple[int, int]:
            training = self.load(text, **flags).training
            return training.max_steps, training.epochs

        default = Config().training.max_steps
        epochs, both = "training: {epochs: 5}\n", "training: {epochs: 5, max_steps: 70}\n"
        for text, flags, expected in (
            ("", {"epochs": 5}, (0, 5)),
            (epochs, {}, (0, 5)),
            (both, {}, (70, 5)),
            ("", {"epochs": 5, "max_steps": 70}, (70, 5)),
            ("", {"epochs": 5, "max_steps": default}, (default, 5)),
            ("training: {max_steps: 70}\n", {"epochs": 5}, (70, 5)),
            (epochs, {"max_steps": 70}, (70, 5)),
            (epochs, {"epochs": 0}, (default, 0)),
            ("", {"epochs": 0}, (default, 0)),
            (f"training: {{epochs: 5, max_steps: {default}}}\n", {}, (default, 5)),
            ("defaults: [a]\ntraining: {epochs: 5}\n", {}, (70, 5)),
        ):
            with self.subTest(text=text, flags=flags):
                self.path.with_name("a.yaml").write_text("training: {max_steps: 70}\n")
                self.assertEqual(limits(text, **flags), expected)
                actual = self.load(dump(self.load(text, **flags)))
                self.assertEqual(actual, self.load(text, **flags))
        written = dump(load(None, {"epochs": 5}))
        self.assertEqual(limits(written, epochs=9), (0, 9))  # to resume it
        self.assertEqual(limits(dump(Config()), epochs=9), (0, 9))
        self.assertIn("--epochs is -1", self.error_of("", epochs=-1))

    def test_settings_that_contradict_each_other_are_rejected(self):
        self.assertIn("--enable-static-shapes", self.error_of("training:\n  compile: xla\n"))
        self.assertIn("never end", self.error_of("training:\n  max_steps: 0\n"))
        message = self.error_of("data:\n  min_seconds: 4\n  max_seconds: 4\n")
        self.assertIn("min_seconds 4 must", message)
        message = self.error_of("data:\n  train_data: c.csv\n  val_data: c.csv\n")
        self.assertIn("--val-data are both c.csv", message)
        self.load("training:\n  compile: xla\n", enable_static_shapes=True)
        self.load("training:\n  max_steps: 0\n", epochs=1)

    def test_dump_loads_back_to_an_equal_config(self):
        texts = [
            "null",
            "true",
            "no",
            "1e-4",
            "1_0",
            "0o7",
            "1:30",
            "2026-01-31",
            ".5",
            "=",
            "<<",
            "#a",
            "-",
            "'",
            '"',
            "!x",
            "\\",
            "داده",
        ]
        texts += [" a ", "a: b", "- a", "a\nb", "a\x85b", "\u2028", "/corpora/ქართული"]
        values = {"learning_rate": 1e-5, "model_gpus": (1, 2), "run": "1e-4"}
        for text in texts:
            with self.subTest(text=text):
                config = load(None, {"train_data": text} | values)
                self.assertEqual(self.load(dump(config)), config)

    def test_a_path_that_is_not_utf_8_is_rejected(self):
        with self.assertRaisesRegex(ConfigError, r"--train-data is '.*udce9.*give a link to it"):
            load(None, {"train_data": "/data/caf\udce9"})


class NamesTest(unittest.TestCase):
    """The tables of names that MyXTTS had, or that other trainers have."""

    @classmethod
    def setUpClass(cls):
        cls.flags = set().union(*map(flags_of, COMMANDS))

    def test_former_names_are_no_longer_used_and_what_replaces_them_exists(self):
        former = former_names()
        renamed = {f"--{name.replace('_', '-')}" for name in former["renamed"].values()}
        self.assertEqual(renamed - self.flags, set())
        self.assertEqual({*former["renamed"], *former["removed"]} & set(SETTINGS), set())
        for name, values in former["values"].items():
            self.assertEqual(set(values) & set(SETTINGS[name].choices), set())
        self.assertLessEqual(set(former["sections"].values()), set(SECTIONS))
        self.assertEqual(set(former["sections"]) & set(SECTIONS), set())

    def test_names_of_other_trainers_are_not_ours_and_the_flags_instead_exist(self):
        for name, text in foreign_names().items():
            with self.subTest(name):
                self.assertNotIn(name, SETTINGS)
                self.assertEqual(set(re.findall(r"--[a-z0-9-]+", text)) - self.flags, set())
                for script in re.findall(r"utilities/\w+\.py", text):
                    self.assertTrue((ROOT / script).exists())

    def test_each_script_runs_its_command(self):
        self.assertEqual(set(SCRIPTS), set(COMMANDS))
        for command, script in SCRIPTS.items():
            self.assertIn(
                f"run_script({command.replace('-', '_')})",
                (ROOT / script).read_text(encoding="utf-8"),
            )


def flags_of(command: str) -> set[str]:
    """Return the flags of a command, from its help."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        load_command(command).main(["--help"])
    options = re.findall(r"^ +(?:-h, )?(--\S+?)(?:, (--\S+))?(?: |$)", out.getvalue(), re.MULTILINE)
    return {flag for flags in options for flag in flags if flag}


class SchemaTest(unittest.TestCase):
    def test_names_are_unique_over_all_sections(self):
        count = sum(len(field.annotation.model_fields) for field in Config.model_fields.values())
        self.assertEqual(len(SETTINGS), count)

    def test_every_default_is_allowed(self):
        defaults = Config().model_dump()
        self.assertEqual(Config.model_validate(defaults, strict=True), Config())

    def test_shipped_files_compose(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(shutil.copytree(ROOT / "configs", Path(name) / "configs"))
            for more, expected in (
                ("multi_gpu", [("/GPU:0", "/GPU:0"), ("/GPU:1", "/GPU:1")]),
                ("distributed", [("/GPU:0", "/GPU:0")]),
                ("dual_gpu", [("/GPU:0", "/GPU:1")]),
            ):
                (folder / "own.yaml").write_text(f"defaults: [asr_lmu, {more}]\n")
                config = load(folder / "own.yaml")
                routes = plan_routes(config.placement, gpu_count=2).routes
                self.assertEqual([(route.data, route.model) for route in routes], expected)
                self.assertEqual(config.model.task, "asr")

    def test_shipped_configurations_load(self):
        paths = sorted((ROOT / "configs").glob("*.yaml"))
        self.assertGreaterEqual(len(paths), 5)
        for path in paths:
            with self.subTest(path=path.name):
                load(path)

    def test_only_the_demo_hides_real_gpus(self):
        simulating = {
            path.stem
            for path in (ROOT / "configs").glob("*.yaml")
            if load(path).placement.simulate_gpus
        }
        self.assertEqual(simulating, {"demo", "demo_vocoder"})

    def test_a_tiny_model_is_announced_in_the_first_line(self):
        """But for the demo, and for vocoders, whose tiny size is not for trials only."""
        for path in (ROOT / "configs").glob("*.yaml"):
            with self.subTest(config=path.name):
                is_small = path.read_text(encoding="utf-8").startswith(
                    "# A small experiment for a laptop: "
                )
                model = load(path).model
                is_tiny = model.model_size == "tiny" and model.task != "vocoder"
                self.assertEqual(is_small, is_tiny and path.stem != "demo")

    def test_the_recogniser_has_the_default_size_placement_and_length(self):
        config, default = load(ROOT / "configs/asr_lmu.yaml"), Config()
        actual = (config.placement, config.model.model_size)
        self.assertEqual(actual, (default.placement, default.model.model_size))
        self.assertEqual((config.model.task, config.training), ("asr", default.training))

    def test_memory_presets_hold_the_published_matrix(self):
        for name, expected in (
            ("12", (8, 4096, 8192)),
            ("16", (12, 6144, 10240)),
            ("24", (16, 8192, 16384)),
        ):
            config = load(ROOT / f"configs/dual_gpu_{name}gb.yaml")
            limits = (config.placement.data_gpu_memory, config.placement.model_gpu_memory)
            self.assertEqual((config.data.batch_size, *limits), expected)

    def test_every_setting_is_read_outside_config(self):
        """A setting is read in `data.batch_size`, `x.data.batch_size` or `settings.batch_size`."""
        read: set[tuple[str, str]] = set()
        for path in (ROOT / "myxtts").rglob("*.py"):
            if Path(schema.__file__).parent not in path.parents:
                read |= _section_fields(ast.parse(path.read_text(encoding="utf-8")))
        unread = [
            f"{setting.section}.{name}"
            for name, setting in SETTINGS.items()
            if not {(setting.section, name), ("settings", name)} & read
        ]
        self.assertFalse(unread)


def _section_fields(tree: ast.AST) -> set[tuple[str, str]]:
    """Return (section, name) for each `….section.name` and `section.name` in a module."""
    fields = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
            if owner in (*SECTIONS, "settings"):
                fields.add((owner, node.attr))
    return fields


class BrokenFiles(FolderCase):
    def error_of(self, path: Path) -> str:
        with self.assertRaises(ConfigError) as caught:
            load(path)
        return str(caught.exception)

    def test_a_long_list_is_not_proposed_whole(self):
        path = self.write("c.yaml", f"placement:\n  model_gpus: {['1'] * 1_000}\n")
        self.assertLess(len(self.error_of(path)), 1_000)

    def test_an_escape_of_no_character_is_broken_yaml(self):
        for escape in (r"\U00110000", r"\UFFFFFFFF"):
            with self.subTest(escape):
                message = self.error_of(self.write("c.yaml", f'run: {{run: "{escape}"}}\n'))
                self.assertIn("broken YAML", message)


if __name__ == "__main__":
    unittest.main()
