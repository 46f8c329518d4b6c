"""Several runs as one: the mean of their weights, what is refused, what it is worth, and what the result can do."""

import contextlib
import io
import json
import shutil
import tempfile
import tracemalloc
import unittest
from itertools import permutations
from pathlib import Path
from unittest import mock

from tests.two_devices import SIMULATED

# isort: split

import numpy as np

from myxtts.commands import merge as merge_checkpoints
from myxtts.config.load import load
from myxtts.config.schema import Config, TrainingConfig
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.local_sgd.interpolation import FIGURES, Distortion, InterpolationLine, Measured, distortion_db, measure
from myxtts.local_sgd.layer_distance import layer_distances, table_of_layers
from myxtts.local_sgd.merge import Corpora, merge
from myxtts.models.xtts import SynthesisOptions
from myxtts.training.checkpoint_files import (
    digest_of,
    latest,
    read_arrays,
    read_metadata,
    write_arrays,
    write_checkpoint,
)
from myxtts.training.init_from import inherited_vocabulary
from myxtts.training.select_checkpoint import vocabulary_of
from tests.test_synthesis import reported
from tests.tiny import arrays_of, features, on_device
from tests.tiny_asr import recogniser_run, small_recognisers, transcriber_of

NONE = Corpora()


def metadata(**changes) -> dict:
    """state.json of a part; `settings` is a section of those by name."""
    settings = Config(training=TrainingConfig(seed=1)).model_dump(mode="json")
    for section, values in changes.pop("settings", {}).items():
        settings[section] |= values
    vocabulary = {"symbols": ["a", "b"], "languages": ["en"], "speakers": ["s0"]}
    common = {"start": "f00", "position": [0, 0, []], "replicas": 1, "best": None, "corpus": "c", "ancestor": None}
    return {"step": 3, "audio_s": 1.0, "settings": settings, **vocabulary, **common, **changes}


def arrays(kernel, count: int = 1) -> dict[str, np.ndarray]:
    return {"net/one/kernel": np.array(kernel, np.float32), "net/one/count": np.array(count, np.int64)}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.merged = self.folder / "merged"
        stdout = contextlib.redirect_stdout(io.StringIO())
        self.out = stdout.__enter__()
        self.addCleanup(stdout.__exit__, None, None, None)

    def part(self, name: str, model=None, averages=None, optimizer=None, **changes) -> Path:
        """A run of made-up arrays; [1, 2] where none are given."""
        given = {"model": model, "averages": averages, "optimizer": optimizer}
        groups = {group: arrays([1, 2]) if own is None else own for group, own in given.items()}
        own = metadata(**changes)
        target = self.folder / name / f"checkpoints/step-{own['step']:06d}"
        write_checkpoint(target, ((group, own.items()) for group, own in groups.items()), own)
        return self.folder / name

    def merge(self, *parts: Path, weights=None, force=False, corpora=NONE) -> dict:
        """The arrays of the merged checkpoint, by group and name."""
        self.assertTrue(merge(parts, self.merged, corpora, weights, force))
        return dict(arrays_of(self.checkpoint))

    @property
    def checkpoint(self) -> Path:
        return latest(self.merged / "checkpoints")

    def refusal(self, *parts: Path, kind=CheckpointError, **options) -> str:
        with self.assertRaises(kind) as refused:
            self.merge(*parts, **options)
        self.assertEqual([path.name for path in self.folder.iterdir() if "merged" in path.name], [])
        return str(refused.exception)


