"""Merging runs: the mean of their weights, rejected inputs, measurements, and its uses."""

import contextlib
import io
import json
import os
import re
import shutil
import tracemalloc
import unittest
from itertools import permutations
from pathlib import Path
from unittest import mock

from myxtts.checkpoints.files import Checkpoint, Record, Source
from myxtts.config.synthesis import SynthesisOptions
from tests.fixtures import make_record, replace_arrays, rewrite_state
from tests.two_devices import SIMULATED

# isort: split

import numpy as np

from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.checkpoints.files import digest_of, latest, read_record, write_checkpoint
from myxtts.config.flags import with_values
from myxtts.config.load import load
from myxtts.config.schema import Config, TrainingConfig
from myxtts.extras.jobs import merge_command as merge_checkpoints
from myxtts.extras.jobs.merge import layer_distances, layer_table, merge, read_held_out, read_input
from myxtts.extras.jobs.verdict import Measurement, MelDistortion, better_input, distortion_db
from tests.fixtures import FolderCase, entered, reported
from tests.tiny import arrays_of, features, on_device
from tests.tiny_asr import asr_run, cached_transcriber, small_asr_models


def record(**changes) -> Record:
    """Return the record of an input; `settings` holds changed settings by section."""
    settings = Config(training=TrainingConfig(seed=1)).model_dump(mode="json")
    for section, values in changes.pop("settings", {}).items():
        settings[section] |= values
    settings = Config.model_validate_json(json.dumps(settings))
    fixed = {"step": 3, "audio_s": 1.0, "corpus": "c", "settings": settings}
    return make_record(**fixed | changes)


def arrays(kernel, count: int = 1) -> dict[str, np.ndarray]:
    kernel = np.array(kernel, np.float32)
    return {"net/one/kernel": kernel, "net/one/count": np.array(count, np.int64)}


class Case(FolderCase):
    def setUp(self):
        super().setUp()
        self.merged = self.folder / "merged"
        entered(self.addCleanup, contextlib.redirect_stdout(io.StringIO()))

    def make_run(self, name: str, model=None, averages=None, optimizer=None, **changes) -> Path:
        """Write a run with the given arrays, by default [1, 2]."""
        given = {"model": model, "averages": averages, "optimizer": optimizer}
        contents = ((name, (group or arrays([1, 2])).items()) for name, group in given.items())
        written = record(**changes)
        target = self.folder / name / f"checkpoints/step-{written.step:06d}"
        write_checkpoint(target, contents, written)
        return self.folder / name

    def merge(self, *runs: Path, weights=None, force=False, **corpora: str) -> dict:
        """Merge runs; return the arrays of the merged checkpoint by group and name."""
        self.assertTrue(merge(runs, self.merged, corpora, weights, force))
        return dict(arrays_of(self.checkpoint))

    @property
    def checkpoint(self) -> Path:
        return latest(self.merged / "checkpoints")

    def error_of(self, *runs: Path, kind=CheckpointError, **options) -> str:
        """Return the message of a merge that fails and leaves no files."""
        with self.assertRaises(kind) as raised:
            self.merge(*runs, **options)
        self.assertEqual([path.name for path in self.folder.iterdir() if "merged" in path.name], [])
        return str(raised.exception)


