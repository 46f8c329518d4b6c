"""A voice and a vocoder as ONNX: their waves are TensorFlow's, and players can read them."""

import json
import unittest
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.vocoder import OnnxVocoder, vocode
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands import say, synthesize
from myxtts.extras.export import litert_graph, onnx_graph, piper, player_files, portable_functions
from myxtts.extras.export import web as page
from myxtts.extras.export.portable_functions import Complex
from myxtts.speak.chunks import fade_ends, voice_inputs
from myxtts.tasks import loading
from myxtts.tasks.tts.synthesizer import reference_mel
from myxtts.tasks.tts.task import synthesis_options
from myxtts.text.frontend import TextFrontend
from tests import onnx_voice
from tests.fixtures import entered, temporary_folder

LETTERS = [*"abcdefgh", "ɔ̃"]  # the last one is two code points
PACKAGES = player_files.PACKAGES["onnx"]
HAS_PACKAGES = all(map(find_spec, PACKAGES))


class PlayerIdsTest(unittest.TestCase):
    table = piper.player_ids(LETTERS)

    def tokens(self, points: str, padded: bool = True) -> list[int]:
        ids = [self.table.of_point[point] for point in f"^{points}$"]
        if padded:
            ids = [number for pair in zip(ids, [0] * len(ids), strict=True) for number in pair]
        tokens, places = piper.tokens_of(tf.constant(ids, tf.int64), self.table)
        self.assertEqual(tokens.shape[1], len(places))
        return tokens[0].numpy().tolist()

    def test_padding_is_removed(self):
        self.assertEqual(self.tokens("abh"), [1, 3, 4, 10, 2])
        self.assertEqual(self.tokens("abh", padded=False), [1, 3, 4, 10, 2])

    def test_a_mark_joins_the_code_point_before_it(self):
        self.assertEqual(self.tokens("aɔ\u0303b"), [1, 3, 11, 4, 2])

    def test_a_mark_is_left_out_behind_what_it_does_not_join(self):
        self.assertEqual(self.tokens("a\u0303b\u0303"), [1, 3, 4, 2])

    def test_a_code_point_that_is_no_symbol_alone_is_left_out(self):
        self.assertEqual(self.tokens("aɔb"), [1, 3, 4, 2])

    def test_symbols_of_one_code_point_keep_their_ids(self):
        table = piper.player_ids("a_$")
        self.assertEqual(table.of_point, {"_": 0, "^": 1, "$": 2, "a": 3})
        self.assertEqual((table.marks, table.symbol.tolist()[:4]), (0, [0, 1, 2, 3]))

    def test_players_of_characters_find_capitals_and_other_spellings(self):
        table = piper.player_ids("aé,'")
        texts = "fa", "fa", ["one"], TextFrontend("characters"), "aé,'"
        ids = piper.voice_document(table, *texts)["phoneme_id_map"]
        for other, same in (("A", "a"), ("E", "e"), ("،", ","), ("’", "'")):
            self.assertEqual(ids[other], ids[same])
        self.assertNotIn("؛", ids)