class Mean(Case):
    def test_each_archive_is_the_mean_of_its_like_by_speech_and_whole_numbers_are_the_largest(self):
        one = self.part("one", arrays([1, 2], 4), arrays([0, 8]), arrays([1, 1]), audio_s=10.0)
        other = self.part("other", arrays([5, 10], 9), arrays([4, 0]), arrays([-3, 2]), audio_s=30.0)
        found = self.merge(one, other)
        expected = {"model": [4, 8], "averages": [3, 2], "optimizer": [-2, 1.75]}  # a quarter and three quarters
        for group, kernel in expected.items():
            np.testing.assert_array_equal(found[f"{group}/net/one/kernel"], np.array(kernel, np.float32))
        self.assertEqual(found["model/net/one/count"], 9)
        self.assertEqual({array.dtype.name for array in found.values()}, {"float32", "int64"})

    def test_of_equal_weights_is_those_weights_bit_for_bit(self):
        random = np.random.default_rng(0)
        kernel = random.normal(0, 1, 10_000).astype(np.float32) * 10.0 ** random.integers(-40, 30, 10_000)
        same = {"net/one/kernel": kernel.astype(np.float32)}
        parts = [self.part(f"part{i}", same, same, same, audio_s=audio_s) for i, audio_s in enumerate((1, 3, 7.7))]
        for name, array in self.merge(*parts).items():
            self.assertEqual(array.tobytes(), same[name.partition("/")[2]].tobytes(), name)

    def test_does_not_depend_on_the_order(self):
        random = np.random.default_rng(0)
        parts = []
        for i in range(3):
            # float64, which shows what float32 would round away but for one sum in 10^8
            groups = [{"net/one/kernel": random.normal(0, 1, 5000)} for _ in range(3)]
            parts.append(self.part(f"part{i}", *groups, audio_s=float(random.uniform(1, 9))))
        found = set()
        for order in permutations(parts):
            digest = digest_of(self.merge(*order))
            found.add((digest, read_metadata(self.checkpoint)["start"]))
            shutil.rmtree(self.merged)
        self.assertEqual(len(found), 1)

    def test_shares_are_those_of_the_speech_or_as_given_or_equal_without_any(self):
        for audio, weights, expected in (
            ((10.0, 30.0), None, [0.25, 0.75]),
            ((10.0, 30.0), (4.0, 1.0), [0.8, 0.2]),
            ((0.0, 0.0), None, [0.5, 0.5]),
            ((0.0, 5.0), None, [0.0, 1.0]),
        ):
            with self.subTest(audio=audio, weights=weights):
                parts = [self.part(f"part{i}", audio_s=audio_s) for i, audio_s in enumerate(audio)]
                self.merge(*parts, weights=weights)
                kept = read_metadata(self.checkpoint)
                self.assertEqual([part["share"] for part in kept["parts"]], expected)
                self.assertEqual([part["audio_s"] for part in kept["parts"]], list(audio))
                self.assertEqual(kept["audio_s"], sum(audio))
                for folder in (*parts, self.merged):
                    shutil.rmtree(folder)

    def test_is_of_what_parts_are_used_with_where_one_of_them_keeps_no_averages(self):
        plain = self.part("plain", arrays([5, 5]), settings={"training": {"ema_decay": 0.0}})
        (plain / "checkpoints/step-000003/averages.npz").unlink()
        averaged = self.part("averaged", arrays([3, 3]), arrays([1, 1]))
        self.assertEqual(self.merge(averaged, plain)["averages/net/one/kernel"].tolist(), [3, 3])
        shutil.rmtree(self.merged)
        found = self.merge(plain, averaged)
        self.assertEqual(found["model/net/one/kernel"].tolist(), [3, 3])
        self.assertFalse(any(name.startswith("averages") for name in found))

    def test_takes_the_memory_of_one_variable_of_each_part(self):
        parts, variables, count = 8, 16, 2**16  # 0.25 MiB each: 2 MiB of each part, 32 MiB in all
        for i in range(parts):
            model = {f"net/layer_{j}/kernel": np.full(count, i + j, np.float32) for j in range(variables)}
            self.part(f"part{i}", model, model)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        merge([self.folder / f"part{i}" for i in range(parts)], self.merged, NONE)
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
        self.assertLess(peak_mib, 2 * parts * 0.25 + 2)  # in float64, and what a zip file takes

    def test_a_stop_leaves_nothing_behind_and_what_a_kill_left_is_no_obstacle(self):
        one, other = self.part("one"), self.part("other")
        stopped = mock.patch("myxtts.local_sgd.merge.os.rename", side_effect=KeyboardInterrupt)
        with stopped, self.assertRaises(KeyboardInterrupt):
            self.merge(one, other)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"one", "other"})
        (self.folder / ".partial-merged/checkpoints").mkdir(parents=True)  # a kill left it
        self.merge(one, other)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"one", "other", "merged"})


