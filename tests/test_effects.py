"""Settings without effect in a run: an error where given, none where a run has recorded them."""

import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.checkpoints.inherited import check_same_settings
from myxtts.commands import train
from myxtts.config.checks import reset_inactive
from myxtts.config.flags import SETTINGS, Setting, values_of
from myxtts.config.load import dump, load
from myxtts.config.schema import SET, UNSET, Config, Needs, needs
from tests.fixtures import temporary_folder

# What rules of checks.py ask for beside a setting.
WITH_OTHERS = {"sync_every": {"jobs": 2, "sync_dir": "syncs"}}
DEPENDENT = [setting for setting in SETTINGS.values() if setting.needs.names]


def another_value(setting: Setting) -> Any:
    """Return an allowed value that is not the default."""
    if setting.choices:
        values = map(setting.kind, setting.choices)
        return next(value for value in values if value != setting.default)
    if setting.kind is bool:
        return not setting.default
    if setting.kind is int:
        return 1 if setting.default in (0, "auto", None) else 2 * setting.default
    return "runs/other" if setting.kind is str else setting.default / 2 or 0.2


def meeting(conditions: dict[str, Any]) -> dict[str, Any]:
    """Return values of settings that meet conditions."""
    values = {name: c[0] for name, c in conditions.items() if isinstance(c, tuple)}
    values |= {name: another_value(SETTINGS[name]) for name, c in conditions.items() if c is SET}
    for name, condition in conditions.items():
        if condition is not UNSET:
            values |= WITH_OTHERS.get(name, {})
    return values


class NeedsTest(unittest.TestCase):
    def test_all_conditions_of_one_alternative_must_hold(self):
        values = {"task": "asr", "encoder": "gru", "teacher": None, "batch_seconds": 0.0}
        either = needs(task="tts") | needs(task=("asr", "vocoder"), teacher=SET)
        for needed, expected in (
            (Needs(), []),
            (needs(task="asr"), []),
            (needs(task=("tts", "asr"), encoder="lmu"), ["encoder"]),
            (needs(teacher=SET, batch_seconds=UNSET), ["teacher"]),
            (either, ["task"]),
            (either & needs(encoder="lmu"), ["task", "encoder"]),
        ):
            with self.subTest(needed.text):
                actual = (needed.unmet(values), needed.is_met(values))
                self.assertEqual(actual, (expected, not expected))
        self.assertTrue(either.is_met(values | {"teacher": "runs/voice"}))

    def test_conditions_of_a_section_and_of_a_setting_are_joined(self):
        for needed, text in (
            (needs(task=("tts", "asr")) & needs(task="asr"), "with --task asr"),
            (SETTINGS["time_mask_fraction"].needs, "with --task asr and with --time-masks"),
            (SETTINGS["batch_size"].needs, "without --batch-seconds"),
        ):
            self.assertEqual(needed.text, text)

    def test_conditions_are_about_other_settings_and_values_that_they_may_have(self):
        for setting in DEPENDENT:
            for conditions in setting.needs.alternatives:
                for name, condition in conditions.items():
                    self.assertNotEqual(name, setting.name)
                    choices = SETTINGS[name].choices  # none for text: packages add front ends
                    if isinstance(condition, tuple) and choices:
                        self.assertLessEqual({*condition}, {*choices}, setting.name)


