"""YAML and flags become a Config, or an error with the location of the mistake."""

import ast
import errno
import math
import os
import shutil
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from myxtts.base import plugins
from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands import synthesize
from myxtts.commands.main import load_command
from myxtts.config import schema
from myxtts.config.advice import FLAG, advice_on_flag, nearest, other_names
from myxtts.config.checks import check_worker_count
from myxtts.config.flags import SCRIPTS, SECTIONS, SETTINGS, command_line
from myxtts.config.load import dump, load
from myxtts.config.parser import parser_of
from myxtts.config.schema import Config, ModelConfig
from myxtts.config.synthesis import BOUNDS, SynthesisOptions, check_options
from myxtts.placement.settings import plan_routes
from tests.fixtures import FolderCase

COMMANDS = plugins.names("commands")
ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))


class YamlCase(FolderCase):
    def load(self, text: str | bytes, files: dict[str, str] | None = None, **overrides) -> Config:
        """Load c.yaml, beside other files."""
        for name, other in (files or {}).items():
            self.write(name, other)
        return load(self.write("c.yaml", text), overrides)

    def error_of(self, text: str | bytes, files: dict[str, str] | None = None, **overrides) -> str:
        """Return the error message of a file that must be rejected, without the folder."""
        with self.assertRaises(ConfigError) as caught:
            self.load(text, files, **overrides)
        return str(caught.exception).replace(f"{self.folder}/", "")

    def assert_errors(self, *cases: tuple[str | bytes, str]) -> None:
        """Assert that each text is rejected with words of a message."""
        for text, words in cases:
            with self.subTest(text=text[:60]):
                self.assertIn(words, self.error_of(text))