class Kept(Case):
    """What state.json and config.yaml say."""

    def test_the_run_begins_anew_with_all_rows_of_the_tables(self):
        one = self.part("one", step=5, settings={"local_sgd": {"sync_every": 2, "jobs": 2, "sync_dir": "x"}})
        other = self.part("other", step=4, settings={"training": {"seed": 7, "stop_at_step": 6}})
        corpus = self.folder / "train.csv"
        corpus.write_text("path,text\na.wav,a\n")
        with self.assertLogs("myxtts.local_sgd.merge", "INFO") as told:
            found = self.merge(one, other, corpora=Corpora(train_data=str(corpus), audio_root=str(self.folder)))
        self.assertEqual([line for line in told.output if "differs" in line], [told.output[2]])
        self.assertIn("seed is 1, 7; it stays 1", told.output[2])
        kept, config = read_metadata(self.checkpoint), load(self.merged / "config.yaml")
        self.assertEqual((self.checkpoint.name, kept["step"]), ("step-000005", 5))
        self.assertEqual((kept["corpus"], kept["position"], kept["replicas"]), (None, [0, 0, []], 1))
        self.assertEqual((kept["best"], kept["kept"], kept["start"]), (None, None, "f00"))
        self.assertEqual(kept["settings"], config.model_dump(mode="json"))
        self.assertEqual(inherited_vocabulary(kept), vocabulary_of(kept))
        model = {name.partition("/")[2]: array for name, array in found.items() if name.startswith("model/")}
        self.assertEqual(kept["ancestor"]["weights"], digest_of(model))
        self.assertEqual((config.run.run, config.run.runs_dir), ("merged", str(self.folder)))
        self.assertEqual((config.data.train_data, config.data.audio_root), (str(corpus), str(self.folder)))
        self.assertEqual((config.training.seed, config.training.stop_at_step), (1, None))
        self.assertEqual(config.local_sgd, Config().local_sgd)

    def test_other_speakers_and_starts_are_merged_by_force(self):
        one = self.part("one", speakers=["s1", "s0"])
        other = self.part("other", speakers=["s2", "s1"], start="aaa")
        found = self.merge(one, other, force=True)
        kept = read_metadata(self.checkpoint)
        self.assertEqual(kept["speakers"], ["s1", "s0", "s2"])
        model = {name.partition("/")[2]: array for name, array in found.items() if name.startswith("model/")}
        self.assertEqual(kept["start"], digest_of(model))


