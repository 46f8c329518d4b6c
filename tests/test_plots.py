"""Pictures and the report page of a run, for unusual texts, values and file names."""

import io
import json
import re
import tempfile
import unittest
from pathlib import Path

import numpy as np
from PIL import Image

from myxtts.observe.html_report import write_report
from myxtts.observe.plots import curves, f0_curves, mel_and_alignment, png_bytes

MEL = np.full((20, 80), -5.0, np.float32)


class Pictures(unittest.TestCase):
    def test_any_text_can_be_a_title(self):
        for text in ("from $5% to $6", r"A $\foo$ b", "It cost $5 & $10.", "", "გამარჯობა سلام", "a" * 2_000):
            with self.subTest(text=text[:20]):
                image = mel_and_alignment(MEL, MEL[:7], np.arange(20), text)
                f0 = f0_curves({"recorded": np.array([100.0, np.nan, 110.0])}, text)
                for picture in (image, f0):
                    self.assertEqual((picture.dtype, picture.ndim, picture.shape[2]), (np.uint8, 3, 3))

    def test_recording_and_speech_are_drawn_separately(self):
        loud = MEL + 5.0
        plain, other = (mel_and_alignment(MEL, spoken, np.arange(20), "") for spoken in (MEL, loud))
        self.assertTrue((plain != other).any())

    def test_png_contains_the_image(self):
        image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(image)))), image)

    def test_a_plot_without_curves_is_an_empty_picture(self):
        self.assertEqual(curves({}).shape, curves({"loss": np.array([[1, 2.0], [2, 1.0]])}).shape)


class Page(unittest.TestCase):
    def test_newest_console_line_is_shown_if_the_run_has_its_figures(self):
        report = {"step": 20, "loss": 1.5, "steps_per_s": 5.25, "step_s": 0.19, "wait_s": 0.0, "pause_s": 0.01}
        report |= {"accelerator_utilisation": 1.0, "bottleneck": "step", "remaining_s": 720.0}
        lines = [json.dumps(line) for line in (report, {"step": 30, "validation_loss": 1.0})]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.yaml").touch()
            (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
            page = write_report(folder).read_text()
        newest = "step     20 | loss 1.500 | 5.2 steps/s | wait 0.0 % | pause 5.0 % | 12 min left | feed keeps up"
        self.assertIn(f"<p><code>{newest}</code></p>", page)

    def test_file_names_in_links_are_percent_encoded(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "run<1>"
            samples = folder / "samples" / "step-000010"
            samples.mkdir(parents=True)
            (samples / "1-a#b%?.wav").touch()
            (samples / "1-a#b%?.png").touch()
            (folder / "config.yaml").write_text("data:\n  language: <en>\n")
            (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 1.5}\n{"step": 20, "loss": null}\n{"st')
            page = write_report(folder).read_text()
        self.assertIn('src="samples/step-000010/1-a%23b%25%3F.wav"', page)
        self.assertIn('src="samples/step-000010/1-a%23b%25%3F.png"', page)
        self.assertIn("run&lt;1&gt;", page)
        self.assertIn("&lt;en&gt;", page)
        self.assertIn("Step 20", page)

    def test_sounds_of_a_sample_are_beside_each_other(self):
        kinds = ("", ".recording", ".griffin-lim", ".vocoder", ".synthesized-griffin-lim")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            samples = folder / "samples" / "step-000010"
            samples.mkdir(parents=True)
            (folder / "config.yaml").touch()
            (folder / "metrics.jsonl").touch()
            for sample in ("1-a", "2-a.b"):
                (samples / f"{sample}.png").touch()
                for kind in kinds:
                    (samples / f"{sample}{kind}.wav").touch()
            (samples / "3-mute.png").touch()
            page = write_report(folder).read_text()
        figures = [re.findall(r"<th>([^<]*)</th>.*? src=\"(.*?)\"", figure) for figure in page.split("<figure>")[2:]]
        order = (".recording", ".griffin-lim", ".vocoder", ".synthesized-griffin-lim", "")
        for sample, sounds in zip(("1-a", "2-a.b"), figures, strict=False):
            self.assertEqual(
                [file for _, file in sounds], [f"samples/step-000010/{sample}{kind}.wav" for kind in order]
            )
        self.assertEqual(
            [label for label, _ in figures[0]][1:4:2], ["copy synthesis, Griffin-Lim", "synthesized, Griffin-Lim"]
        )
        self.assertEqual(figures[2], [])


if __name__ == "__main__":
    unittest.main()