class Mean(Case):
    def test_each_archive_is_the_mean_weighted_by_audio_and_integers_are_the_largest(self):
        given = arrays([1, 2], 4), arrays([0, 8]), arrays([1, 1])
        first = self.make_run("one", *given, audio_s=10.0)
        given = arrays([5, 10], 9), arrays([4, 0]), arrays([-3, 2])
        second = self.make_run("other", *given, audio_s=30.0)
        merged = self.merge(first, second)
        # A quarter and three quarters.
        expected = {"model": [4, 8], "averages": [3, 2], "optimizer": [-2, 1.75]}
        for group, kernel in expected.items():
            self.assertEqual(merged[f"{group}/net/one/kernel"].tolist(), kernel)
        self.assertEqual(merged["model/net/one/count"], 9)
        self.assertEqual({array.dtype.name for array in merged.values()}, {"float32", "int64"})

    def test_the_mean_of_equal_arrays_is_bit_identical_to_them(self):
        random = np.random.default_rng(0)
        scale = 10.0 ** random.integers(-40, 30, 10_000)
        same = {"net/one/kernel": (random.normal(0, 1, 10_000) * scale).astype(np.float32)}
        runs = [self.make_run(f"part{i}", same, same, same, audio_s=i) for i in (1, 3, 7.7)]
        for name, array in self.merge(*runs).items():
            self.assertEqual(array.tobytes(), same[name.partition("/")[2]].tobytes(), name)

    def test_the_order_of_the_inputs_does_not_matter(self):
        random = np.random.default_rng(0)
        runs = []
        for i in range(3):
            # float64: float32 would round the difference away except in one of 10^8 sums
            groups = [{"net/one/kernel": random.normal(0, 1, 5000)} for _ in range(3)]
            runs.append(self.make_run(f"part{i}", *groups, audio_s=float(random.uniform(1, 9))))
        results = set()
        for order in permutations(runs):
            digest = digest_of(self.merge(*order))
            results.add((digest, read_record(self.checkpoint).start))
            shutil.rmtree(self.merged)
        self.assertEqual(len(results), 1)

    def test_coefficients_follow_the_audio_or_the_given_weights_or_are_equal_without_audio(self):
        for audio, weights, expected in (
            ((10.0, 30.0), None, [0.25, 0.75]),
            ((10.0, 30.0), (4.0, 1.0), [0.8, 0.2]),
            ((0.0, 0.0), None, [0.5, 0.5]),
            ((0.0, 5.0), None, [0.0, 1.0]),
        ):
            with self.subTest(audio=audio, weights=weights):
                runs = [self.make_run(f"part{i}", audio_s=a) for i, a in enumerate(audio)]
                self.merge(*runs, weights=weights)
                state = read_record(self.checkpoint)
                found = [(entry.coefficient, entry.audio_s) for entry in state.merge_inputs]
                self.assertEqual(found, list(zip(expected, audio, strict=True)))
                self.assertEqual(state.audio_s, sum(audio))
                for folder in (*runs, self.merged):
                    shutil.rmtree(folder)

    def test_inputs_without_moving_averages_contribute_their_weights(self):
        plain = self.make_run("plain", arrays([5, 5]), settings={"training": {"ema_decay": 0.0}})
        (plain / "checkpoints/step-000003/averages.safetensors").unlink()
        averaged = self.make_run("averaged", arrays([3, 3]), arrays([1, 1]))
        self.assertEqual(self.merge(averaged, plain)["averages/net/one/kernel"].tolist(), [3, 3])
        shutil.rmtree(self.merged)
        merged = self.merge(plain, averaged)
        self.assertEqual(merged["model/net/one/kernel"].tolist(), [3, 3])
        self.assertFalse(any(name.startswith("averages") for name in merged))

    def test_memory_use_is_the_mean_and_one_variable_of_each_input(self):
        runs, variables, count = 8, 16, 2**16  # 0.25 MiB each: 2 MiB of each input, 32 MiB in all
        for i in range(runs):
            kernels = (np.full(count, i + j, np.float32) for j in range(variables))
            model = {f"net/layer_{j}/kernel": kernel for j, kernel in enumerate(kernels)}
            self.make_run(f"part{i}", model, model)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        merge([self.folder / f"part{i}" for i in range(runs)], self.merged, {})
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
        mean_mib = variables * 0.25
        self.assertLess(peak_mib, mean_mib + 2 * runs * 0.25)  # one variable in float64

    def test_a_stopped_merge_leaves_no_files_and_a_partial_folder_is_replaced(self):
        first, second = self.make_run("one"), self.make_run("other")
        stopped = mock.patch("myxtts.extras.jobs.merge.layer_table", side_effect=KeyboardInterrupt)
        with stopped, self.assertRaises(KeyboardInterrupt):
            self.merge(first, second)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"one", "other"})
        # Left by a killed process.
        (self.folder / ".partial-merged/checkpoints").mkdir(parents=True)
        self.merge(first, second)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"one", "other", "merged"})

    def test_an_output_that_appears_during_a_merge_stays(self):
        other = self.merged / "of another process"
        make = mock.Mock(side_effect=lambda _: other.mkdir(parents=True))
        with mock.patch("myxtts.extras.jobs.merge.layer_table", make), self.assertRaises(OSError):
            self.merge(self.make_run("one"), self.make_run("other"))
        self.assertEqual(list(self.merged.iterdir()), [other])