class EffectsTest(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        self.path = self.folder / "my.yaml"

    def error_of(self, text: str, **overrides) -> str:
        self.path.write_text(text)
        with self.assertRaises(ConfigError) as caught:
            load(self.path, overrides)
        return str(caught.exception)

    def test_each_setting_is_accepted_with_what_it_needs_and_rejected_without(self):
        defaults = values_of(Config())
        for setting in DEPENDENT:
            value = another_value(setting)
            for conditions in setting.needs.alternatives:
                given = meeting(conditions) | WITH_OTHERS.get(setting.name, {})
                with self.subTest(setting.name, given=given):
                    values = values_of(load(None, {setting.name: value} | given))
                    self.assertEqual(values[setting.name], given.get(setting.name, value))
            if setting.needs.is_met(defaults):
                continue
            with self.subTest(setting.name):
                error = self.error_of("", **{setting.name: value})
                self.assertTrue(error.startswith(f"{setting.flag} is "), error)
                self.assertIn(f"but it has an effect only {setting.needs.text}, and --", error)
                if not setting.default:
                    load(None, {setting.name: setting.default})

    def test_the_flags_of_other_tasks_and_of_other_ways_are_rejected(self):
        unobserved = {"observer": "data", "validate_every": 0, "sample_every": 0}
        for flags, found in (
            ({"task": "asr", "vtlp": 0.1}, "only with --task tts, and --task is 'asr'"),
            ({"encoder": "lmu"}, "only with --task asr, and --task is 'tts'"),
            ({"job": 1, "jobs": 2}, "--jobs is 2, but it has an effect only with --sync-every"),
            ({"outer_momentum": 0.9}, "and --sync-every is 0"),
            ({"batch_size": 16, "batch_seconds": 1.0}, "without --batch-seconds, and --batch-sec"),
            ({"validation_fraction": 0.1, "val_data": "v"}, "without --val-data, and --val"),
            ({"task": "vocoder", "segment_seconds": 1.0}, "only with --task tts"),
            ({"teacher_fraction": 0.3}, "and --teacher is null. Leave it out, or change what"),
            (unobserved, "with --validate-every, or with --sample-every"),
        ):
            with self.subTest(flags=flags):
                self.assertIn(found, self.error_of("", **flags))

    def test_a_value_of_a_file_that_is_not_the_default_is_named_with_its_line(self):
        error = self.error_of("data:\n  batch_size: 8\n  batch_seconds: 100\n")
        expected = f"{self.path}, line 2: batch_size is 8, but it has an effect only without"
        self.assertIn(expected, error)
        defaults = "asr: {encoder: lmu}\nmodel: {task: tts}\n"
        self.path.write_text(f"data: {{batch_size: 16, batch_seconds: 100}}\n{defaults}")
        load(self.path)

    def test_a_flag_replaces_what_it_makes_useless_in_a_file(self):
        self.path.write_text("data: {batch_size: 8}\nmodel: {task: asr}\nasr: {encoder: gru}\n")
        config = load(self.path, {"batch_seconds": 100.0, "task": "tts"})
        self.assertEqual((config.data.batch_size, config.asr.encoder), (16, "lmu"))
        self.assertEqual(load(self.path, {"encoder": "gru"}).asr.encoder, "gru")

    def test_a_run_of_an_older_version_resumes_with_what_it_has_recorded(self):
        recorded = Config(data={"batch_size": 8, "batch_seconds": 9.0}, asr={"encoder": "gru"})
        self.assertIn("has an effect only", self.error_of(dump(recorded)))
        (self.folder / "checkpoints").mkdir()
        config = load(self.path.rename(self.folder / "config.yaml"), {"max_steps": 7})
        self.assertEqual(config.data.batch_size, 16)
        path = Path("runs/old/checkpoints/step-000001")
        checkpoint = SimpleNamespace(path=path, record=SimpleNamespace(settings=recorded))
        check_same_settings(checkpoint, config)
        other = Config(data={"batch_seconds": 10.0})
        message = "batch_seconds is 10.0, but .* was written with 9.0"
        with self.assertRaisesRegex(CheckpointError, message):
            check_same_settings(checkpoint, other)

    def test_useless_values_are_not_written(self):
        model, asr = {"task": "asr", "dropout": 0.2}, {"encoder": "gru"}
        config = Config(model=model | {"segment_seconds": 3.0}, asr=asr)
        self.assertEqual(reset_inactive(config), Config(model=model, asr=asr))

    def test_what_a_command_sets_later_is_not_checked(self):
        config = load(None, {"outer_momentum": 0.9, "sync_every": 0}, own=("sync_every",))
        self.assertEqual(config.local_sgd.outer_momentum, 0.9)


class ResumeTest(unittest.TestCase):
    """`train --resume --run NAME` takes the settings of the run."""

    def setUp(self):
        self.runs = temporary_folder(self.addCleanup)
        (self.runs / "mine" / "checkpoints").mkdir(parents=True)
        self.settings = self.runs / "mine" / "config.yaml"
        placement = "placement: {data_gpu: 0, model_gpu: 1, model_gpu_memory: 999}\n"
        training = "training: {learning_rate: 3e-4, stop_at_step: 4}\n"
        self.settings.write_text(f"run: {{run: former}}\n{training}{placement}")

    def resumed(self, flags: str = "--run mine") -> Config:
        return train.parse(["--resume", "--runs-dir", str(self.runs), *flags.split()])[0]

    def test_a_run_that_was_moved_or_renamed_has_its_own_settings(self):
        config = self.resumed()
        self.assertEqual((config.run.run, config.run.runs_dir), ("mine", str(self.runs)))
        actual = (config.training.learning_rate, config.training.stop_at_step)
        self.assertEqual(actual, (3e-4, None))
        self.assertEqual((config.placement.model_gpu, config.run.resume), (1, True))

    def test_flags_replace_the_settings_of_the_run(self):
        config = self.resumed("--run mine --learning-rate 1e-4 --stop-at-step 9")
        self.assertEqual((config.training.learning_rate, config.training.stop_at_step), (1e-4, 9))

    def test_flags_that_name_GPUs_replace_all_GPUs_of_the_run(self):
        placement = self.resumed("--run mine --model-gpus 2 3").placement
        actual = (placement.data_gpu, placement.model_gpu, placement.model_gpus)
        self.assertEqual(actual, (None, None, (2, 3)))
        self.assertEqual(placement.model_gpu_memory, 999)
        config = self.resumed("--run mine --model-gpu-memory 888")
        self.assertEqual(config.placement.data_gpu, 0)

    def test_the_limit_of_a_data_GPU_goes_with_it(self):
        limited = "placement: {data_gpu: 0, model_gpu: 1, data_gpu_memory: 999}\n"
        self.settings.write_text(limited)
        moved, none = "--data-gpu 2 --model-gpu 3", "--data-gpu null --model-gpu null"
        for flags, limit in (("--model-gpus 2 3", None), (none, None), (moved, 999)):
            placement = self.resumed(f"--run mine {flags}").placement
            self.assertEqual(placement.data_gpu_memory, limit)

    def test_a_command_that_names_the_corpus_has_all_settings_itself(self):
        config = self.resumed("--run mine --train-data corpus")
        self.assertEqual(config.training.learning_rate, Config().training.learning_rate)

    def test_a_file_of_settings_replaces_those_of_the_run(self):
        other = self.runs / "other.yaml"
        other.write_text("training: {learning_rate: 7e-4}\n")
        config = self.resumed(f"--run mine --config {other}")
        self.assertEqual((config.training.learning_rate, config.placement.data_gpu), (7e-4, None))

    def test_a_run_that_does_not_exist_is_answered_by_the_nearest(self):
        missing = f"there is no {self.runs}/mime/config.yaml to read. Did you mean --run mine?"
        with self.assertRaisesRegex(ConfigError, re.escape(missing)):
            self.resumed("--run mime")
        with self.assertRaisesRegex(ConfigError, "Did you mean --run mine"):
            self.resumed("--run mime --max-steps 7")

    def test_a_run_that_does_not_exist_starts_with_the_settings_that_are_given(self):
        self.assertEqual(self.resumed("--run new --max-steps 7").training.max_steps, 7)
