"""Complete runs through the command line in this process, on a corpus of sinusoids."""

import errno
import json
import os
import re
import shutil
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
import tensorflow as tf
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.checkpoints.files import (
    Checkpoint,
    latest,
    list_checkpoints,
    read_record,
    write_checkpoint,
)
from myxtts.checkpoints.inherited import check_same_settings
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import check_same_corpus
from myxtts.commands import train
from myxtts.config.flags import marked, values_of, with_values
from myxtts.config.load import load
from myxtts.config.schema import FIXED, PlacementConfig
from myxtts.corpus.manifest import read_manifest
from myxtts.devicefeed.producer import ReplicaFeed
from myxtts.placement.settings import plan_routes
from myxtts.report.metrics import MetricsFile, read_metrics
from myxtts.report.samples import sound_file
from myxtts.run.description import out_of_memory
from myxtts.tasks.tts.network import XTTS
from myxtts.text.symbols import SymbolTable
from tests.fixtures import DUAL, files_below, replace_arrays
from tests.tiny import Workspace, toy_models, whole_run
from tests.tiny_asr import small_asr_models
from tests.tiny_vocoder import small_vocoders
from tests.two_devices import SIMULATED

ROOT = Path(__file__).parents[1]
METRICS = {
    *("step", "epoch", *XTTS.LOSS_NAMES, *XTTS.OBSERVED_NAMES, "loss", "gradient_norm"),
    "learning_rate",
    *"step_s wait_s steps_per_s audio_seconds_per_s padding accelerator_utilisation".split(),
    *"read_s produce_s blocked_s bottleneck pause_s remaining_s".split(),
}
VALIDATION = {f"validation_{name}" for name in (*XTTS.LOSS_NAMES, *XTTS.OBSERVED_NAMES, "loss")}
VALIDATION |= {"best_step_by_loss"}