def model_digest(merged: dict[str, np.ndarray]) -> str:
    """Return the digest of the group `model` of a merged checkpoint."""
    groups = ((name.partition("/"), array) for name, array in merged.items())
    return digest_of({name: array for (group, _, name), array in groups if group == "model"})


class MergedRun(Case):
    """state.json and config.yaml of the merged run."""

    def test_the_merged_run_starts_a_new_epoch_with_the_complete_vocabulary(self):
        syncing = {"sync_every": 2, "jobs": 2, "sync_dir": "x"}
        first = self.make_run("one", step=5, settings={"local_sgd": syncing})
        training = {"seed": 7, "stop_at_step": 6}
        second = self.make_run("other", step=4, settings={"training": training})
        corpora = {"train_data": str(self.folder / "train.csv"), "audio_root": str(self.folder)}
        self.write("train.csv", "path,text\na.wav,a\n")
        self.write("a.wav")
        with self.assertLogs("myxtts.extras.jobs.merge", "INFO") as logs:
            merged = self.merge(first, second, **corpora)
        self.assertEqual([line for line in logs.output if "difference" in line], [logs.output[2]])
        self.assertIn("seed: 1, 7; the merged run has 1", logs.output[2])
        state, config = read_record(self.checkpoint), load(self.merged / "config.yaml")
        self.assertEqual((self.checkpoint.name, state.step), ("step-000005", 5))
        self.assertEqual((state.corpus, state.position, state.replicas), (None, (0, 0, ()), 1))
        self.assertEqual((state.best, state.kept_input, state.start), (None, None, "f00"))
        self.assertEqual(state.settings, config)
        # A job knows the speakers of its warm start, in their order.
        for teacher in (None, Source(run="runs/voice", step=0, weights="")):
            taught = state.model_copy(update={"teacher": teacher})
            self.assertEqual(taught.inherited_vocabulary, state.vocabulary)
        self.assertEqual(state.ancestor.weights, model_digest(merged))
        self.assertEqual((config.run.run, config.run.runs_dir), ("merged", str(self.folder)))
        data = {name: getattr(config.data, name) for name in corpora}
        self.assertEqual(data, corpora)
        self.assertEqual((config.training.seed, config.training.stop_at_step), (1, None))
        self.assertEqual(config.local_sgd, Config().local_sgd)

    def test_force_merges_different_speakers_and_initial_weights(self):
        first = self.make_run("one", speakers=("s1", "s0"))
        second = self.make_run("other", speakers=("s2", "s1"), start="aaa")
        merged = self.merge(first, second, force=True)
        state = read_record(self.checkpoint)
        self.assertEqual(state.speakers, ("s1", "s0", "s2"))
        self.assertEqual(state.start, model_digest(merged))