class Refused(Case):
    def test_parts_whose_arrays_do_not_mean_the_same(self):
        for changes, said in (
            ({"settings": {"model": {"task": "asr"}}}, "task is tts in the first and asr in the"),
            ({"settings": {"model": {"model_size": "tiny"}}}, "model_size is normal in the first and tiny in"),
            ({"settings": {"data": {"reference_seconds": 2.0}}}, "reference_seconds is 3.0"),
            ({"settings": {"data": {"text_frontend": "characters"}}}, "text_frontend is phonemes"),
            ({"settings": {"training": {"freeze": ["decoder"], "init_from": "x"}}}, "freeze is nothing in the first"),
            ({"settings": {"training": {"precision": "mixed_float16"}}}, "precision is another"),
            ({"symbols": ["a", "c"]}, r"symbols are not the same (2 and 2): number 2 is 'b' in the first and 'c' in"),
            ({"symbols": ["a", "b", "c"]}, "number 3 is missing in the first and 'c' in the second"),
            ({"languages": ["ka"]}, "languages are not the same (1 and 1): number 1 is 'en' in the first and 'ka'"),
            ({"speakers": ["s0", "s1"]}, "or merge them all the same by --force"),
            ({"start": "aaa"}, "did not begin with the same weights (f00…, aaa…)"),
        ):
            with self.subTest(changes=changes):
                one, other = self.part("one"), self.part("other", **changes)
                message = self.refusal(one, other)
                self.assertIn(said, message)
                self.assertTrue(message.startswith(f"{one}/checkpoints/step-000003 and {other}/checkpoints/step-"))
                if not changes.keys() & {"speakers", "start"}:
                    self.assertEqual(self.refusal(one, other, force=True), message)
                for folder in (one, other):
                    shutil.rmtree(folder)

    def test_recognisers_with_another_encoder_or_subsampling(self):
        parts = [
            self.part(f"part{i}", settings={"model": {"task": "asr"}, "asr": own})
            for i, own in enumerate(({}, {"encoder": "gru"}, {"subsampling": 4}))
        ]
        self.assertIn("encoder is lmu in the first and gru in the second", self.refusal(*parts[:2]))
        self.assertIn("subsampling is 2 in the first and 4 in the second", self.refusal(parts[0], parts[2]))

    def test_settings_of_the_machine_and_of_the_corpus_may_differ(self):
        one = self.part("one", corpus="c")
        own = {"data": {"batch_size": 3, "num_workers": 7}, "training": {"precision": "mixed_bfloat16", "seed": 5}}
        self.merge(one, self.part("other", corpus="d", settings=own | {"asr": {"encoder": "gru"}}))

    def test_arrays_that_are_not_finite_or_have_other_names_or_shapes(self):
        one = self.part("one")
        for group in ("model", "averages", "optimizer"):
            for changed, said in (
                (arrays([1, np.nan]), "'net/one/kernel' in .* is not finite"),
                (arrays([1, -np.inf]), "is not finite"),
                (arrays([1, 2, 3]), r"is float32 \(3,\) in"),
                ({"net/two/kernel": np.zeros(2)}, "'net/one/count' is in .*one.* but not in .*other"),
            ):
                with self.subTest(group=group, said=said):
                    other = self.part("other", **{group: changed})
                    self.assertRegex(self.refusal(one, other), said)
                    shutil.rmtree(other)

    def test_checkpoints_that_are_missing_or_damaged(self):
        one, other = self.part("one"), self.part("other")
        archive = other / "checkpoints/step-000003/optimizer.npz"
        archive.write_bytes(archive.read_bytes()[:-60])
        self.assertIn(f"{archive} cannot be read", self.refusal(one, other))
        archive.unlink()
        self.assertIn(f"{archive} cannot be read", self.refusal(one, other))
        self.assertIn("has no checkpoint", self.refusal(one, self.folder / "none"))
        self.assertIn("has no checkpoint", self.refusal(one, other / "checkpoints/step-000099"))
        file = archive.with_name("state.json")
        whole = json.loads(file.read_text())
        for changed, said in (
            ({"audio_s": "long"}, "has no usable 'audio_s'"),
            ({"audio_s": -1.0}, "Give --weights"),
            ({"settings": {"data": {"colour": 1}}}, "data.colour"),
            ({"symbols": None}, "has no usable 'symbols'"),
            ({"format": 1}, "has format 1"),
        ):
            with self.subTest(changed=changed):
                file.write_text(json.dumps(whole | changed))
                self.assertIn(said, self.refusal(one, other))
        file.write_text("{")
        self.assertIn("state.json cannot be read", self.refusal(one, other))

    def test_what_makes_no_merge(self):
        one, other = self.part("one"), self.part("other")
        self.assertIn("1 was given", self.refusal(one, kind=ConfigError))
        again = other / "../one/checkpoints/step-000003"
        self.assertIn("was given twice", self.refusal(one, other, again, kind=ConfigError))
        for weights in ((1.0,), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), (float("inf"), 1.0)):
            self.assertIn("--weights", self.refusal(one, other, weights=weights, kind=ConfigError))
        for corpora in (Corpora(train_data="none"), Corpora(val_data="none"), Corpora(audio_root="none")):
            self.refusal(one, other, corpora=corpora, kind=DataError)
        for name in ("one", "..", "two words", ".hidden", "x" * 101):
            with self.assertRaisesRegex(ConfigError, "--output"):
                merge([one, other], self.folder / name, NONE)


class ApartTest(Case):
    def test_lowest_cosine_and_largest_distance_of_all_pairs_by_hand(self):
        for name, one, two in (("a", [3, 0], [0, 0]), ("b", [0, 4], [0, 0]), ("c", [6, 0], [2, 0])):
            values = {"net/one/x": one, "net/two/x": two, "net/two/y": [0]}
            write_arrays(self.folder / f"{name}.npz", ((k, np.array(v, np.float32)) for k, v in values.items()))
        found = layer_distances([self.folder / f"{name}.npz" for name in "abc"])
        # a and b are at a right angle and 5 apart, over 4; b and c √52 over 6; a and c 3 over 6
        self.assertEqual(found["net/one"].cosine, 0.0)
        self.assertAlmostEqual(found["net/one"].distance, 5 / 4)
        self.assertEqual(found["net/two"], (0.0, 1.0))  # of two layers of zeros the cosine is 1
        self.assertEqual(layer_distances([self.folder / "a.npz"] * 2)["net/two"], (1.0, 0.0))
        self.assertIn("below 0.5) in net/one, net/two: try", table_of_layers(found))