class PortableOperationsTest(unittest.TestCase):
    def test_transforms_match_tensorflow(self):
        random = np.random.default_rng(0)
        for samples in (512, 1024):
            frames = random.normal(size=[2, 3, samples]).astype(np.float32)
            expected = tf.signal.rfft(frames)
            spectrum = portable_functions.real_transform(tf.constant(frames))
            np.testing.assert_allclose(spectrum.real, tf.math.real(expected), atol=1e-4)
            np.testing.assert_allclose(spectrum.imag, tf.math.imag(expected), atol=1e-4)
            # Also where the first and last bins are no real numbers.
            parts = random.normal(size=[2, 2, 3, samples // 2 + 1]).astype(np.float32)
            inverse = portable_functions.inverse_real_transform(Complex(*map(tf.constant, parts)))
            expected = tf.signal.irfft(tf.complex(*parts))
            np.testing.assert_allclose(inverse, expected, atol=1e-5)

    def test_normal_numbers_are_those_of_tensorflow(self):
        for seed, shape in (([0, 0], [5, 80]), ([7, 3], [33])):
            numbers = portable_functions.normal_numbers(tf.constant(shape), tf.constant(seed))
            expected = tf.random.stateless_normal(shape, seed)
            np.testing.assert_allclose(numbers, expected, atol=1e-5)
            arguments = tf.constant(shape), tf.constant(seed), tf.int32, litert_graph.product
            numbers = portable_functions.normal_numbers(*arguments)
            np.testing.assert_allclose(numbers, expected, atol=1e-5)

    def test_the_error_function_is_close(self):
        x = np.linspace(-4.0, 4.0, 801, dtype=np.float32)
        np.testing.assert_allclose(litert_graph.error_function(x), tf.math.erf(x), atol=5e-7)

    def test_a_sum_of_phases_stays_exact(self):
        """A sum of float32 would be off by 7 cycles after 20 s of 150 Hz."""
        step = np.full([1, 441_000], 150.0 / 22_050.0, np.float32)
        fraction = litert_graph.fraction_of_sum(tf.constant(step), 1)
        expected = np.cumsum(step.astype(np.float64), axis=1) % 1.0
        np.testing.assert_allclose(
            np.exp(2j * np.pi * fraction.numpy()), np.exp(2j * np.pi * expected), atol=1e-5
        )


def write_node_modules(folder: Path) -> Path:
    """Write files in place of those of npm; return their folder."""
    for package, names in (("onnxruntime-web", page.RUNTIME), ("espeak-ng", page.ESPEAK)):
        (folder / package / "dist").mkdir(parents=True)
        for name in names:
            (folder / package / "dist" / name).write_bytes(b"")
    return folder


@unittest.skipUnless(HAS_PACKAGES, " and ".join(PACKAGES))
class OnnxSigmoidTest(unittest.TestCase):
    def test_it_is_exact_where_it_is_small(self):
        """That of onnxruntime is not, and SiLU multiplies it by x."""
        import onnxruntime

        signature = [tf.TensorSpec([1, None], tf.float32, "x")]
        sigmoid = tf.function(lambda x: tf.sigmoid(x), signature, autograph=False)
        model = onnx_graph.onnx_graph(sigmoid.get_concrete_function(), "sigmoid", ["y"], {})
        x = np.linspace(-60.0, 60.0, 121, dtype=np.float32)[None]
        (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(y, tf.sigmoid(x), rtol=1e-5)


@unittest.skipUnless(HAS_PACKAGES, " and ".join(PACKAGES))
class OnnxTest(unittest.TestCase):
    """A voice of two speakers with its vocoder, and a vocoder, exported by the program."""

    table = PlayerIdsTest.table

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.run_folder, cls.vocoder_folder = cls.folder / "run", cls.folder / "vocoder"
        cls.flags = onnx_voice.write_runs(cls.folder, LETTERS, ("en", "ka"))
        entered(cls.addClassCleanup, onnx_voice.small_networks())
        with onnx_voice.remembered_graphs() as graphs:
            npm = "--node-modules", str(write_node_modules(cls.folder / "npm"))
            cls.result = cls.program(
                "--format", "web", *npm, "--out", str(cls.folder / "voice"), *cls.flags
            )
        (cls.graph,) = graphs

    @classmethod
    def program(cls, *flags: str) -> tuple[int, str]:
        return onnx_voice.program("--run", str(cls.run_folder), *flags)

    def session(self, name: str, is_optimised: bool = True):
        import onnxruntime

        path, options = self.folder / "voice" / name, onnxruntime.SessionOptions()
        if not is_optimised:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def test_program_succeeds(self):
        self.assertEqual(self.result, (0, ""))
        names = {
            f"run{kind}.onnx{json}" for kind in ("", "-float16", "-int8") for json in ("", ".json")
        }
        found = {path.name for path in (self.folder / "voice").iterdir()}
        others = {"tokens.txt", "README.md", "index.html", *page.RUNTIME, *page.ESPEAK}
        self.assertEqual(found, names | others)
        html = (self.folder / "voice/index.html").read_text("utf-8")
        self.assertIn('data-voice="run.onnx"', html)

    def test_waves_of_twenty_texts_match_tensorflow(self):
        session = self.session("run.onnx")
        onnx_voice.check_waves(
            self, self.graph, lambda inputs: session.run(None, inputs)[0], len(LETTERS)
        )

    def test_the_operations_of_litert_match_tensorflow(self):
        portable = litert_graph.portable(self.graph.traced, "output")
        inputs = voice_inputs([1, *range(3, 11), 2], 2)
        tensors = [*map(tf.constant, inputs.values())]
        wave, (expected, _) = portable(*tensors)["output"].numpy(), self.graph.traced(*tensors)
        np.testing.assert_allclose(wave, expected, atol=1e-3 * np.abs(expected).max())

    def test_waves_and_durations_are_those_of_the_synthesizer(self):
        ids = [1, *range(3, 11), 11, 2]
        points = [1, *range(3, 11), self.table.of_point["ɔ"], self.table.of_point["\u0303"], 2]
        run = TrainedRun.open(self.run_folder)
        network, data = loading.load_network(run, "/CPU:0", "tts"), run.record.settings.data
        reference = reference_mel([self.folder / "high.wav"], data)
        texts = [ids], [len(ids)], [0], reference[None], [len(reference)]
        options = synthesis_options(run.record.settings.model)
        mel, frames, path = network.synthesize(*map(tf.constant, texts), options)
        vocoder = loading.load_vocoder_network(TrainedRun.open(self.vocoder_folder), "/CPU:0")
        expected = fade_ends(vocode(vocoder, mel, frames)[0])
        inputs = voice_inputs(points, 2, speaker=1)
        wave, durations = self.graph.traced(*map(tf.constant, inputs.values()))
        atol = 1e-3 * np.abs(expected).max()
        np.testing.assert_allclose(wave.numpy()[0, 0], expected, atol=atol)
        # The mark of a symbol has no frames of its own.
        expected = np.insert(np.bincount(path[0], minlength=len(ids)), 10, 0)
        np.testing.assert_array_equal(durations.numpy(), expected[None, None].astype(np.float32))
        outputs = self.session("run.onnx").run(None, inputs)
        np.testing.assert_array_equal(outputs[1], durations.numpy())

    def test_say_writes_the_times_that_synthesize_writes(self):
        text, found = "[[badc]]\n[[fɔ̃gab]] [[hɔ̃e]]", []
        voice, run = str(self.folder / "voice"), str(self.run_folder)
        flags = "--vocoder", str(self.vocoder_folder), "--language", "en"
        spoken = ["--run", run, *flags, "--reference", str(self.folder / "high.wav")]
        exported = ["--voice", voice, "--speaker", "high"]
        # This process has its devices.
        with mock.patch("myxtts.placement.devices.configure"), onnx_voice.small_networks():
            for main, argv in (
                (synthesize.main, [*spoken, "--text", text]),
                (say.main, [text, *exported]),
            ):
                times = self.folder / "times.json"
                out = str(self.folder / "times.wav")
                self.assertEqual(main([*argv, "--out", out, "--times", str(times)]), 0)
                segments = json.loads(times.read_text())["segments"]
                found.append([word for segment in segments for word in segment["words"]])
        self.assertGreater(len(found[0]), 1)
        for word, same in zip(*found, strict=True):
            self.assertEqual(word["word"], same["word"])
            for phone, of in zip(word["phones"], same["phones"], strict=True):
                self.assertEqual(phone["phone"], of["phone"])
                for side in ("start", "end"):
                    self.assertAlmostEqual(phone[side], of[side], delta=HOP_SAMPLES / 22_050)

    def test_speakers_and_noise_change_the_wave(self):
        session = self.session("run.onnx")
        ids = [1, *range(3, 11), 2]
        waves = [
            session.run(None, voice_inputs(ids, 2, speaker=speaker))[0] for speaker in (0, 0, 1)
        ]
        np.testing.assert_array_equal(waves[0], waves[1])
        self.assertFalse(np.array_equal(waves[0], waves[2]))

    def test_reduced_models_say_nearly_the_same(self):
        inputs = voice_inputs([1, *range(3, 11), 2], 2)
        expected, _ = self.session("run.onnx").run(None, inputs)
        for kind in ("float16", "int8"):
            wave, _ = self.session(f"run-{kind}.onnx").run(None, inputs)
            self.assertLess(abs(wave.size - expected.size), 5 * HOP_SAMPLES)
            # Players optimise, which made other lengths of DequantizeLinear.
            plain = self.session(f"run-{kind}.onnx", is_optimised=False).run(None, inputs)[0]
            np.testing.assert_allclose(wave, plain, atol=1e-3 * np.abs(plain).max())

    def test_json_and_metadata_are_those_of_players(self):
        document = json.loads((self.folder / "voice/run.onnx.json").read_text(encoding="utf-8"))
        self.assertEqual(document["speaker_id_map"], {"low": 0, "high": 1})
        self.assertEqual(document["espeak"], {"voice": "en-us"})
        self.assertEqual(document["audio"]["sample_rate"], SAMPLE_RATE_HZ)
        self.assertEqual(document["phoneme_id_map"]["a"], [3])
        metadata = self.session("run.onnx").get_modelmeta().custom_metadata_map
        self.assertEqual((metadata["comment"], metadata["n_speakers"]), ("piper", "2"))
        lines = (self.folder / "voice/tokens.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual(lines[-1].split(" ")[0], "\u0303")
        self.assertIn("^ 1", lines)

    def test_unusable_arguments_exit_with_2(self):
        for flags, expected in (
            ("--language en", "needs a trained vocoder"),
            (f"--vocoder {self.vocoder_folder}", "was trained on en, ka"),
            (f"--vocoder {self.vocoder_folder} --language en", "--reference NAME=FILE"),
            ("--reference low", "must be NAME=FILE"),
            (f"--run {self.vocoder_folder} --language en", "--format onnx"),
            ("--format savedmodel --language en", "--format onnx"),
            ("--format web --precision int8", "--precision int8 was given, but is for --format on"),
            ("--format web --node-modules nowhere", "`npm install onnxruntime-web espeak-ng`"),
            (f"--format web --run {self.vocoder_folder}", "vocoder"),
        ):
            with self.subTest(flags=flags):
                code, message = self.program("--out", str(self.folder / "new"), *flags.split())
                self.assertEqual(code, 2)
                self.assertIn(expected, message)
        self.assertFalse((self.folder / "new").exists())

    def test_a_vocoder_alone_matches_tensorflow(self):
        import onnxruntime

        out = self.folder / "vocoder_onnx"
        run = "--run", str(self.vocoder_folder)
        whole = "--precision", "float32", "--out"
        self.assertEqual(self.program(*run, *whole, str(out)), (0, ""))
        self.assertEqual([path.name for path in out.glob("*.onnx")], ["vocoder.onnx"])
        mel = np.random.default_rng(0).normal(-5.0, 2.0, [1, 80, 50]).astype(np.float32)
        (wave,) = onnxruntime.InferenceSession(out / "vocoder.onnx").run(None, {"mel": mel})
        vocoder = loading.load_vocoder_network(TrainedRun.open(self.vocoder_folder), "/CPU:0")
        expected = vocoder.synthesize(mel.transpose(0, 2, 1), tf.constant([0, 0])).numpy()
        error = np.sqrt(np.mean(np.square(wave - expected)))
        self.assertLess(error, 1e-3 * np.sqrt(np.mean(np.square(expected))))
        # As a vocoder of a voice it makes the same waves as its run.
        file = f"{out}/vocoder.onnx"
        (same,) = vocode(OnnxVocoder(Path(file)), mel.transpose(0, 2, 1), [50])
        np.testing.assert_array_equal(same, wave[0])
        flags = [file if flag == str(self.vocoder_folder) else flag for flag in self.flags]
        self.assertEqual(self.program(*whole, str(self.folder / "other"), *flags), (0, ""))
        inputs = voice_inputs([1, *range(3, 11), 2], 2)
        expected, durations = self.session("run.onnx").run(None, inputs)
        wave, same = self.session("../other/run.onnx").run(None, inputs)
        np.testing.assert_array_equal(same, durations)
        middle = np.s_[..., 200:-200]  # its ends do not fade
        np.testing.assert_allclose(wave[middle], expected[middle], atol=1e-3)
