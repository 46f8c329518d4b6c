"""`myxtts say` and `myxtts voices`: names, files and languages of voices."""

import contextlib
import hashlib
import io
import json
import os
import unittest
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.commands import say
from myxtts.commands import voices as list_voices
from myxtts.speak import voices
from myxtts.speak.piper_voice import PiperVoice
from myxtts.speak.player import ExportedSpeaker
from myxtts.tasks.tts.speakers import open_speaker
from myxtts.text.sentences import Boundary
from tests.fixtures import FolderCase

HAS_PACKAGES = all(map(find_spec, ("onnx", "onnxruntime")))
PHONEMES = " abcdefghijklmnopqrstuvwxyzæəɪɛɐɔʊʌɹˈˌː.,!?"


def write_graph(path: Path, has_durations: bool = False) -> None:
    """Write a graph with the inputs of Piper, which hums each id for a frame, 256 samples."""
    import onnx
    from onnx import TensorProto as Type
    from onnx import helper

    shape = helper.make_tensor("shape", Type.INT64, [3], [1, 1, -1])
    times = helper.make_tensor("times", Type.INT64, [3], [1, 1, 256])
    axis = helper.make_tensor("axis", Type.INT64, [1], [2])
    small = helper.make_tensor("small", Type.FLOAT, [1], [0.002])
    nodes = [
        helper.make_node("Cast", ["input"], ["ids"], to=Type.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "axis"], ["columns"]),
        helper.make_node("Tile", ["columns", "times"], ["held"]),
        helper.make_node("Reshape", ["held", "shape"], ["wave"]),
        helper.make_node("Mul", ["wave", "small"], ["output"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input", Type.INT64, [1, "n"]),
        helper.make_tensor_value_info("input_lengths", Type.INT64, [1]),
        helper.make_tensor_value_info("scales", Type.FLOAT, [3]),
    ]
    outputs = [helper.make_tensor_value_info("output", Type.FLOAT, [1, 1, "m"])]
    if has_durations:
        nodes.append(helper.make_node("Sub", ["ids", "ids"], ["zeros"]))
        nodes.append(helper.make_node("Exp", ["zeros"], ["frames"]))
        outputs.append(helper.make_tensor_value_info("frames", Type.FLOAT, [1, "n"]))
    graph = helper.make_graph(nodes, "hum", inputs, outputs, [shape, times, axis, small])
    opset = [helper.make_opsetid("", 15)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def piper_json(rate_hz: int = 22_050) -> dict:
    ids = {symbol: [number] for number, symbol in enumerate("_^$" + PHONEMES)}
    scales = {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.8}
    return {
        "audio": {"sample_rate": rate_hz},
        "espeak": {"voice": "en-us"},
        "inference": scales,
        "phoneme_id_map": ids,
        "speaker_id_map": {},
    }


def exported_json() -> dict:
    frontend = {"kind": "phonemes", "normaliser": "none", "symbols": [*PHONEMES]}
    document = piper_json() | {"language": {"code": "en"}, "speaker_id_map": {"ann": 0}}
    return document | {"myxtts_frontend": frontend}


@unittest.skipUnless(HAS_PACKAGES, "onnx and onnxruntime")
class SayTest(FolderCase):
    def setUp(self):
        super().setUp()
        (self.folder / "index/ann/onnx").mkdir(parents=True)
        self.write_voice("index/ann/onnx/ann", exported_json())
        entry = {"languages": ["en"], "licence": "CC0-1.0", "consent": "nobody's voice"}
        far = entry | {"languages": ["ka"], "url": "https://example.org/far", "mb": 3.0}
        index = {"ann": entry | {"folder": "ann"}, "far": far}
        self.write("index/index.json", json.dumps(index))
        folders = mock.patch.object(voices, "_folders", lambda: iter([self.folder / "index"]))
        self.enterContext(folders)
        voices.voices.cache_clear()
        self.addCleanup(voices.voices.cache_clear)

    def write_voice(self, name: str, document: dict, has_durations: bool = False) -> Path:
        path = self.folder / f"{name}.onnx"
        write_graph(path, has_durations)
        self.write(f"{name}.onnx.json", json.dumps(document))
        return path

    def say(self, *argv: str) -> np.ndarray:
        out = self.folder / "said.wav"
        with self.assertLogs("myxtts", "INFO") as self.logged:
            self.assertEqual(say.main([*argv, "--out", str(out)]), 0)
        return soundfile.read(out)[0]

    def test_a_voice_of_the_index_speaks_and_says_what_it_is(self):
        wave = self.say("A man. A plan.")
        self.assertGreater(len(wave), 2000)
        self.assertGreater(np.abs(wave).max(), 0.01)
        lines = "\n".join(self.logged.output)
        self.assertIn("ann: CC0-1.0; nobody's voice", lines)
        self.assertIn("the speech is synthetic", lines)
        np.testing.assert_array_equal(self.say("A man. A plan.", "--voice", "ann"), wave)
        folder = str(self.folder / "index/ann/onnx")
        out = str(self.folder / "again.wav")
        self.assertEqual(say.main(["A man. A plan.", "--voice", folder, "--out", out]), 0)

    def test_a_voice_without_onnx_is_for_runs_to_start_from(self):
        (self.folder / "index/base/checkpoints").mkdir(parents=True)
        about = {"languages": ["en"], "licence": "CC0-1.0", "consent": "nobody's voice"}
        index = {name: about | {"folder": name} for name in ("base", "ann")}
        self.write("index/index.json", json.dumps(index))
        voices.voices.cache_clear()
        self.assertEqual(voices.voice_for("A man.", None).name, "ann")
        self.assertEqual(voices.run_folder("base"), self.folder / "index/base")
        with contextlib.redirect_stdout(io.StringIO()) as listed:
            list_voices.main([])
        self.assertIn("for --init-from and synthesize; installed in", listed.getvalue())

    def test_a_voice_of_piper_reads_its_own_ids(self):
        path = self.write_voice("joe", piper_json())
        voice = open_speaker(str(path))
        self.assertIsInstance(voice, PiperVoice)
        ids = voice._chunk("a man.", Boundary.SENTENCE).tokens.tolist()
        self.assertEqual((ids[:2], ids[-1], {*ids[1::2]}), ([1, 0], 2, {0, *ids[1::2]}))
        self.assertEqual([*ids[1::2]], [0] * (len(ids) // 2))
        ((wave, _),) = voice.speak("a man.")
        self.assertEqual(len(wave), 256 * len(ids))
        slow = self.write_voice("slow", piper_json(16_000))
        ((resampled, _),) = open_speaker(str(slow)).speak("a man.")
        self.assertAlmostEqual(len(resampled) / len(wave), 22_050 / 16_000, delta=0.01)

    def test_voices_of_both_kinds_tell_the_times_of_words(self):
        times = self.folder / "said.json"
        # Frames before the first symbol, and of each one: Piper has an id of _ behind each.
        for document, first, each in ((piper_json(), 2, 2), (exported_json(), 1, 1)):
            path = str(self.write_voice("timed", document, has_durations=True))
            wave = self.say("A man. A man.", "--voice", path, "--times", str(times))
            found = json.loads(times.read_text())
            self.assertAlmostEqual(found["duration"], len(wave) / 22_050, places=3)
            segments = [segment["words"] for segment in found["segments"]]
            texts = [[word["word"] for word in words] for words in segments]
            self.assertEqual(texts, [["A", "man."]] * 2)
            frame_s = 256 / 22_050
            self.assertAlmostEqual(segments[0][0]["start"], first * frame_s, places=4)
            # ɐ, and half of the space behind it.
            self.assertAlmostEqual(segments[0][0]["end"], (first + 1.5 * each) * frame_s, places=4)
            # The second sentence is the first one after a pause.
            later_s = (len(wave) - len(self.say("A man.", "--voice", path))) / 22_050
            starts = [words[0]["start"] for words in segments]
            self.assertAlmostEqual(starts[1] - starts[0], later_s, places=4)

    def test_times_are_refused_before_anything_is_spoken(self):
        path = str(self.write_voice("joe", piper_json()))
        for argv, message in (
            (("--times", "a.txt"), "--times a.txt was given, but times are written as"),
            (("--times", "a.srt"), "the graph of ann has no second output.*Export the voice again"),
            (("--times", "a.srt", "--voice", path), "the graph of joe has no second output"),
        ):
            with (
                self.subTest(argv),
                mock.patch.object(ExportedSpeaker, "speak", side_effect=AssertionError),
                mock.patch.object(PiperVoice, "speak", side_effect=AssertionError),
                self.assertRaisesRegex(ConfigError, message),
            ):
                say.main(["Hi.", *argv, "--out", str(self.folder / "out.wav")])

    def test_stream_is_wav_on_stdout(self):
        path = self.folder / "stream"
        with (
            open(path, "wb") as out,
            mock.patch.object(say, "sound_on_stdout", lambda: contextlib.nullcontext(out)),
        ):
            timed = str(self.write_voice("timed", exported_json(), has_durations=True))
            times = self.folder / "stream.srt"
            argv = ["A man.", "--stream", "--voice", timed, "--times", str(times)]
            self.assertEqual(say.main(argv), 0)
        self.assertEqual(path.read_bytes()[:4], b"RIFF")
        self.assertIn("A man.", times.read_text())

    def test_where_nothing_plays_a_file_is_named_by_the_first_word(self):
        with mock.patch.object(say, "find_player", return_value=None):
            cwd = os.getcwd()
            os.chdir(self.folder)
            self.addCleanup(os.chdir, cwd)
            self.assertEqual(say.main(["A man."]), 0)
        self.assertTrue((self.folder / "a.wav").is_file())

    def test_no_voice_stands_in_for_another_language(self):
        for argv, kind, message in (
            (("Привет",), ConfigError, "no voice for a text in Cyrillic letters. There are ann"),
            (("Hi.", "--language", "fr"), ConfigError, "no voice for --language fr"),
            (("Hi.", "--voice", "bob"), ConfigError, "there is no voice 'bob'. There are ann"),
            (("Hi.", "--voice", "ann", "--language", "fr"), ConfigError, "voice ann speaks en"),
            (("Hi.", "--speaker", "bob"), DataError, "'bob' is unknown. Use one of ann"),
            (("Hi.", "--text-file", "x"), ConfigError, "both given"),
        ):
            with self.subTest(argv), self.assertRaisesRegex(kind, message):
                say.main([*argv, "--out", str(self.folder / "out.wav")])
        self.write("broken.onnx", "x")
        self.write("broken.onnx.json", "{}")
        with self.assertRaisesRegex(CheckpointError, "no description of a voice"):
            open_speaker(str(self.folder / "broken.onnx"))

    def test_voices_are_listed_and_fetched_whole_or_not_at_all(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(list_voices.main([]), 0)
        self.assertIn("ann              en         CC0-1.0; nobody's voice", out.getvalue())
        self.assertIn("3 MB, https://example.org/far", out.getvalue())
        served = self.folder / "served"
        (served / "onnx").mkdir(parents=True)
        (served / "onnx/far.onnx").write_bytes(b"graph")
        digest = hashlib.sha256(b"graph").hexdigest()
        (served / "SHA256SUMS").write_text(f"{digest}  onnx/far.onnx\n")
        voice = voices.voice_named("far")
        cache = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.folder / "cache")})

        def urlopen(url, timeout):
            return open(served / url.removeprefix(f"{voice.url}/"), "rb")

        with cache, mock.patch("urllib.request.urlopen", urlopen):
            (served / "onnx/far.onnx").write_bytes(b"other")
            with self.assertRaisesRegex(DataError, "must have"):
                _ = voice.path
            (served / "onnx/far.onnx").write_bytes(b"graph")
            self.assertEqual((voice.path / "onnx/far.onnx").read_bytes(), b"graph")

    def test_a_folder_of_this_project_is_no_voice_of_piper(self):
        path = self.write_voice("own", exported_json())
        self.assertIsInstance(open_speaker(str(path)), ExportedSpeaker)


if __name__ == "__main__":
    unittest.main()