class Rejected(Case):
    def test_inputs_with_different_signatures_are_rejected(self):
        def settings(section: str, **values) -> dict:
            return {"settings": {section: values}}

        for changes, expected in (
            (settings("model", task="asr"), "task is tts in the first and asr in the second"),
            (settings("model", model_size="tiny"), "model_size is normal in the first and tiny"),
            (settings("data", reference_seconds=2.0), "reference_seconds is 3.0 in the first"),
            (settings("data", text_frontend="characters"), "text_frontend is phonemes in the"),
            (
                settings("training", freeze=["decoder"], init_from="x"),
                "freeze is None in the first and decoder in the second",
            ),
            (settings("training", precision="mixed_float16"), "precision mixed_float16 is False"),
            ({"symbols": ("a", "c")}, "symbols is b in the first and c in the second"),
            ({"symbols": ("a", "b", "c")}, "symbols is None in the first and c in the second"),
            ({"languages": ("ka",)}, "languages is en in the first and ka in the second"),
            ({"speakers": ("s0", "s1")}, "--force allows other speakers and initial weights"),
            ({"start": "aaa"}, "initial weights is f00 in the first and aaa in the second"),
        ):
            with self.subTest(changes=changes):
                first, second = self.make_run("one"), self.make_run("other", **changes)
                message = self.error_of(first, second)
                self.assertIn(expected, message)
                paths = f"{first}/checkpoints/step-000003 and {second}/checkpoints/step-"
                self.assertTrue(message.startswith(paths))
                if not changes.keys() & {"speakers", "start"}:
                    self.assertEqual(self.error_of(first, second, force=True), message)
                for folder in (first, second):
                    shutil.rmtree(folder)

    def test_asr_runs_with_another_encoder_or_subsampling_are_rejected(self):
        runs = [
            self.make_run(f"part{i}", settings={"model": {"task": "asr"}, "asr": settings})
            for i, settings in enumerate(({}, {"encoder": "gru"}, {"subsampling": 4}))
        ]
        self.assertIn("encoder is lmu in the first and gru in the second", self.error_of(*runs[:2]))
        self.assertIn("subsampling is 2 in the first and 4", self.error_of(runs[0], runs[2]))

    def test_machine_and_corpus_settings_may_differ(self):
        first = self.make_run("one", corpus="c")
        changes = {"data": {"batch_size": 3, "num_workers": 7}, "asr": {"encoder": "gru"}}
        changes |= {"training": {"precision": "mixed_bfloat16", "seed": 5}}
        self.merge(first, self.make_run("other", corpus="d", settings=changes))

    def test_non_finite_arrays_and_other_names_or_shapes_are_rejected(self):
        first = self.make_run("one")
        for group in ("model", "averages", "optimizer"):
            for changed, expected in (
                (arrays([1, np.nan]), "'net/one/kernel' in .* is not finite"),
                (arrays([1, -np.inf]), "is not finite"),
                (arrays([1, 2, 3]), "'net/one/kernel' differs between .*one.* and .*other"),
                ({"net/two/kernel": np.zeros(2)}, "'net/one/count' differs between .* and"),
            ):
                with self.subTest(group=group, expected=expected):
                    second = self.make_run("other", **{group: changed})
                    self.assertRegex(self.error_of(first, second), expected)
                    shutil.rmtree(second)

    def test_one_flag_per_checkpoint_is_answered_by_the_form(self):
        for flag in ("--gpu0_checkpoint", "--gpu1_checkpoint"):
            with self.assertRaisesRegex(ConfigError, r"Use --checkpoints RUN RUN\."):
                merge_checkpoints.parse([flag, "a", "--output", "c"])

    def test_missing_and_damaged_checkpoints_are_rejected(self):
        first, second = self.make_run("one"), self.make_run("other")
        archive = second / "checkpoints/step-000003/optimizer.safetensors"
        archive.write_bytes(archive.read_bytes()[:-60])
        self.assertIn(f"{archive} cannot be read", self.error_of(first, second))
        archive.unlink()
        self.assertIn(f"{archive} cannot be read", self.error_of(first, second))
        self.assertIn("has no checkpoint", self.error_of(first, self.folder / "none"))
        self.assertIn("has no checkpoint", self.error_of(first, second / "checkpoints/step-000099"))
        file = archive.with_name("state.json")
        whole = file.read_bytes()
        for changed, expected in (
            ({"audio_s": "long"}, "cannot be read: audio_s: Input should be a valid number"),
            ({"settings": {"data": {"colour": 1}}}, "data.colour"),
            ({"symbols": None}, "cannot be read: symbols: Input should be a valid array"),
        ):
            with self.subTest(changed=changed):
                file.write_bytes(whole)
                rewrite_state(file.parent, lambda state, changed=changed: state.update(changed))
                self.assertIn(expected, self.error_of(first, second))
        file.write_text('{"format": 6}')
        self.assertIn("has format 6", self.error_of(first, second))
        file.write_text("{")
        self.assertIn("state.json cannot be read", self.error_of(first, second))

    def test_invalid_arguments_are_rejected(self):
        first, second = self.make_run("one"), self.make_run("other")
        again = second / "../one/checkpoints/step-000003"
        for runs in ((first,), (first, second, again)):
            self.assertIn("two different checkpoints", self.error_of(*runs, kind=ConfigError))
        for weights in ((1.0,), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), (float("inf"), 1.0)):
            error = self.error_of(first, second, weights=weights, kind=ConfigError)
            self.assertIn("Give --weights", error)
        for corpus in ("train_data", "val_data"):
            error = self.error_of(first, second, kind=DataError, **{corpus: "none"})
            self.assertIn("the corpus none does not exist", error)
        no_root = self.error_of(first, second, kind=DataError, audio_root="none")
        self.assertIn("--audio-root none was given", no_root)
        latin_1 = first.with_name(os.fsdecode(b"caf\xe9"))
        self.assertIn("give a link to it", self.error_of(first, latin_1, kind=ConfigError))
        for name in ("one", "..", "two words", ".hidden", "x" * 101):
            with self.assertRaisesRegex(ConfigError, "--output"):
                merge([first, second], self.folder / name, {})
        unknown = self.make_run("unknown", audio_s=-1.0)
        self.assertIn("Give --weights", self.error_of(first, unknown, kind=ConfigError))


