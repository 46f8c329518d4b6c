"""YAML and flags become a Config, or a message that says where the mistake is."""

import ast
import tempfile
import unittest
from pathlib import Path

from myxtts.config import document, schema
from myxtts.config.load import MAX_BYTES, dump, load
from myxtts.config.schema import Config, Model
from myxtts.config.settings import SECTIONS, SETTINGS
from myxtts.errors import ConfigError

ROOT = Path(__file__).parents[1]


class YamlTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "c.yaml"

    def load(self, text: str | bytes, **overrides) -> Config:
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(self.path, overrides)

    def refusal(self, text: str | bytes, **overrides) -> str:
        """The message, without the folder, of a file that must be refused."""
        with self.assertRaises(ConfigError) as caught:
            self.load(text, **overrides)
        return str(caught.exception).replace(str(self.path), "c.yaml")

    def test_file_without_settings_is_the_defaults(self):
        for text in ("", "# nothing\n", "---\n", "data:\nmodel:\n  # dropout: 0.1\n", "\ufeff"):
            self.assertEqual(self.load(text), Config())

    def test_override_replaces_file_and_file_replaces_default(self):
        config = self.load("data:\n  batch_size: 8\n  buckets: 4\n", batch_size=3)
        self.assertEqual((config.data.batch_size, config.data.buckets, config.data.num_workers), (3, 4, 2))

    def test_numbers_without_a_dot_are_numbers(self):
        config = self.load("training:\n  learning_rate: 1e-4\n  weight_decay: 5E-3\n  max_steps: 100_000\n  ema: 0\n")
        self.assertEqual(config.training.learning_rate, 0.0001)
        self.assertEqual(config.training.weight_decay, 0.005)
        self.assertEqual((config.training.max_steps, config.training.ema), (100_000, 0.0))

    def test_words_of_yaml_1_1_are_text(self):
        config = self.load("training:\n  compile: off\ndata:\n  language: no\nrun:\n  run: 2026-01-31\n")
        self.assertEqual((config.training.compile, config.data.language, config.run.run), ("off", "no", "2026-01-31"))

    def test_list_becomes_tuple(self):
        self.assertEqual(self.load("placement:\n  model_gpus: [2, 0]\n").placement.model_gpus, (2, 0))

    def test_value_that_is_not_allowed_is_refused_with_line_and_bound(self):
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
            ("!!int x", "'x'"),
        ):
            with self.subTest(value=value):
                message = self.refusal(f"data:\n  buckets: 4\n  batch_size: {value}\n")
                self.assertEqual(message, f"c.yaml, line 3: batch_size is {found}, but {whole}")

    def test_truth_value_is_true_or_false(self):
        self.assertTrue(self.load("run:\n  resume: True\n").run.resume)
        for value in ("yes", "on", "1", "'true'", "!!bool yes"):
            with self.subTest(value=value):
                self.assertIn("line 2: resume is ", self.refusal(f"run:\n  resume: {value}\n"))

    def test_number_that_is_not_finite_is_refused(self):
        for value in (".nan", ".inf", "-.inf", "1e999", "nan", "!!float nan", "!!float inf"):
            with self.subTest(value=value):
                message = self.refusal(f"data:\n  model_start_delay: {value}\n")
                self.assertIn("c.yaml, line 2: model_start_delay is ", message)

    def test_every_value_that_is_not_allowed_is_named(self):
        message = self.refusal("model:\n  dropout: 1\n  model_size: huge\n", batch_size=0)
        self.assertEqual(
            message.splitlines(),
            [
                "c.yaml, line 2: dropout is 1, but must be a number of at least 0 and below 1.",
                "c.yaml, line 3: model_size is 'huge', but must be one of tiny, small, normal, big.",
                "--batch-size is 0, but must be a whole number from 1 to 1000000.",
            ],
        )

    def test_override_mends_a_value_of_the_file(self):
        self.assertEqual(self.load("data:\n  batch_size: 0\n", batch_size=2).data.batch_size, 2)

    def test_number_as_text_is_refused_with_the_remedy(self):
        self.assertTrue(self.refusal("run:\n  run: 7\n").endswith("Put it in quotes."))

    def test_unknown_name_is_refused_with_the_nearest(self):
        for text, message in (
            ("data:\n  batch_sise: 3\n", "c.yaml, line 2: 'batch_sise' is unknown. Did you mean 'batch_size'?"),
            ("data:\n  batch-size: 3\n", "c.yaml, line 2: 'batch-size' is unknown. Did you mean 'batch_size'?"),
            (
                "model:\n\n  batch_sise: 3\n",
                "c.yaml, line 3: 'batch_sise' is unknown. Did you mean 'batch_size' under 'data:'?",
            ),
            ("model:\n  batch_size: 3\n", "c.yaml, line 2: 'batch_size' belongs under 'data:'."),
            ("batch_size: 3\n", "c.yaml, line 1: 'batch_size' belongs under 'data:'."),
            ("trainig:\n  seed: 3\n", "c.yaml, line 1: 'trainig' is unknown. Did you mean 'training'?"),
            (
                "داده: 3\n",
                "c.yaml, line 1: 'داده' is unknown. Known here: placement, data, model, training, run.",
            ),
            (
                "model:\n  <<: {dropout: 0}\n",
                f"c.yaml, line 2: '<<' is unknown. Known here: {', '.join(Model.model_fields)}.",
            ),
        ):
            with self.subTest(text=text):
                self.assertEqual(self.refusal(text), message)

    def test_name_given_twice_is_refused(self):
        self.assertEqual(
            self.refusal("data:\n  buckets: 3\n  buckets: 3\n"),
            "c.yaml, line 3: 'buckets' was given in line 2. Keep one of them.",
        )
        self.assertIn("line 2: 'data' was given in line 1", self.refusal("data: {}\ndata: {}\n"))

    def test_file_of_another_form_is_refused(self):
        for text, place in (
            ("- data\n", "line 1: the file must hold"),
            ("hello\n", "line 1: the file must hold"),
            ("run: demo\n", "line 1: the section 'run' must hold"),
            ("data:\n  - buckets: 3\n", "line 1: the section 'data' must hold"),
            ("? [a]\n: 3\n", "line 1: a name belongs before the colon, not a list"),
            ("data:\n  buckets: {a: 1}\n", "line 2: buckets holds a mapping"),
        ):
            with self.subTest(text=text):
                self.assertIn(place, self.refusal(text))

    def test_broken_yaml_is_refused_with_its_line(self):
        for text, line in (
            ("data:\n\tbuckets: 3\n", 2),
            ("data:\n  language: 'en\n", 3),
            ("data: *nowhere\n", 1),
            ("data: {}\n---\nmodel: {}\n", 2),
            (b"data:\n  train_data: caf\xe9\n", 2),
            (b"data:\n  train_data: a\x00\n", 2),
        ):
            with self.subTest(text=text):
                self.assertTrue(self.refusal(text).startswith(f"c.yaml, line {line}: "))

    def test_hostile_yaml_is_refused_and_never_built(self):
        doublings = "".join(f"  a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(64))
        marker = self.path.with_name("made")
        for text in (
            f"x:\n  a0: &a0 [x, x]\n{doublings}",
            "placement:\n  data_gpu: &a [0, 0]\n  model_gpus: [*a, *a]\n",
            "placement:\n  model_gpus: &a [*a]\n",
            f"data:\n  train_data: !!python/object/apply:os.mkdir ['{marker}']\n",
            "!!python/object:os.error\ndata: {}\n",
            "[" * 20_000,
            "#" * (MAX_BYTES + 1),
            f"data:\n  batch_size: {'9' * 6000}\n",
        ):
            with self.subTest(text=text[:40]):
                self.assertLess(len(self.refusal(text)), 400)
        self.assertFalse(marker.exists())

    def test_file_that_cannot_be_read_is_refused(self):
        for path in (self.path, self.path.parent):
            with self.subTest(path=path), self.assertRaisesRegex(ConfigError, "cannot be read: "):
                load(path)

    def test_settings_that_contradict_each_other_are_refused(self):
        self.assertIn("--enable-static-shapes", self.refusal("training:\n  compile: xla\n"))
        self.assertIn("never be done", self.refusal("training:\n  max_steps: 0\n"))
        self.assertIn("min_seconds (4)", self.refusal("data:\n  min_seconds: 4\n  max_seconds: 4\n"))
        self.load("training:\n  compile: xla\n", enable_static_shapes=True)
        self.load("training:\n  max_steps: 0\n", epochs=1)

    def test_dump_loads_back_to_an_equal_config(self):
        texts = ("null", "true", "no", "1e-4", "1_0", "0o7", "1:30", "2026-01-31", ".5", "=", "<<", "", " a ", "#a")
        texts += ("a: b", "- a", "'", '"', "a\nb", "a\x85b", "\u2028", "/corpora/ქართული", "داده", "\udce9", "!x", "\\")
        for text in texts:
            with self.subTest(text=text):
                config = load(None, {"train_data": text, "learning_rate": 1e-5, "model_gpus": (1, 2), "run": "1e-4"})
                self.assertEqual(self.load(dump(config)), config)


class SchemaTest(unittest.TestCase):
    def test_names_are_unique_over_all_sections(self):
        count = sum(len(field.annotation.model_fields) for field in Config.model_fields.values())
        self.assertEqual(len(SETTINGS), count)

    def test_every_default_is_allowed(self):
        defaults = Config().model_dump()
        self.assertEqual(Config.model_validate(defaults, strict=True), Config())

    def test_shipped_configurations_load(self):
        paths = sorted((ROOT / "configs").glob("*.yaml"))
        self.assertGreaterEqual(len(paths), 5)
        for path in paths:
            with self.subTest(path=path.name):
                load(path)

    def test_memory_presets_hold_the_published_matrix(self):
        for name, expected in (("12", (8, 4096, 8192)), ("16", (12, 6144, 10240)), ("24", (16, 8192, 16384))):
            config = load(ROOT / f"configs/dual_gpu_{name}gb.yaml")
            limits = (config.placement.data_gpu_memory, config.placement.model_gpu_memory)
            self.assertEqual((config.data.batch_size, *limits), expected)

    def test_documentation_is_current(self):
        self.assertEqual(document.PAGE.read_text(encoding="utf-8"), document.page(), "python -m myxtts.config.document")

    def test_every_setting_is_read_outside_of_config(self):
        """Read as `data.batch_size`: a field of something that bears the name of its section."""
        read = set()
        for path in (ROOT / "myxtts").rglob("*.py"):
            if Path(schema.__file__).parent not in path.parents:
                read |= _section_fields(ast.parse(path.read_text(encoding="utf-8")))
        unread = [
            f"{setting.section}.{name}" for name, setting in SETTINGS.items() if (setting.section, name) not in read
        ]
        self.assertFalse(unread)


def _section_fields(tree: ast.AST) -> set[tuple[str, str]]:
    """(section, name) of each `….section.name` and `section.name` in a module."""
    fields = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
            if owner in SECTIONS:
                fields.add((owner, node.attr))
    return fields


if __name__ == "__main__":
    unittest.main()