class LineTest(unittest.TestCase):
    def line(self, *measured: tuple[float, float], merged=(0.5, 0.5)) -> InterpolationLine:
        """Of the first part, the second one and their mean."""
        found = {shares: Measured(*one) for shares, one in zip(((1.0, 0.0), (0.0, 1.0), merged), measured, strict=True)}
        return InterpolationLine(["A", "B"], merged, ((1.0, 0.0), (0.0, 1.0)), found, FIGURES["asr"], "note")

    def test_the_figure_decides_and_where_it_is_the_same_the_loss(self):
        for measured, better in (
            (((0.2, 9.0), (0.3, 1.0), (0.25, 0.5)), 0),
            (((0.3, 9.0), (0.2, 1.0), (0.25, 0.5)), 1),
            (((0.3, 1.0), (0.2, 1.0), (0.15, 9.0)), None),
            (((0.2, 1.0), (0.2, 0.8), (0.2, 0.9)), 1),
            (((0.2, 1.0), (0.2, 0.8), (0.2, 0.8)), None),
            (((0.2, 1.0), (0.2, 0.8), (float("inf"), float("inf"))), 1),
            (((0.2, 1.0), (0.3, 0.8), (0.2019, 9.0)), None),
            (((0.2, 1.0), (0.3, 0.8), (0.2021, 0.5)), 0),
        ):
            with self.subTest(measured=measured):
                self.assertEqual(self.line(*measured).better, better)
        said = self.line((0.2, 1.0), (0.2, 0.8), (0.2, 0.9)).verdict()
        self.assertIn("worse than those of B", said)
        self.assertIn("(0.9000 against 0.8000; loss, as the character error rate is the same)", said)
        said = self.line((0.3, 1.0), (0.2, 0.8), (0.1, 0.9)).verdict()
        self.assertIn("as good as those of B (10.000 against 20.000; character error rate, %)", said)

    def test_the_table_goes_along_the_line(self):
        lines = self.line((0.2, 1.0), (0.3, 0.8), (0.25, 0.9), merged=(0.25, 0.75)).table().splitlines()
        self.assertEqual(lines[2:5], ["| 0 | A | 20.000 | 1.0000 |", "| 0.75 | merged | 25.000 | 0.9000 |", lines[4]])
        self.assertTrue(lines[4].startswith("| 1 | B |"))

    def test_of_three_the_line_goes_from_the_best_one_to_the_mean_and_no_weights_are_measured_twice(self):
        asked = []

        def evaluate(shares):
            asked.append(shares)
            return Measured(abs(shares[1] - 0.5), 1.0)  # the second part and the mean of two are 0.5 off, others less

        part = mock.Mock(checkpoint=Path("p"))
        with (
            mock.patch("myxtts.local_sgd.interpolation.evaluation", return_value=evaluate),
            mock.patch("myxtts.placement.devices.configure"),
        ):
            third = (0.25, 0.5, 0.25)
            line = measure([part] * 3, third, [0] * 4, Config(), Path())
        ones = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
        self.assertEqual(line.ends, (ones[0], third))
        self.assertEqual(asked[:4], [*ones, third])
        self.assertEqual(asked[4:], [(0.8125, 0.125, 0.0625), (0.625, 0.25, 0.125), (0.4375, 0.375, 0.1875)])
        self.assertEqual([row.split(" | ")[0] for row in line.table().splitlines()[2:9]].count("| –"), 2)

    def test_distortion_of_what_is_said_exactly_is_0_and_of_what_is_not_finite_infinite(self):
        mel = np.random.default_rng(0).normal(-5, 2, (20, 80)).astype(np.float32)
        self.assertAlmostEqual(distortion_db(mel, np.repeat(mel, 2, axis=0)), 0.0)  # slower, and the same sounds
        self.assertGreater(distortion_db(mel, mel[::-1]), 1.0)
        self.assertEqual(distortion_db(mel, np.full((3, 80), np.nan, np.float32)), np.inf)


class Echo:
    """Says of each text the mel that was recorded, and counts how often it is asked."""

    def __init__(self, batch: dict):
        self.batch, self.spoken = batch, 0

    def speak(self, tokens, *_):
        rows = len(tokens)
        self.spoken += rows
        return self.batch["mel"][:rows], self.batch["frames"][:rows], None


