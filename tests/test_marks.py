"""The marks of settings: the tables that the package makes of them, written out once."""

import unittest

from myxtts.config import schema
from myxtts.config.flags import SETTINGS, marked, turned_off, values_of
from myxtts.config.load import load
from myxtts.config.schema import Config, LocalSGDConfig, Mark, ModelConfig, PlacementConfig
from myxtts.extras.jobs.merge import merge_settings

TABLES = {
    schema.FIXED: """
        batch_seconds batch_size buckets ema_decay encoder freeze
        gradient_accumulation init_from job jobs max_seconds min_seconds model_size precision
        produce_precision reference_seconds seed subsampling sync_every task teacher_fraction
        lexicon loudness sample_rate text_frontend text_normaliser trim validation_fraction
    """,
    schema.INHERITED: """
        encoder loudness model_size sample_rate subsampling task text_frontend text_normaliser
    """,
    schema.FROM_TEACHER: "loudness sample_rate text_frontend text_normaliser",
    schema.PER_MACHINE: """
        audio_root buffer_size cache_dataset columns init_from model_start_delay
        exclude lock num_workers prefetch_buffer_size runs_dir shard_cache_gb teacher texts
        train_data use_tf_native_loading val_data vocoder
    """
    + " ".join(PlacementConfig.model_fields),
    schema.IN_SHARDS: """
        audio_root columns language lexicon max_seconds min_seconds seed text_frontend
        exclude sample_rate text_normaliser train_data trim val_data validation_fraction
    """,
    schema.IN_ALL_JOBS: """
        audio_root columns ema_decay encoder epochs freeze init_from language
        lexicon loudness max_steps model_size precision reference_seconds resume run runs_dir
        sample_rate seed subsampling task teacher teacher_fraction text_frontend text_normaliser
        texts exclude train_data trim val_data validation_fraction
    """
    + " ".join(LocalSGDConfig.model_fields),
    schema.IN_MERGE: "encoder loudness reference_seconds sample_rate subsampling",
    schema.IN_SYNC: "jobs outer_learning_rate outer_momentum sync_every sync_optimizer",
    schema.OF_FOLDER: "resume run runs_dir",
    schema.NAMES_GPUS: "data_gpu data_gpus data_shares model_gpu model_gpus",
    schema.OFF_IN_TRIAL: "batch_shares evaluate_every resume sample_every validate_every",
    schema.OFF_IN_EVALUATION: "cache_dataset teacher_fraction",
    schema.IN_SCORES: "evaluate_asr evaluate_utterances guidance ode_steps variety vocoder",
    schema.OFF_IN_MERGE: "resume stop_at_step",
}
"""Settings that have each mark, by name."""


class MarksTest(unittest.TestCase):
    def test_each_mark_has_its_settings(self):
        marks = {value for value in vars(schema).values() if isinstance(value, Mark)}
        self.assertEqual(set(TABLES), marks)
        for mark, names in TABLES.items():
            with self.subTest(mark.meaning):
                self.assertEqual({setting.name for setting in marked(mark)}, set(names.split()))

    def test_a_merge_compares_the_settings_of_its_task(self):
        compared = {"tts": ["reference_seconds"], "asr": ["encoder", "subsampling"]}
        for task, names in {**compared, "vocoder": []}.items():
            names = ["loudness", "sample_rate", *names]
            self.assertEqual([setting.name for setting in merge_settings(task)], names)
            for setting in merge_settings(task):
                self.assertIn(schema.IN_ALL_JOBS, setting.marks)

    def test_a_setting_that_is_turned_off_has_the_value_that_turns_it_off(self):
        given = {"cache_dataset": True, "stop_at_step": 3, "resume": True, "validate_every": 7}
        config = load(None, given)
        evaluation = {"cache_dataset": False, "teacher_fraction": 0.0}
        trial = {"resume": False, "validate_every": 0, "sample_every": 0, "evaluate_every": 0}
        trial["batch_shares"] = ()
        for mark, expected in (
            (schema.OFF_IN_EVALUATION, evaluation),
            (schema.OFF_IN_MERGE, {"stop_at_step": None, "resume": False}),
            (schema.OFF_IN_TRIAL, trial),
        ):
            with self.subTest(mark.meaning):
                off = turned_off(config, mark)
                self.assertEqual(values_of(off), values_of(config) | expected)

    def test_a_setting_is_read_from_its_section(self):
        config = Config(model=ModelConfig(task="asr"))
        self.assertEqual(SETTINGS["task"].of(config), "asr")
