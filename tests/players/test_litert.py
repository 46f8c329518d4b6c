"""A voice as LiteRT: the interpreter from PyPI, without TensorFlow's operations, on one thread."""

import unittest

import numpy as np

from myxtts.audio.format import HOP_SAMPLES
from myxtts.extras.export.player_files import load_litert
from myxtts.speak.chunks import voice_inputs
from tests import onnx_voice
from tests.fixtures import temporary_folder

LETTERS = [*"abcdefgh", "ɔ̃"]


class LitertTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        flags = onnx_voice.write_runs(cls.folder, LETTERS, ("en", "ka"))
        flags += ["--run", str(cls.folder / "run"), "--out", str(cls.folder / "voice")]
        with onnx_voice.remembered_graphs() as graphs:
            cls.result = onnx_voice.program(*flags, form="litert")
        (cls.graph,) = graphs

    def test_program_succeeds(self):
        self.assertEqual(self.result, (0, ""))
        names = {f"run{kind}.tflite" for kind in ("", "-float16", "-int8")}
        names |= {f"{name}.json" for name in names}
        found = {path.name for path in (self.folder / "voice").iterdir()}
        self.assertEqual(found, names | {"README.md"})
        print((self.folder / "voice/README.md").read_text())

    def test_waves_of_twenty_texts_match_tensorflow(self):
        speak = load_litert(self.folder / "voice/run.tflite")
        onnx_voice.check_waves(self, self.graph, lambda inputs: speak(inputs)[0], len(LETTERS))

    def test_reduced_models_say_nearly_the_same(self):
        inputs = voice_inputs([1, *range(3, 11), 2], 2)
        (expected,) = load_litert(self.folder / "voice/run.tflite")(inputs)
        for kind in ("float16", "int8"):
            (wave,) = load_litert(self.folder / f"voice/run-{kind}.tflite")(inputs)
            self.assertLess(abs(wave.size - expected.size), 5 * HOP_SAMPLES)
            self.assertTrue(np.all(np.isfinite(wave)))