class Case(unittest.TestCase):
    """Tests that share a workspace."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.temporary(cls.addClassCleanup)

    def rejection(self, name, *flags):
        """Return the error message of a run that exits with code 2."""
        finished = self.workspace.train(name, *flags)
        self.assertEqual(finished.code, 2, finished)
        self.assertRegex(finished.err, "^error: (?!Traceback)")
        return finished.err.removeprefix("error: ").strip()


class CompleteRun(Case):
    """A run with all features: 8 steps, validation and samples after steps 4 and 8."""

    @classmethod
    def setUpClass(cls):
        cls.workspace, cls.flags, cls.finished = whole_run()
        cls.folder = cls.workspace.run_dir("whole")
        cls.settings = load(cls.folder / "config.yaml")  # read before a test resumes the run

    def test_console_shows_placement_corpus_model_and_progress(self):
        self.assertEqual((self.finished.code, self.finished.err), (0, ""))
        for line in (
            "placement      dual (GPUs simulated on the CPU)",
            "  device       simulated GPU 0 is /CPU:0, memory grows as needed",
            "  device       simulated GPU 1 is /CPU:1, memory grows as needed",
            "  route        batches made on /CPU:0, trained on /CPU:1",
            "  observer     validation, samples and evaluation on /CPU:0, during training",
            "corpus         10 utterances, 3 held out, 0.1 min, 2 speakers, 11 symbols,"
            " languages en",
            "step           3.3 utterances and 1.9 audio seconds in 1 x 4 rows",
            "length         8 steps of 3 an epoch (2.7 epochs), from step 0 until --max-steps 8",
            "buffers        host 8 (--buffer-size); data device 3 audio + 3 features"
            " (--prefetch-buffer-size) + 4 in flight; model device 3",
            "traces         1 of the training step",
        ):
            self.assertIn(line + "\n", self.finished.out)
        model = r"tts, tiny, 16 channels, 0 enc.* latents.*, [0-9,]+ parameters, float32 on /CPU:1"
        self.assertRegex(self.finished.out, rf"\nmodel          {model}\n")
        tracing = "tracing        the step on /CPU:1: it takes seconds to minutes"
        first = r"first step     \d+\.\d s after the start"
        feed = r"feed           (filled in|\d of 3 batches after) .*"
        self.assertRegex(self.finished.out, rf"\n{feed}\n{tracing}\n{first}\n")
        shares = r"wait \d+\.\d % \| pause \d+\.\d % \| [0-9.]+ (s|min) left"
        shares += r" \| (feed keeps up|bottleneck (read|produce), \d+ % of making a batch)"
        step = rf"\nstep      5 \| loss \d+\.\d{{3}} \| \d+\.\d steps/s \| {shares}\n"
        self.assertRegex(self.finished.out, step)
        self.assertRegex(self.finished.out, r"\nstep      8 \| validation loss \d+\.\d{3}\n")

    def test_run_ends_with_where_its_time_went(self):
        parts = "start and first step .*, training .*, waiting for batches .*, pauses .*"
        found = re.search(rf"\ntime           .*: {parts} \((.*)\)\n", self.finished.out)
        kinds = {part.split()[0] for part in found[1].split(", ")}
        self.assertEqual(kinds, {"observer", "checkpoints", "reports"})

    def test_run_ends_with_the_grade_of_its_placement(self):
        word = "(excellent|good|minimum|below minimum)"
        busy = rf"model device busy \d+ % \({word}\), data device busy \d+ % \({word}\)"
        busy = rf"{word}: {busy}, steps vary by \d+ % \({word}\)"
        gains = r"\d+\.\d\d x single, \d+\.\d\d x 2 replicas without their all-reduce"
        note = r"Note: these devices share one CPU or GPU, so two GPUs may gain more or less\."
        self.assertRegex(
            self.finished.out, rf"\ngrade          {busy}; {gains}\. Recommended: .*\. {note}\n"
        )

    def test_metrics_have_a_complete_line_for_each_step(self):
        lines = read_metrics(self.folder / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 9)))
        self.assertEqual([line["epoch"] for line in lines], [0, 0, 0, 1, 1, 1, 2, 2])
        for line in lines:
            self.assertEqual(set(line), METRICS | (VALIDATION if line["step"] in (4, 8) else set()))
            self.assertIn(line["bottleneck"], ("read", "produce", "step"))
            numbers = [value for value in line.values() if value != line["bottleneck"]]
            self.assertTrue(np.isfinite(numbers).all(), line)
            used = 1 - line["wait_s"] / line["step_s"]
            self.assertAlmostEqual(line["accelerator_utilisation"], used)
            self.assertGreater(line["produce_s"], 0)
            total = sum(line[name] for name in XTTS.LOSS_NAMES)
            self.assertAlmostEqual(line["loss"] / total, 1.0, 5)
        self.assertEqual([line["learning_rate"] for line in lines[:3]], [5e-4, 1e-3, 1e-3])
        self.assertAlmostEqual(lines[7]["learning_rate"], 5e-5)
        self.assertTrue(all(0 <= line["wait_s"] <= line["step_s"] for line in lines))
        self.assertGreater(lines[4]["audio_seconds_per_s"], 0)
        self.assertEqual(lines[7]["remaining_s"], 0.0)
        self.assertTrue(0 <= lines[4]["padding"] < 0.5)

    def test_saved_settings_load_back(self):
        config, _ = train.parse(self.workspace.argv("whole", *self.flags))
        self.assertEqual(self.settings, config)

    def test_threads_are_in_the_log_and_in_the_saved_settings(self):
        threads = re.search(r"\nthreads +(intra-op .+, inter-op .+)\n", self.finished.out)
        self.assertIsNotNone(threads)
        saved = (self.folder / "config.yaml").read_text()
        self.assertTrue(saved.startswith(f"# threads on this machine: {threads[1]}\n"), saved[:99])
        self.assertIn("  intra_op_threads: auto\n", saved)  # another machine chooses anew

    def test_best_and_newest_checkpoints_are_kept_with_their_vocabulary_and_position(self):
        lines = read_metrics(self.folder / "metrics.jsonl")
        lowest = min(lines, key=lambda line: line.get("validation_loss", np.inf))
        checkpoints = list_checkpoints(self.folder / "checkpoints")
        best = read_record(checkpoints[-1]).best
        self.assertEqual(best, (lowest["step"], lowest["validation_loss"]))
        names = {"step-000005", "step-000008", f"step-{best.step:06d}"}
        self.assertEqual({path.name for path in checkpoints}, names)
        record = read_record(checkpoints[-1])
        self.assertEqual((record.symbols, record.languages), (tuple("abcdefgh"), ("en",)))
        self.assertEqual((record.step, record.position, record.replicas), (8, (2, 2, ()), 1))

    def test_samples_are_sounds_and_pictures_of_held_out_utterances(self):
        for step in ("step-000004", "step-000008"):
            pictures = sorted((self.folder / "samples" / step).glob("*.png"))
            self.assertEqual(len(pictures), 3)
            for picture in pictures:
                self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))
                waves = {}
                for kind in ("", "recording", "griffin-lim"):
                    sound = picture.with_name(sound_file(picture.stem, kind))
                    waves[kind], rate_hz = soundfile.read(sound)
                    self.assertEqual(rate_hz, 22_050)
                    self.assertGreater(len(waves[kind]), 0)
                original = self.workspace.corpus.parent / f"{picture.stem.partition('-')[2]}.wav"
                np.testing.assert_array_equal(waves["recording"], soundfile.read(original)[0])
                self.assertEqual(len(waves["griffin-lim"]), len(waves["recording"]) // 256 * 256)

    def test_tensorboard_has_scalars_pictures_and_sounds(self):
        events = EventAccumulator(str(self.folder / "tensorboard"))
        events.Reload()
        tags = set(events.Tags()["tensors"])
        self.assertGreaterEqual(tags, (METRICS | VALIDATION) - {"step", "bottleneck"})
        of_samples = [tag for tag in tags if tag.startswith(("mel_and_alignment/", "spoken/"))]
        self.assertEqual(len(of_samples), 2 * 3)
        for tag in of_samples:
            self.assertEqual([event.step for event in events.Tensors(tag)], [4, 8], tag)
        self.assertEqual([event.step for event in events.Tensors("loss")], list(range(1, 9)))

    def test_report_shows_samples_and_settings(self):
        page = (self.folder / "report.html").read_text(encoding="utf-8")
        for words in ("step-000008", "samples/step-000004/", "finished", "max_steps: 8"):
            self.assertIn(words, page)

    def test_name_of_an_existing_run_is_rejected(self):
        before = files_below(self.workspace.folder)
        self.assertIn(f"{self.folder} already holds a run. Resume it", self.rejection("whole"))
        self.assertEqual(files_below(self.workspace.folder), before)

    def test_resuming_a_finished_run_changes_only_the_log(self):
        before = files_below(self.folder)
        finished = self.workspace.train("whole", "--resume", *self.flags)
        self.assertEqual((finished.code, finished.err), (0, ""))
        self.assertIn("nothing to do  run whole has its 8 steps; train longer", finished.out)
        after = files_below(self.folder)
        self.assertEqual({name for name in after if after[name] != before.get(name)}, {"log.txt"})

    def test_log_file_has_the_console_lines_with_timestamps(self):
        lines = (self.folder / "log.txt").read_text(encoding="utf-8").splitlines()
        for line in lines:
            self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
        printed = self.finished.out.splitlines()
        texts = [line[len("2026-01-31 12:00:00 ") :] for line in lines]
        # A test that resumes the run appends to it.
        self.assertEqual(texts[: len(printed)], printed)

    def test_resuming_with_another_fixed_setting_is_rejected(self):
        message = self.rejection(
            "whole", "--resume", *self.flags, "--seed 1 --train-data", "not looked at"
        )
        newest = self.folder / "checkpoints/step-000008"
        self.assertIn(f"training.seed is 1, but {newest} was written with 0, and", message)
        self.assertIn(f"--config {self.folder / 'config.yaml'}", message)

    def test_every_fixed_setting_and_the_corpus_are_checked_at_resume(self):
        checkpoint = latest(RunFolder(self.folder).checkpoints)
        self.assertEqual(checkpoint, self.folder / "checkpoints/step-000008")
        checkpoint = Checkpoint.read(checkpoint)
        record, settings = checkpoint.record, checkpoint.record.settings
        check_same_settings(checkpoint, settings)
        for setting in marked(FIXED):
            other = with_values(settings, {setting.name: "other"})
            if not setting.needs.is_met(values_of(settings)):
                check_same_settings(checkpoint, other)  # it has no effect
                continue
            place = rf"^{setting.section}\.{setting.name} is other, but .* was written with "
            with self.assertRaisesRegex(CheckpointError, place):
                check_same_settings(checkpoint, other)
        known, (corpus, _) = record.vocabulary, read_manifest(self.folder / "manifest-train.npz")
        check_same_corpus(checkpoint, known, corpus, None)
        other = replace(corpus, samples=2 * corpus.samples)
        for found, vocabulary, manifest in (
            ("symbols", replace(known, symbols=SymbolTable(("x",))), corpus),
            ("languages", replace(known, languages=("ka",)), corpus),
            ("corpus: .* row 1 was u", known, other),
        ):
            with self.assertRaisesRegex(
                CheckpointError, rf"another corpus \(different {found}.*\)"
            ):
                check_same_corpus(checkpoint, vocabulary, manifest, None)
        # Without symbols, as of a vocoder, the languages of texts do not matter.
        silent = replace(known, symbols=SymbolTable(()), languages=("ka",))
        check_same_corpus(checkpoint, silent, corpus, None)


class Stopped(Case):
    """Runs of the toy that end early."""

    def run(self, result=None):
        with toy_models():
            return super().run(result)

    def test_non_finite_loss_names_step_and_utterances_and_keeps_the_checkpoints(self):
        self.assertEqual(self.workspace.train("nan", "--max-steps 3").code, 0)
        saved = self.workspace.run_dir("nan") / "checkpoints/step-000003"
        arrays = Checkpoint.read(saved).arrays("model")
        next(iter(arrays.values()))[:] = np.nan
        replace_arrays(saved, "model", arrays)
        before = files_below(saved.parent)
        # Detected at step 6, when a checkpoint is due.
        message = self.rejection("nan", "--resume --log-every 50")
        names = r"'u\d+(\.wav)?'(, 'u\d+(\.wav)?'){3}"
        self.assertRegex(message, rf"not finite at step 4 \(epoch 2, utterances {names}\)\. ")
        self.assertEqual(files_below(saved.parent), before)

    def test_out_of_memory_error_names_device_and_flags(self):
        full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        limits = "--data-gpu-memory 4096 --model-gpu-memory 8192"
        with mock.patch("myxtts.run.step.Step.__call__", side_effect=full):
            message = self.rejection("full", *DUAL, limits)
        batch = r"4 utterances of up to 0\.\d s and \d+ tokens \(bucket [12] of 2\)"
        self.assertRegex(message, f"^out of memory at step 1, with a batch of {batch}: OOM when")
        # And the devices that no route uses, if they have a limit.
        self.assertIn("limits: /CPU:0 4096 MiB; /CPU:1 8192 MiB", message)
        self.assertIn(
            "). Start again with a higher --model-gpu-memory or --data-gpu-memory", message
        )
        self.assertRegex(message, "or start another .*--precision mixed_bfloat16, or --gradient-ch")

    def test_out_of_memory_error_before_the_first_step_names_no_batch(self):
        full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        with mock.patch("myxtts.tasks.tts.task.build_xtts", side_effect=full):
            message = self.rejection("fuller", *DUAL)
        advice = "Start another run with a lower --batch-size, --max-seconds or --model-size, or"
        self.assertRegex(
            message, rf"^out of memory: OOM when .* \(the model is on /CPU:1\)\. {advice}"
        )

    def test_out_of_memory_error_advises_what_the_task_has_and_the_run_lacks(self):
        placement = plan_routes(PlacementConfig(), 0)
        for flags, is_saved, expected, absent in (
            ("--task vocoder", True, "--vocoder-segment-seconds or --model-size", "Resume"),
            ("--task asr", False, "--precision", "--gradient-checkpointing"),
            ("--gradient-checkpointing", False, "--precision", "--gradient-checkpointing"),
            ("--precision mixed_bfloat16", False, "--gradient-checkpointing", "--precision"),
            ("", False, "--max-seconds or --model-size", "--vocoder-segment-seconds"),
        ):
            config, _ = train.parse(flags.split())
            run = mock.Mock(placement=placement, config=config)
            full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            message = str(out_of_memory(full, run, is_saved=is_saved))
            with self.subTest(flags=flags):
                self.assertIn(expected, message)
                self.assertNotIn(absent, message)
                self.assertNotIn("limits", message)
        limited = PlacementConfig(simulate_gpus=1, model_gpu_memory=256)
        run = mock.Mock(placement=plan_routes(limited, 0), config=config)
        self.assertIn(
            "256 MiB). Resume with a higher", str(out_of_memory(full, run, is_saved=True))
        )

    def test_a_full_disk_ends_only_a_run_whose_last_checkpoint_it_refuses(self):
        def write(target, *args, **kwargs):
            if target.name != "step-000006":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target / "model"))
            write_checkpoint(target, *args, **kwargs)

        with mock.patch("myxtts.checkpoints.files.write_checkpoint", write):
            finished = self.workspace.train("crammed")
        folder = self.workspace.run_dir("crammed")
        self.assertEqual(finished.code, 2)
        self.assertIn("the checkpoint of step 3 was not written: ", finished.out)
        reason = (
            r"/step-000008/model: No space left on device \(\S+ MB are needed, \S+ MB are free\)"
        )
        self.assertRegex(finished.err, rf"^error: the checkpoint of step 8 .*{reason}\. It is the")
        steps = [line["step"] for line in read_metrics(folder / "metrics.jsonl")]
        self.assertEqual(steps, list(range(1, 9)))
        self.assertEqual([path.name for path in folder.glob("checkpoints/*")], ["step-000006"])

    def test_missing_utterance_stops_the_run_after_saving_a_checkpoint(self):
        workspace = Workspace(Path(tempfile.mkdtemp(dir=self.workspace.folder)))
        victim = sorted(workspace.corpus.parent.rglob("*.wav"))[3]

        def vanish(state, *_):
            victim.unlink(missing_ok=True)

        with toy_models(), mock.patch("myxtts.run.hooks.check_devices", side_effect=vanish):
            finished = workspace.train("lost", "--max-steps 60 --checkpoint-every 0")
        self.assertEqual(finished.code, 2)
        self.assertRegex(finished.err, rf"^error: .*{victim.stem}.*cannot be read.* --resume")
        self.assertEqual(len(list_checkpoints(workspace.run_dir("lost") / "checkpoints")), 1)


class Rejected(Case):
    def test_a_run_trained_by_another_process_is_rejected(self):
        folder = RunFolder(self.workspace.run_dir("busy"))
        folder.path.mkdir(parents=True)
        with folder.locked():
            self.assertIn("another process is training it", self.rejection("busy"))

    def test_xla_with_several_replicas_is_rejected(self):
        message = self.rejection("two", "--model-gpus 0 1 --enable-static-shapes --compile xla")
        self.assertIn("but XLA compiles for one device. ", message)
        self.assertFalse(self.workspace.run_dir("two").exists())

    def test_validation_without_held_out_utterances_is_rejected(self):
        message = self.rejection("none", "--validation-fraction 0 --validate-every 1")
        self.assertIn("requested, but none of the 13 utterances is held out", message)

    def test_a_missing_corpus_creates_no_files(self):
        message = self.rejection("nowhere", f"--train-data {self.workspace.folder}/x")
        self.assertIn("does not exist", message)
        self.assertFalse(self.workspace.run_dir("nowhere").exists())

    def test_a_folder_with_checkpoints_but_no_settings_is_a_run(self):
        (self.workspace.run_dir("half") / "checkpoints").mkdir(parents=True)
        with self.assertRaises(ConfigError):
            RunFolder(self.workspace.run_dir("half")).check_not_existing(resume=False)
        RunFolder(self.workspace.run_dir("half")).check_not_existing(resume=True)

    def test_too_many_unusable_rows_are_rejected(self):
        corpus = self.broken_corpus()
        message = self.rejection("rejected", f"--train-data {corpus} --max-rejected 0.1")
        self.assertIn("2 of 13 utterances cannot be used", message)
        self.assertIn("raise --max-rejected", message)
        listing = (self.workspace.run_dir("rejected") / "rejected.csv").read_text()
        self.assertIn("u3.wav", listing)
        self.assertIn("u2.wav", listing)

    def test_a_few_unusable_rows_are_skipped(self):
        corpus = self.broken_corpus()
        with toy_models():
            flags = ("--max-rejected 0.2 --max-steps 2",)
            finished = self.workspace.train("fewer", f"--train-data {corpus}", *flags)
        self.assertEqual((finished.code, finished.err), (0, ""))
        self.assertIn("corpus         10 utterances, 1 held out, ", finished.out)

    def broken_corpus(self):
        """Write a corpus with a missing file and a truncated file."""
        folder = self.workspace.folder / "broken"
        shutil.copytree(self.workspace.corpus.parent, folder, dirs_exist_ok=True)
        (folder / "u3.wav").unlink()
        (folder / "u2.wav").write_bytes((self.workspace.corpus.parent / "u2.wav").read_bytes()[:30])
        return folder / "corpus.csv"


class MinimalRun(Case):
    """A run of the toy for two epochs without optional hooks, traced for each shape."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        flags = "--validate-every 0 --sample-every 0 --checkpoint-every 0 --ema-decay 0 --epochs 2"
        flags += " --log-every 5 --model-start-delay 1.25 --enable-static-shapes --buckets 3"
        wait = mock.patch.object(ReplicaFeed, "wait_until_full", autospec=True, return_value=0.75)
        with toy_models(), wait as cls.waited:
            cls.finished = cls.workspace.train("quiet", flags)
        cls.folder = cls.workspace.run_dir("quiet")

    def test_run_ends_with_its_last_epoch(self):
        self.assertEqual((self.finished.code, self.finished.err), (0, ""))
        length = "6 steps of 3 an epoch (2.0 epochs), from step 0 until --epochs 2"
        self.assertIn(f"length         {length}\n", self.finished.out)

    def test_the_first_step_waits_for_a_full_feed_at_most_model_start_delay(self):
        self.waited.assert_called_once_with(mock.ANY, 1.25, mock.ANY)

    def test_intervals_of_0_disable_their_hooks_but_the_last_step_is_saved(self):
        checkpoints = self.folder / "checkpoints"
        self.assertFalse((self.folder / "samples").exists())
        self.assertEqual([path.name for path in checkpoints.iterdir()], ["step-000006"])
        self.assertNotIn("averages", Checkpoint.read(checkpoints / "step-000006").groups)
        lines = read_metrics(self.folder / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], [5, 6])
        self.assertFalse(any("validation_loss" in line for line in lines))

    def test_static_shapes_trace_once_for_each_bucket(self):
        bounds = re.search(r"\nbuckets +(.*) s\n", self.finished.out)[1].split()
        self.assertGreater(len(bounds), 1)
        self.assertIn(f"traces         {len(bounds)} of the training step", self.finished.out)
        shape = ", for one shape of batches (--enable-static-shapes): it takes seconds to minutes\n"
        self.assertEqual(self.finished.out.count(shape), len(bounds))