class LayerDistanceTest(Case):
    def test_lowest_cosine_and_largest_distance_of_all_pairs(self):
        inputs = []
        for name, left, right in (
            ("a", [3, 0], [0, 0]),
            ("b", [0, 4], [0, 0]),
            ("c", [6, 0], [2, 0]),
        ):
            values = {"net/one/x": left, "net/two/x": right, "net/two/y": [0]}
            arrays = [(k, np.array(v, np.float32)) for k, v in values.items()]
            checkpoint = write_checkpoint(self.folder / name, [("model", arrays)], make_record())
            inputs.append((checkpoint, "model"))
        distances = layer_distances(inputs)
        # a and b are at a right angle and 5 apart, over 4; b and c √52 over 6; a and c 3 over 6
        self.assertEqual(distances["net/one"][0], 0.0)
        self.assertAlmostEqual(distances["net/one"][1], 5 / 4)
        self.assertEqual(distances["net/two"], (0.0, 1.0))
        # Two layers of zeros have cosine 1.
        self.assertEqual(layer_distances(inputs[:1] * 2)["net/two"], (1.0, 0.0))
        self.assertIn("below 0.5) in net/one, net/two: try", layer_table(distances))


class VerdictTest(unittest.TestCase):
    def verdict(self, *measurements: tuple[float, float]) -> tuple[int | None, str]:
        """Return the verdict on (metric, loss) of the first input, the second and their mean."""
        named = zip(("A", "B", "merged"), map(Measurement._make, measurements), strict=True)
        return better_input(dict(named), "character error rate")

    def test_the_metric_decides_or_the_loss_if_the_metrics_are_equal(self):
        for measurements, better in (
            (((0.2, 9.0), (0.3, 1.0), (0.25, 0.5)), 0),
            (((0.3, 9.0), (0.2, 1.0), (0.25, 0.5)), 1),
            (((0.3, 1.0), (0.2, 1.0), (0.15, 9.0)), None),
            (((0.2, 1.0), (0.2, 0.8), (0.2, 0.9)), 1),
            (((0.2, 1.0), (0.2, 0.8), (0.2, 0.8)), None),
            (((0.2, 1.0), (0.2, 0.8), (float("inf"), float("inf"))), 1),
            (((0.2, 1.0), (0.3, 0.8), (0.2019, 9.0)), None),
            (((0.2, 1.0), (0.3, 0.8), (0.2021, 0.5)), 0),
        ):
            with self.subTest(measurements=measurements):
                found, sentence = self.verdict(*measurements)
                self.assertEqual(found, better)
                self.assertIn("as good as" if better is None else "which are kept", sentence)
        _, sentence = self.verdict((0.3, 1.0), (0.2, 0.8), (0.1, 0.9))
        values = "of B (character error rate 0.100, loss 0.9000 against character error rate 0.200"
        self.assertIn(values, sentence)

    def test_distortion_is_0_for_the_same_sounds_and_infinite_for_non_finite_mels(self):
        mel = np.random.default_rng(0).normal(-5, 2, (20, 80)).astype(np.float32)
        # slower, but the same sounds.
        self.assertAlmostEqual(distortion_db(mel, np.repeat(mel, 2, axis=0)), 0.0)
        self.assertGreater(distortion_db(mel, mel[::-1]), 1.0)
        self.assertEqual(distortion_db(mel, np.full((3, 80), np.nan, np.float32)), np.inf)


