"""Pictures of samples, for unusual texts and values."""

import gc
import io
import unittest
import warnings

import numpy as np
from PIL import Image

from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes
from tests.robustness.heap import bytes_in_use

MEL = np.full((20, 80), -5.0, np.float32)


class Pictures(unittest.TestCase):
    def test_any_text_can_be_a_title(self):
        texts = ["from $5% to $6", r"A $\foo$ b", "It cost $5 & $10.", "", "გამარჯობა سلام"]
        for text in (*texts, "a" * 2_000):
            with self.subTest(text=text[:20]):
                image = mel_and_alignment(MEL, MEL[:7], np.arange(20), text)
                f0 = f0_curves({"recorded": np.array([100.0, np.nan, 110.0])}, text)
                for picture in (image, f0):
                    actual = (picture.dtype, picture.ndim, picture.shape[2])
                    self.assertEqual(actual, (np.uint8, 3, 3))

    def test_letters_without_a_font_do_not_fill_the_console(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mel_and_alignment(MEL, MEL, np.arange(20), "彼は言った。")

    def test_recording_speech_alignment_and_title_are_drawn(self):
        loud, path = MEL + 5.0, np.arange(20)
        pictures = ((MEL, MEL, path, "a"), (MEL, loud, path, "a"), (loud, MEL, path, "a"))
        pictures += ((MEL, MEL, path[::-1], "a"), (MEL, MEL, path, "b"))
        self.assertEqual(len({mel_and_alignment(*picture).tobytes() for picture in pictures}), 5)

    def test_a_drawn_figure_leaves_little_memory_to_the_garbage_collector(self):
        mel_and_alignment(MEL, MEL, np.arange(20), "")  # fonts
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        before = bytes_in_use()
        for _ in range(2):
            mel_and_alignment(MEL, MEL, np.arange(20), "")
        # 0.5 MiB; with its buffers, a figure leaves 2.7.
        self.assertLess(bytes_in_use() - before, 2 << 20)

    def test_png_contains_the_image(self):
        image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(image)))), image)