class ShippedConfigurations(Case):
    FILES = sorted((ROOT / "configs").glob("*.yaml"))

    def test_each_loads_and_has_a_placement_on_two_gpus(self):
        self.assertGreaterEqual(len(self.FILES), 6)
        for path in self.FILES:
            with self.subTest(config=path.name):
                self.assertTrue(plan_routes(load(path).placement, gpu_count=2).routes)

    def test_every_setting_in_them_trains(self):
        """Train three steps with all files of a task at once, and with those that replicate."""
        folder = self.workspace.folder / "configs"
        shutil.copytree(ROOT / "configs", folder)
        for name, files in shipped_groups(self.FILES).items():
            content = f"defaults: {json.dumps(files)}\n"
            (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
            with self.subTest(files=files), toy_models(), small_asr_models(), small_vocoders():
                flags = f"--config {folder}/{name}.yaml --train-data {self.workspace.corpus}"
                flags += f" --simulate-gpus {SIMULATED} --max-steps 3 --model-size tiny"
                flags += f" --run {name} --runs-dir {self.workspace.folder}/runs"
                # The pretrained runs are not in the repository. This process has one rate.
                flags += " --init-from null --sample-every 0 --sample-rate 22050"
                if "vocoder" not in name:
                    flags += " --text-frontend characters"
                # The validation of a vocoder, which takes 5 s to trace, is in test_vocoder.
                flags += f" --validate-every {0 if name == 'all_vocoder' else 3}"
                flags = flags.split()
                self.assertEqual(self.workspace.main(*flags).code, 0)
                (line,) = read_metrics(self.workspace.run_dir(name) / "metrics.jsonl")
                self.assertEqual(line["step"], 3)
                self.assertTrue(np.isfinite([line["loss"], line.get("validation_loss", 0.0)]).all())
                self.assertEqual("validation_loss" in line, name != "all_vocoder")


def shipped_groups(files: list[Path]) -> dict[str, list[str]]:
    """Return names of files that can be one configuration, for each kind of runs."""
    groups: dict[str, list[str]] = {
        name: [] for name in ("all_asr", "all_vocoder", "all_replicas", "all_tts")
    }
    for path in files:
        sections = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        config = load(path)
        if config.model.task == "asr" or "asr" in sections:
            groups["all_asr"].append(path.stem)
        elif config.model.task == "vocoder":
            groups["all_vocoder"].append(path.stem)
        else:
            groups["all_replicas" if config.placement.model_gpus else "all_tts"].append(path.stem)
    return groups


class Metrics(unittest.TestCase):
    def test_numbers_keep_all_digits_and_non_finite_numbers_are_null(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            values = {"step": 1, "loss": 0.1 + 0.2, "norm": float("inf"), "mel": float("nan")}
            file = MetricsFile(path, 0)
            file.write(values)
            file.close()
            self.assertNotIn("NaN", path.read_text())
            self.assertEqual(json.loads(path.read_text()), values | {"norm": None, "mel": None})

    def test_lines_of_a_step_are_one_report_in_the_order_of_the_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            file = MetricsFile(path, 0)
            for step in (10, 20, 30):
                file.write({"step": step, "loss": 1.0})
            # Observations of steps with and without a report end late; that of 10 is repeated.
            for step, late in ((10, 2.0), (15, 3.0), (10, 4.0)):
                file.write({"step": step, "late": late})
            file.close()
            expected = [
                {"step": 10, "loss": 1.0, "late": 4.0},
                {"step": 15, "late": 3.0},
                {"step": 20, "loss": 1.0},
                {"step": 30, "loss": 1.0},
            ]
            self.assertEqual(read_metrics(path), expected)
            MetricsFile(path, 20).close()  # a resumed run
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.assertEqual(lines, expected[:3])