class YamlTest(YamlCase):
    def test_file_without_settings_loads_the_defaults(self):
        texts = ["", "# nothing\n", "---\n", "data:\nmodel:\n  # dropout: 0.1\n", "\ufeff"]
        for text in [*texts, "defaults:\n", "defaults: []\n"]:
            self.assertEqual(self.load(text), Config())

    def test_override_replaces_file_and_file_replaces_default(self):
        data = self.load("data:\n  batch_size: 8\n  buckets: 4\n", batch_size=3).data
        self.assertEqual((data.batch_size, data.buckets, data.num_workers), (3, 4, 2))
        self.assertEqual(self.load("data:\n  batch_size: 0\n", batch_size=2).data.batch_size, 2)

    def test_plain_values_are_those_of_yaml_1_2(self):
        for setting, text, value in (
            *(("learning_rate", "1e-4", 0.0001), ("weight_decay", "5E-3", 0.005)),
            *(("weight_decay", ".5", 0.5), ("max_steps", "100_000", 100_000)),
            *(("max_steps", "010", 10), ("ema_decay", "0", 0.0), ("compile", "off", "off")),
            *(("language", "no", "no"), ("run", "2026-01-31", "2026-01-31")),
            *(("resume", "True", True), ("model_gpus", "[2, 0]", (2, 0))),
        ):
            with self.subTest(setting=setting, text=text):
                config = self.load(f"{SETTINGS[setting].section}:\n  {setting}: {text}\n")
                self.assertEqual(SETTINGS[setting].of(config), value)

    def test_error_for_an_invalid_value_names_line_and_bound(self):
        values = ["-1", "0", "true", "8.0", "'8'", "[8]"]
        found = {"eight": "'eight'", "0x10": "'0x10'", "": "null", "{a: 1}": '{"a": 1}'}
        for value, shown in ({value: value for value in values} | found).items():
            with self.subTest(value=value):
                message = self.error_of(f"data:\n  buckets: 4\n  batch_size: {value}\n")
                whole = f"is {shown}, but must be a whole number from 1 to 1000000."
                self.assertEqual(message, f"c.yaml, line 3: batch_size {whole}")

    def test_misspelt_choice_is_answered_by_the_nearest(self):
        self.assert_errors(
            ("model:\n  model_size: bigg\n", " Did you mean big?"),
            ("training:\n  freeze: [decodr]\n", " Did you mean decoder?"),
        )
        self.assertTrue(self.error_of("model:\n  model_size: huge\n").endswith(" normal, big."))
        self.assertLess(len(self.error_of(f"placement: {{model_gpus: {['1'] * 1_000}}}\n")), 1_000)

    def test_booleans_are_only_true_and_false_and_numbers_are_finite(self):
        for value in ("yes", "on", "1", "'true'"):
            self.assert_errors((f"run:\n  resume: {value}\n", "line 2: resume is "))
        for value in (".nan", ".inf", "-.inf", "1e999", "nan", "!!float nan", "!!float inf"):
            text = f"data:\n  model_start_delay: {value}\n"
            self.assert_errors((text, "c.yaml, line 2: model_start_delay is "))

    def test_all_invalid_values_are_named(self):
        message = self.error_of("model:\n  dropout: 1\n  model_size: huge\n", batch_size=0)
        dropout, size, batch = message.splitlines()
        self.assertEqual(
            dropout, "c.yaml, line 2: dropout is 1, but must be a number of at least 0 and below 1."
        )
        self.assertIn("c.yaml, line 3: model_size is 'huge', but must be one of tiny, small", size)
        self.assertIn("--batch-size is 0, but must be a whole number from 1 to 1000000.", batch)

    def test_number_in_quotes_is_rejected_with_advice(self):
        self.assert_errors(("run:\n  run: 7\n", "Put it in quotes."))

    def test_error_for_an_unknown_name_suggests_the_nearest(self):
        sections = f"defaults, {', '.join(SECTIONS)}"
        settings = ", ".join(ModelConfig.model_fields)
        for text, message in (
            ("data:\n  batch_sise: 3\n", "2: 'batch_sise' is unknown. Did you mean 'batch_size'?"),
            ("data:\n  batch-size: 3\n", "2: 'batch-size' is unknown. Did you mean 'batch_size'?"),
            ("model:\n\n  batch_sise: 3\n", "Did you mean 'batch_size' under 'data:'?"),
            ("model:\n  batch_size: 3\n", "2: 'batch_size' belongs under 'data:'."),
            ("batch_size: 3\n", "1: 'batch_size' belongs under 'data:'."),
            ("trainig:\n  seed: 3\n", "1: 'trainig' is unknown. Did you mean 'training'?"),
            ("داده: 3\n", f"1: 'داده' is unknown. Known names: {sections}."),
            ("model:\n  <<: {dropout: 0}\n", f"2: '<<' is unknown. Known names: {settings}."),
        ):
            with self.subTest(text=text):
                self.assertTrue(self.error_of(text).endswith(message), self.error_of(text))

    def test_former_names_and_those_of_other_trainers_are_answered(self):
        rate = "Use 'learning_rate' under 'training:'."
        self.assert_errors(
            ("training:\n  ema: 0.9\n", "it was renamed to 'ema_decay' under 'training:'."),
            ("independent:\n  jobs: 2\n", "line 1: 'independent' was renamed to 'local_sgd'."),
            ("model:\n  task: voice\n", "but must be one of tts, asr, vocoder. Use tts."),
            ("data:\n  real_time: true\n", "it was removed: throughput is planned"),
            ("vocoder:\n  discriminators: true\n", "line 2: 'discriminators' is unknown: it was"),
            ("training:\n  lr: 1e-4\n", f"line 2: 'lr' is unknown. {rate}"),
            ("lr: 1e-4\n", f"line 1: 'lr' is unknown. {rate}"),
            ("data:\n  n_mels: 80\n", "'n_mels' is unknown: the audio format follows"),
        )

    def test_removed_settings_that_a_run_did_not_use_are_ignored(self):
        unused = "discriminators: false\n  adversarial_weight: 0.1"
        self.assertEqual(self.load(f"vocoder:\n  {unused}\n"), Config())
        self.assert_errors((f"vocoder:\n  {unused}5\n", "line 3: 'adversarial_weight' is unknown"))

    def test_all_unknown_names_of_a_file_are_listed(self):
        message = self.error_of("training:\n  lr: 1\n  fp16: 1\nseeds:\n  a: 1\n")
        self.assertEqual(len(message.splitlines()), 3)

    def test_file_that_is_not_a_mapping_of_sections_is_rejected(self):
        twice = "was already given in line"
        self.assert_errors(
            ("data:\n  buckets: 3\n  buckets: 3\n", f"line 3: broken YAML: 'buckets' {twice} 2."),
            ("data: {}\ndata: {}\n", f"line 2: broken YAML: 'data' {twice} 1"),
            ("- data\n", "line 1: the file must hold"),
            ("hello\n", "line 1: the file must hold"),
            ("run: demo\n", "line 1: the section 'run' must hold"),
            ("data:\n  - buckets: 3\n", "line 1: the section 'data' must hold"),
            ("? [a]\n: 3\n", "line 1: broken YAML: a name must precede the colon"),
        )

    def test_broken_yaml_is_rejected(self):
        self.assertNotIn("UTF-8", self.error_of("data: {}\ndata: {}\n"))
        self.assert_errors(
            ("data:\n\tbuckets: 3\n", "c.yaml, line 2: broken YAML: while scanning for the next "),
            ("data:\n  language: 'en\n", "c.yaml, line 3: broken YAML"),
            ("data: *nowhere\n", "c.yaml, line 1: broken YAML: found undefined alias"),
            ("data: {}\n---\nmodel: {}\n", "line 2: broken YAML: expected a single document in"),
            (b"data:\n  train_data: caf\xe9\n", "Save it as UTF-8."),
            (b"data:\n  train_data: a\x00\n", "special characters are not allowed"),
            ('run: {run: "\\U00110000"}\n', "broken YAML"),
            ('run: {run: "\\UFFFFFFFF"}\n', "broken YAML"),
        )

    def test_yaml_is_never_built_into_objects(self):
        marker = self.folder / "made"
        doublings = "".join(f"  a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(64))
        self.assert_errors(
            (f"x:\n  a0: &a0 [x, x]\n{doublings}", "'x' is unknown"),
            (f"data:\n  train_data: !!python/object/apply:os.mkdir ['{marker}']\n", "broken YAML"),
            ("!!python/object:os.error\ndata: {}\n", "broken YAML"),
        )
        self.assertFalse(marker.exists())

    def test_file_that_cannot_be_read_is_rejected(self):
        path = self.write("c.yaml")
        for other in (self.folder / "nowhere.yaml", path / "x", self.folder):
            with self.subTest(other), self.assertRaisesRegex(ConfigError, "cannot be read: .* rel"):
                load(other)
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with (
            mock.patch.object(Path, "read_text", side_effect=denied),
            self.assertRaisesRegex(ConfigError, "cannot be read: Permission denied"),
        ):
            load(path)

    def test_epochs_replace_the_default_of_max_steps_only(self):
        def limits(text: str, **flags) -> tuple[int, int]:
            training = self.load(text, {"a.yaml": "training: {max_steps: 70}\n"}, **flags).training
            return training.max_steps, training.epochs

        default = Config().training.max_steps
        epochs, both = "training: {epochs: 5}\n", "training: {epochs: 5, max_steps: 70}\n"
        for text, flags, expected in (
            *(("", {"epochs": 5}, (0, 5)), (epochs, {}, (0, 5)), (both, {}, (70, 5))),
            ("", {"epochs": 5, "max_steps": 70}, (70, 5)),
            ("", {"epochs": 5, "max_steps": default}, (default, 5)),
            ("training: {max_steps: 70}\n", {"epochs": 5}, (70, 5)),
            (epochs, {"max_steps": 70}, (70, 5)),
            *((epochs, {"epochs": 0}, (default, 0)), ("", {"epochs": 0}, (default, 0))),
            (f"training: {{epochs: 5, max_steps: {default}}}\n", {}, (default, 5)),
            ("defaults: [a]\ntraining: {epochs: 5}\n", {}, (70, 5)),
        ):
            with self.subTest(text=text, flags=flags):
                self.assertEqual(limits(text, **flags), expected)
                config = self.load(text, **flags)
                self.assertEqual(self.load(dump(config)), config)
        # To resume it.
        self.assertEqual(limits(dump(load(None, {"epochs": 5})), epochs=9), (0, 9))
        self.assertEqual(limits(dump(Config()), epochs=9), (0, 9))
        self.assertIn("--epochs is -1", self.error_of("", epochs=-1))

    def test_settings_that_contradict_each_other_are_rejected(self):
        self.assert_errors(
            ("training:\n  compile: xla\n", "--enable-static-shapes"),
            ("training:\n  max_steps: 0\n", "never end"),
            ("data:\n  min_seconds: 4\n  max_seconds: 4\n", "min_seconds 4 must"),
        )
        for flags, words in (
            ({"select_by": "dnsmos"}, "dnsmos needs the scores of evaluations, but evaluate_every"),
            ({"select_by": "cer", "evaluate_every": 9}, "Name its run with --evaluate-asr."),
            ({"select_by": "cer", "evaluate_every": 9, "task": "vocoder"}, "--task vocoder lacks"),
            ({"select_by": "dnsmos", "evaluate_every": 9, "task": "asr"}, "--task asr lacks it"),
            ({"patience": 3, "validate_every": 0}, "--validate-every is 0"),
            ({"patience": 3, "sync_every": 9, "jobs": 2, "sync_dir": "s"}, "--sync-every is 9"),
        ):
            with self.subTest(flags):
                self.assertIn(words, self.error_of("", **flags))
        self.load("", select_by="cer", evaluate_every=9, evaluate_asr="runs/asr", patience=3)
        self.load("", select_by="cer", evaluate_every=9, task="asr", validate_every=0, patience=3)
        with self.assertRaisesRegex(ConfigError, "--patience was given to 2 workers"):
            check_worker_count(self.load("", patience=3), 2)
        self.load("training:\n  compile: xla\n", enable_static_shapes=True)
        self.load("training:\n  max_steps: 0\n", epochs=1)

    def test_dump_loads_back_to_an_equal_config(self):
        words = "null true no 1e-4 1_0 0o7 1:30 2026-01-31 .5 = << #a - ' \" !x \\ داده"
        texts = [" a ", "a: b", "- a", "a\nb", "a\x85b", "\u2028", "/corpora/ქართული"]
        values = {"learning_rate": 1e-5, "model_gpus": (1, 2), "run": "1e-4"}
        for text in [*texts, *words.split()]:
            with self.subTest(text=text):
                config = load(None, {"train_data": text} | values)
                self.assertEqual(self.load(dump(config)), config)

    def test_a_path_that_is_not_utf_8_is_rejected(self):
        with self.assertRaisesRegex(ConfigError, r"--train-data is '.*udce9.*give a link to it"):
            load(None, {"train_data": "/data/caf\udce9"})


class DefaultsTest(YamlCase):
    """Files that list others under `defaults`."""

    def test_later_files_override_earlier_and_flags_override_all(self):
        files = {
            "a.yaml": "data: {batch_size: 1, buckets: 1, num_workers: 1, buffer_size: 1}\n",
            "b.yaml": "data: {buckets: 2, num_workers: 2, buffer_size: 2}\n",
        }
        text = "data: {num_workers: 3, buffer_size: 3}\ndefaults: [a, b.yaml]\n"
        data = self.load(text, files, buffer_size=4).data
        actual = (data.batch_size, data.buckets, data.num_workers, data.buffer_size)
        self.assertEqual(actual, (1, 2, 3, 4))

    def test_listed_file_may_list_further_files(self):
        files = {
            "base.yaml": "data: {batch_size: 1, buckets: 1}\n",
            "a.yaml": "defaults: [base]\ndata: {buckets: 2}\n",
            "b.yaml": "defaults: [base]\nmodel: {dropout: 0}\n",
        }
        for listed, buckets in (("[b, a]", 2), ("[a, b]", 1), ("[base, a]", 2), ("[a, base]", 1)):
            with self.subTest(listed):
                data = self.load(f"defaults: {listed}\n", files).data
                self.assertEqual((data.batch_size, data.buckets), (1, buckets))
        files = {f"f{i}.yaml": f"defaults: [f{i + 1}, f{i + 2}]\n" for i in range(4)}
        files |= {"f4.yaml": "defaults: [f5]\n", "f5.yaml": "data: {buckets: 3}\n"}
        self.assertEqual(self.load("defaults: [f0]\n", files).data.buckets, 3)

    def test_file_may_only_list_others(self):
        files = {"a.yml": "run: {run: seven}\n", "7.yaml": ""}
        files["x.y.yaml"] = "training: {ema_decay: 0}\n"
        config = self.load("defaults:\n  - a.yml\n  - 7\n  - x.y\n", files)
        self.assertEqual((config.run.run, config.training.ema_decay), ("seven", 0.0))

    def test_error_names_the_listed_file_and_line(self):
        composed = "\ndefaults: [a]\nmodel: {dropout: 0}\n"
        for text, message in (
            ("data:\n  buckets: 0\n", "a.yaml, line 2: buckets is 0, but must be a whole number"),
            ("data:\n  bucket: 1\n", "a.yaml, line 2: 'bucket' is unknown. Did you mean 'buckets'"),
            ("default: [b]\n", "a.yaml, line 1: 'default' is unknown. Did you mean 'defaults'?"),
            ("- a\n", "a.yaml, line 1: the file must hold lines of the form 'name: value'."),
        ):
            with self.subTest(text):
                self.assertTrue(self.error_of(composed, {"a.yaml": text}).startswith(message))
        files = {"a.yaml": "data: {buckets: 0}\n"}
        self.assertEqual(self.load(composed, files, buckets=2).data.buckets, 2)

    def test_malformed_list_missing_file_and_cycle_are_rejected(self):
        self.write("a.yaml")
        self.write("b.yaml", "\ndefaults: [d.yaml]\n")
        self.write("d.yaml", "defaults: [b]\n")
        self.assert_errors(
            ("defaults: a\n", "defaults must be a list"),
            ("defaults: {a: b}\n", "defaults must be a list"),
            ("defaults: [[a]]\n", "there is no file"),
            ("defaults: [!!python/name:os.remove a]\n", "could not determine a constructor"),
            ("defaults:\n  - a\n  - f\n", "c.yaml, line 1: defaults names 'f', but there is no fi"),
            ("defaults: [c]\n", "c.yaml, line 1: defaults names 'c', which makes a cycle"),
            ("defaults: [b]\n", "d.yaml, line 1: defaults names 'b', which makes a cycle"),
        )


# What is typed, in a command or under a section of a file, and words of the answer.
HINTS = (
    ("train", "--sync_batchnorm", "there is no batch normalisation"),
    ("train", "--backend=nccl", "gradients by NCCL on GPUs"),
    ("train", "--resume-checkpoint", "Use --resume and --run NAME to continue it, or --init-from"),
    ("train", "--model_device", "Use --model-gpu, with the GPU of the data as --data-gpu."),
    ("train", "--nproc-per-node=2", "Use --model-gpus 0 1, because"),
    ("train", "--gpus", "Use --model-gpus 0 1"),
    ("train", "--nnodes", "Use `python -m myxtts launch` with --nodes HOST:PORT"),
    ("train", "--node_rank", "Use `python -m myxtts launch` with --node-rank."),
    ("train", "--master_port", "Use `python -m myxtts launch` with --nodes HOST:PORT"),
    ("train", "--train_csv", "Use --train-data."),
    ("train", "--gpu0_checkpoint", "`python utilities/merge_checkpoints.py` with --checkpoints"),
    ("train", "--speaker_wav", "Use `python -m myxtts synthesize` with --reference."),
    ("train", "--no-prefetch-to-gpu", ": batches are always uploaded in advance."),
    ("train", "trainer.max_epochs=3", "'trainer.max_epochs' is not a flag. Use --epochs, or --max"),
    ("train", "training.batch_size=3", "Use --batch-size."),
    ("jobs", "--nproc_per_node=2", "Use --gpus 0 1."),
    ("jobs", "--num_train_epochs", "Use --max-steps, because the jobs need the same length."),
    ("launch", "--nproc_per_node=2", "Use --workers 2 on a single machine."),
    ("launch", "--nnodes=2", "Use --nodes HOST:PORT,HOST:PORT, one worker on each machine"),
    ("launch", "--master_addr=a", "Use --nodes HOST:PORT,HOST:PORT"),
    ("check-distributed", "--rdzv-endpoint", "Use --nodes HOST:PORT,HOST:PORT"),
    ("shard", "--train_csv", "Use --input."),
    ("shard", "--output_dir", "Use --out."),
    ("shard", "--val_split", "Use --validation-fraction."),
    ("merge", "--gpu0_checkpoint", "is not a flag. Use --checkpoints RUN RUN."),
    ("merge", "--lr", "Use `python train_main.py` with --learning-rate."),
    ("synthesize", "--batch_size", "Use `python train_main.py` with --batch-size."),
    ("synthesize", "--model_path", "Use --run runs/NAME."),
    ("synthesize", "--device", "the first GPU is used, or the CPU"),
    ("distributed", "", "Use 'model_gpus: [0, 1]' under 'placement:' alone, without a section"),
    ("training", "enabled", "alone, without a section or switch for it"),
    ("training", "backend", "gradients by NCCL on GPUs"),
    ("training", "sync_batchnorm", "there is no batch normalisation"),
    ("training", "find_unused_parameters", "the gradients of all variables are summed"),
    ("training", "fp16", "Use 'precision: mixed_bfloat16' under 'training:', or mixed_float16."),
    ("training", "resume_checkpoint", "or 'init_from: runs/BASE' under 'training:'."),
    ("data", "nnodes", "Use `python -m myxtts launch` with --nodes HOST:PORT,HOST"),
)


class NamesTest(YamlCase):
    """The tables of names that MyXTTS had, or that other trainers have."""

    @classmethod
    def setUpClass(cls):
        cls.flags = {name: set(parser_of(load_command(name).main).flags) for name in COMMANDS}

    def test_former_names_are_no_longer_used_and_what_replaces_them_exists(self):
        names = other_names()
        renamed = {f"--{name.replace('_', '-')}" for name in names["renamed"].values()}
        self.assertEqual(renamed - set().union(*self.flags.values()), set())
        self.assertEqual({*names["renamed"], *names["unused"]} & set(SETTINGS), set())
        self.assertLessEqual(set(names["unused"]), set(names["instead"]))
        for name, values in names["values"].items():
            self.assertEqual(set(values) & set(SETTINGS[name].choices), set())
        self.assertLessEqual(set(names["sections"].values()), set(SECTIONS))
        self.assertEqual(set(names["sections"]) & set(SECTIONS), set())
        self.assertLessEqual(set(names["scripts"].values()), set(COMMANDS))
        for name in names["configs"].values():
            self.assertTrue((ROOT / "configs" / f"{name}.yaml").is_file())

    def test_a_text_names_flags_of_its_command_or_none(self):
        for texts in other_names()["instead"].values():
            for commands, text in texts.items():
                named = {flag for flag, _ in FLAG.findall(text)}
                with self.subTest(text):
                    self.assertLessEqual(set(commands.split()), set(COMMANDS))
                    self.assertEqual(named - self.flags[commands.split()[0]], set())
                    self.assertEqual(text.startswith("--"), bool(named))

    def test_answers_suit_the_command_in_which_a_name_is_typed(self):
        """None names its own command, a flag that this lacks, or a flag that was not typed."""
        for command, flags in self.flags.items():
            for name in other_names()["instead"]:
                if f"--{name.replace('_', '-')}" in flags:
                    continue
                answer = advice_on_flag(f"--{name}", command, flags)
                with self.subTest(command=command, answer=answer):
                    self.assertNotIn(command_line(command), answer)
                    self.assertNotIn("Did you mean", answer)
                    if ". Use --" in answer:
                        self.assertLessEqual({flag for flag, _ in FLAG.findall(answer)}, flags)

    def test_what_others_type_is_answered_where_it_is_typed(self):
        for place, typed, words in HINTS:
            with self.subTest(place=place, typed=typed):
                if place not in COMMANDS:
                    message = self.error_of(f"{place}: {{{typed}{typed and ': 1'}}}\n")
                else:
                    with self.assertRaises(ConfigError) as caught:
                        load_command(place).main([typed, "1"])
                    message = str(caught.exception)
                self.assertIn(words, message)

    def test_a_misspelling_is_answered_and_another_word_is_not(self):
        flags = {flag[2:] for flag in self.flags["train"]}
        for typed, meant in (
            *(("batch-sise", "batch-size"), ("learning-rte", "learning-rate")),
            *(("batchsize", "batch-size"), ("max-step", "max-steps"), ("resum", "resume")),
            *(("check-point-every", "checkpoint-every"), ("langauge", "language")),
            *(("trian-data", "train-data"), ("precison", "precision"), ("sead", "seed")),
        ):
            self.assertEqual(nearest(typed, flags), meant)
        # Lightning, ESPnet, DeepSpeed, Transformers, NeMo, VITS
        others = """backend sync-batchnorm model-device resume-checkpoint min-steps min-epochs speed
        max-time mode profiler devices strategy save-every eval-every log-level tf16 train-dtype
        batch-type batch-bins fold-length grad-noise unused-parameters stage hysteresis overlap-comm
        optim-args data-seed eval-delay ddp-timeout save-safetensors label-names max-seq-len
        decoder text-encoder c-mel segment-size n-jobs weight-kl model-tag use-amp valid-data
        """
        for other in others.split():
            with self.subTest(other):
                self.assertIsNone(nearest(other, flags))

    def test_files_and_scripts_of_others_are_answered_by_ours(self):
        configs = ROOT / "configs"
        for name, meant in (
            ("config", "default"),
            ("georgian_finetune_a100_gpu0", "georgian"),
            ("voises", "voices"),
        ):
            with self.assertRaisesRegex(ConfigError, rf"Did you mean \S+configs/{meant}\.yaml\?"):
                load(configs / f"{name}.yaml")
        message = self.error_of("defaults: [base_config, distributed]\n")
        self.assertIn("names 'base_config', but there is no file base_config.yaml. Did", message)
        self.assertIn("configs/asr_lmu.yaml?", message)
        self.assertNotIn("Did", self.error_of("defaults: [mine]\n"))
        for program, command in (
            ("scripts/train_torchrun.py", "train"),
            ("../serve_voice", "serve"),
        ):
            expected = f"there is no program {program} in .* Use -- {command} for it."
            with self.assertRaisesRegex(ConfigError, expected):
                load_command("launch").main(["--", program])
        with self.assertRaisesRegex(
            CheckpointError, "end. `.* --config .*configs/voices.yaml` trains it.$"
        ):
            TrainedRun.open(Path("runs/voices"))
        with self.assertRaisesRegex(CheckpointError, "at its end.$"):
            TrainedRun.open(Path("runs/mine"))

    def test_each_script_runs_its_command(self):
        for command, script in SCRIPTS.items():
            module = plugins.GROUPS["commands"][command]
            call = f"run_script({module.rpartition('.')[-1]})"
            self.assertIn(call, (ROOT / script).read_text(encoding="utf-8"))


class SynthesisOptionsTest(unittest.TestCase):
    def test_a_value_beyond_its_bounds_is_an_error_of_the_user(self):
        for name, (_, low, high) in BOUNDS.items():
            check_options(**{name: low})
            check_options(**{name: high})
            for value in (low - 1, high + 1, math.nan, math.inf, -math.inf, None, "1", [low]):
                with self.subTest(name, value=value), self.assertRaisesRegex(ConfigError, name):
                    check_options(**{name: value})
        for name, value in (("speed", math.nan), ("ode_steps", 1.5), ("guidance", math.inf)):
            with self.subTest(name), self.assertRaisesRegex(ConfigError, f"{name} is {value}"):
                replace(SynthesisOptions(), **{name: value})

    def test_flags_and_settings_have_the_same_bounds(self):
        argv = "--run", "run", "--text", "hello"
        for flag, name in (("--speed", "speed"), ("--pitch", "pitch_semitones")):
            _, _, high = BOUNDS[name]
            synthesize.parse([*argv, flag, str(high)])
            with self.assertRaisesRegex(ConfigError, f"to {high:g}"):
                synthesize.parse([*argv, flag, str(high + 1)])
        for name in ("ode_steps", "guidance", "variety"):
            with self.assertRaises(ValueError):
                ModelConfig(**{name: BOUNDS[name][2] + 1})


class SchemaTest(FolderCase):
    def test_names_are_unique_over_all_sections(self):
        count = sum(len(field.annotation.model_fields) for field in Config.model_fields.values())
        self.assertEqual(len(SETTINGS), count)

    def test_every_default_is_allowed(self):
        self.assertEqual(Config.model_validate(Config().model_dump(), strict=True), Config())

    def test_shipped_files_compose(self):
        folder = Path(shutil.copytree(ROOT / "configs", self.folder / "configs"))
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

    def test_shipped_configurations_load_and_only_the_demo_hides_real_gpus(self):
        self.assertGreaterEqual(len(SHIPPED), 5)
        simulating = {path.stem for path in SHIPPED if load(path).placement.simulate_gpus}
        self.assertEqual(simulating, {"demo", "demo_vocoder"})

    def test_a_tiny_model_is_announced_in_the_first_line(self):
        """Except for voices that are meant to be heard, and vocoders, whose tiny size is enough."""
        for path in SHIPPED:
            with self.subTest(config=path.name):
                first = path.read_text(encoding="utf-8").partition("\n")[0]
                model = load(path).model
                is_tiny = model.model_size == "tiny" and model.task != "vocoder"
                is_announced = first.startswith("# A small experiment for a laptop: ")
                is_heard = path.stem in ("demo", "human", "en", "base", "ru_man", "ja")
                self.assertEqual(is_announced, is_tiny and not is_heard)

    def test_the_recogniser_has_the_default_size_placement_and_length(self):
        config, default = load(ROOT / "configs/asr_lmu.yaml"), Config()
        actual = (config.placement, config.model.model_size)
        self.assertEqual(actual, (default.placement, default.model.model_size))
        self.assertEqual((config.model.task, config.training), ("asr", default.training))

    def test_memory_presets_hold_the_published_matrix(self):
        matrix = {"12": (8, 4096, 8192), "16": (12, 6144, 10240), "24": (16, 8192, 16384)}
        for name, expected in matrix.items():
            config = load(ROOT / f"configs/dual_gpu_{name}gb.yaml")
            limits = (config.placement.data_gpu_memory, config.placement.model_gpu_memory)
            self.assertEqual((config.data.batch_size, *limits), expected)

    def test_every_setting_is_read_outside_config(self):
        """A setting is read in `data.batch_size`, `x.data.batch_size` or `settings.batch_size`."""
        read: set[tuple[str, str]] = set()
        for path in (ROOT / "myxtts").rglob("*.py"):
            if Path(schema.__file__).parent not in path.parents:
                read |= _section_fields(ast.parse(path.read_text(encoding="utf-8")))
        for name, setting in SETTINGS.items():
            with self.subTest(name):
                self.assertTrue({(setting.section, name), ("settings", name)} & read)


def _section_fields(tree: ast.AST) -> set[tuple[str, str]]:
    """Return (section, name) for each `….section.name` and `section.name` in a module."""
    fields = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
            owner = name.lstrip("_")
            if owner in (*SECTIONS, "settings"):
                fields.add((owner, node.attr))
    return fields