class DistortionTest(unittest.TestCase):
    def test_is_of_the_first_16_utterances_and_of_no_empty_row(self):
        batch = on_device(features([(3, 12)] * 9 + [(0, 0)] * 2))
        echo = Echo(batch)
        distortion = Distortion(echo, SynthesisOptions())
        for expected in (9, 16, 16):
            distortion.update(batch, {})
            self.assertEqual(echo.spoken, expected)
        self.assertAlmostEqual(distortion.result()["mel_cepstral_distortion"], 0.0)


class Recognisers(unittest.TestCase):
    """Copies of the run of a recogniser: to hear, to be measured and to be trained on."""

    def setUp(self):
        self.place, self.whole = recogniser_run()
        self.merged = self.place.run("merged")
        self.addCleanup(shutil.rmtree, self.merged, ignore_errors=True)

    def part(self, name: str, blank: float) -> Path:
        """A copy that hears nothing all the more, the greater a number."""
        run = self.place.copied("heard", name, self.addCleanup)
        for group in ("model", "averages"):
            file = latest(run / "checkpoints") / f"{group}.npz"
            found = read_arrays(file)
            found["asr/out/bias"][0] += blank
            write_arrays(file, found.items())
        return run

    def merge(self, *parts: Path, **flags: str) -> tuple[int, str]:
        words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
        argv = ["--checkpoints", *map(str, parts), "--output", str(self.merged), *words]
        out = io.StringIO()
        with (
            small_recognisers(),
            mock.patch("myxtts.placement.devices.configure"),  # this process has its devices
            contextlib.redirect_stdout(out),
        ):
            code, told = reported(lambda: merge_checkpoints.main(argv))
        return code, out.getvalue() + told

    def test_what_is_better_than_the_mean_is_kept_with_exit_code_1(self):
        """With +100, and so with +50, nothing is heard: all symbols are wrong, and some are right without."""
        silent, talks = self.part("silent", 100.0), self.part("talks", 0.0)
        with self.assertLogs("myxtts.local_sgd.merge", "WARNING") as told:
            code, out = self.merge(silent, talks, val_data=str(self.place.corpus))
        self.assertEqual(code, 1, out)
        self.assertIn(f"worse than those of {latest(talks / 'checkpoints')}, which are kept", told.output[0])
        self.assertIn("| 0 | ", out)
        self.assertEqual(out.count("\n| 0"), 4)  # 0, ¼, ½, ¾
        self.assertIn("| 0.5 | merged |", out)
        checkpoint = latest(self.merged / "checkpoints")
        kept = read_metadata(checkpoint)
        self.assertEqual(kept["kept"], str(latest(talks / "checkpoints")))
        self.assertEqual([part["share"] for part in kept["parts"]], [0.0, 1.0])
        left, right = dict(arrays_of(checkpoint)), dict(arrays_of(latest(talks / "checkpoints")))
        self.assertEqual(digest_of(left), digest_of(right))

    def test_the_mean_hears_and_goes_on_like_any_other_run(self):
        code, out = self.merge(self.part("less", -0.25), self.part("more", 0.25))
        self.assertEqual((code, out.count("| 1.0000 | 0.0000 |")), (0, 4), out)  # the bias is in the fifth
        wave = np.random.default_rng(0).normal(0, 0.1, 22050).astype(np.float32)
        self.assertEqual(
            list(transcriber_of(self.merged).transcribe([wave])), list(transcriber_of(self.whole).transcribe([wave]))
        )
        on_device = ("--simulate-gpus", str(SIMULATED), "--data-gpu", "0", "--model-gpu", "1")
        short = ("--max-steps", "1", "--validate-every", "0", "--sample-every", "0")
        with small_recognisers():
            done = self.place.main("--config", str(self.merged / "config.yaml"), "--resume", *on_device, *short)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"resumed        {self.merged}/checkpoints/step-000000", done.out)
        after = read_metadata(latest(self.merged / "checkpoints"))
        self.assertEqual(
            (after["step"], after["start"]), (1, read_metadata(latest(self.whole / "checkpoints"))["start"])
        )
        self.assertIsNotNone(after["corpus"])
        self.assertGreater(after["audio_s"], 0.0)

    def test_mistakes_are_messages_with_exit_code_2(self):
        one = self.part("one", 1.0)
        for flags, said in (({}, "has no checkpoint"), ({"weights": "1"}, "has no checkpoint")):
            code, told = self.merge(one, self.place.run("none"), **flags)
            self.assertEqual(code, 2)
            self.assertIn(said, told)
            self.assertNotIn("Traceback", told)


if __name__ == "__main__":
    unittest.main()