class CopyingNetwork:
    """A network that returns the recorded mel of each text and counts the utterances."""

    def __init__(self, batch: dict):
        self.batch, self.utterances = batch, 0

    def synthesize(self, tokens, *_):
        rows = len(tokens)
        self.utterances += rows
        return self.batch["mel"][:rows], self.batch["frames"][:rows], None


class MelDistortionTest(unittest.TestCase):
    def test_covers_the_first_16_utterances_and_skips_empty_rows(self):
        batch = on_device(features([(3, 12)] * 9 + [(0, 0)] * 2))
        network = CopyingNetwork(batch)
        distortion = MelDistortion(network, SynthesisOptions())
        for utterances in (9, 16, 16):
            distortion.update(batch, {})
            self.assertEqual(network.utterances, utterances)
        self.assertAlmostEqual(distortion.result()["mel_cepstral_distortion"], 0.0)


class ASRRuns(unittest.TestCase):
    """Copies of an ASR run: transcribing, measuring and training."""

    def setUp(self):
        self.workspace, self.whole = asr_run()
        self.merged = self.workspace.run_dir("merged")
        self.addCleanup(shutil.rmtree, self.merged, ignore_errors=True)

    def make_run(self, name: str, blank: float) -> Path:
        """Copy the run with a higher bias of the blank symbol."""
        run = self.workspace.copy_run("asr", name, self.addCleanup)
        for group in ("model", "averages"):
            checkpoint = latest(run / "checkpoints")
            weights = Checkpoint.read(checkpoint).arrays(group)
            weights["asr/out/bias"][0] += blank
            replace_arrays(checkpoint, group, weights)
        return run

    def merge(self, *runs: Path, **flags: str) -> tuple[int, str]:
        argv = ["--checkpoints", *map(str, runs), "--output", str(self.merged)]
        for name, value in flags.items():
            argv += [f"--{name.replace('_', '-')}", value]
        out = io.StringIO()
        with (
            small_asr_models(),
            # This process has configured its devices.
            mock.patch("myxtts.placement.devices.configure"),
            contextlib.redirect_stdout(out),
        ):
            code, errors = reported(lambda: merge_checkpoints.main(argv))
        return code, out.getvalue() + errors

    def test_an_input_better_than_the_mean_is_kept_with_exit_code_1(self):
        """With a bias of +100 and +50 all outputs are blank; without it some are right."""
        silent, working = self.make_run("silent", 100.0), self.make_run("working", 0.0)
        held_out = self.workspace.corpus.with_name("held_out.csv")
        self.addCleanup(shutil.copy(self.workspace.corpus, held_out).unlink)
        with self.assertLogs("myxtts.extras.jobs.verdict", "WARNING") as logs:
            code, out = self.merge(silent, working, val_data=str(held_out))
        self.assertEqual(code, 1, out)
        kept = latest(working / "checkpoints")
        self.assertIn(f"worse than those of {kept} (", logs.output[0])
        rows = [str(latest(run / "checkpoints")) for run in (silent, working)]
        found = re.findall(r"^\| (.+) \| \S+ \| \S+ \|$", out, re.MULTILINE)
        self.assertEqual(found[-3:], [*rows, "merged"])
        checkpoint = latest(self.merged / "checkpoints")
        state = read_record(checkpoint)
        self.assertEqual(state.kept_input, str(kept))
        self.assertEqual([entry.coefficient for entry in state.merge_inputs], [0.0, 1.0])
        self.assertEqual(*(digest_of(dict(arrays_of(path))) for path in (checkpoint, kept)))

    def test_unusable_and_excluded_held_out_utterances_are_listed_beside_the_output(self):
        source, listing = read_input(self.whole), self.merged.with_name("merged-rejected.csv")
        self.addCleanup(listing.unlink, missing_ok=True)
        broken = self.workspace.corpus.with_name("broken.csv")
        content = self.workspace.corpus.read_text(encoding="utf-8")
        broken.write_text(content.replace("u3.wav", "missing.wav"))
        self.addCleanup(broken.unlink)
        exclude = self.workspace.corpus.with_name("excluded.csv")
        exclude.write_text("path\nu4.wav\n")
        self.addCleanup(exclude.unlink)
        for corpus, excluded, utterances, listed in (
            (self.workspace.corpus, None, 13, ""),
            (broken, None, 12, "missing.wav,missing file"),
            (self.workspace.corpus, str(exclude), 12, "u4.wav,excluded"),
        ):
            values = {"val_data": str(corpus), "max_rejected": 0.5, "exclude": excluded}
            config = with_values(source.record.settings, values)
            listing.unlink(missing_ok=True)
            manifest = read_held_out(config, source, self.merged)
            found = listing.read_text(encoding="utf-8") if listing.exists() else ""
            self.assertEqual((len(manifest), bool(found)), (utterances, bool(listed)))
            self.assertIn(listed, found)

    def test_a_merged_run_transcribes_and_trains_like_any_other_run(self):
        code, out = self.merge(self.make_run("less", -0.25), self.make_run("more", 0.25))
        # The fifth layer has the bias.
        self.assertEqual((code, out.count("| 1.0000 | 0.0000 |")), (0, 4), out)
        wave = np.random.default_rng(0).normal(0, 0.1, 22050).astype(np.float32)
        expected = list(cached_transcriber(self.whole).transcribe([wave]))
        self.assertNotEqual(expected, [""])
        self.assertEqual(list(cached_transcriber(self.merged).transcribe([wave])), expected)
        flags = f"--resume --simulate-gpus {SIMULATED} --data-gpu 0 --model-gpu 1 --max-steps 1"
        flags += " --validate-every 0 --sample-every 0"
        with small_asr_models():
            config = str(self.merged / "config.yaml")
            done = self.workspace.main("--config", config, *flags.split())
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"resumed        {self.merged}/checkpoints/step-000000", done.out)
        after = read_record(latest(self.merged / "checkpoints"))
        start = read_record(latest(self.whole / "checkpoints")).start
        self.assertEqual((after.step, after.start), (1, start))
        self.assertIsNotNone(after.corpus)
        self.assertGreater(after.audio_s, 0.0)

    def test_user_errors_exit_with_code_2_and_no_traceback(self):
        first = self.make_run("one", 1.0)
        code, output = self.merge(first, self.workspace.run_dir("none"), weights="1")
        self.assertEqual(code, 2)
        self.assertIn("has no checkpoint", output)
        self.assertNotIn("Traceback", output)
