"""The voices in `voices/`: what index.json says of them is true, and each speaks, but `base`."""

import json
import re
import subprocess
import sys
import unittest
import zlib
from pathlib import Path

import numpy as np
import soundfile

from myxtts.base.published import CHECKSUMS, file_digest
from myxtts.text.normalisers import LIBRARIES
from tests.fixtures import DEADLINE_S, FolderCase

ROOT = Path(__file__).parents[1]
VOICES = ROOT / "voices" / "myxtts_voices"
TEXTS = {"en": "Good morning. How are you?", "ru": "Доброе утро. Как дела?"}
MAX_BYTES = 40e6  # of the wheel
FACTS = {"languages", "speakers", "licence", "consent", "folder", "mb"}


class ShippedVoicesTest(FolderCase):
    @classmethod
    def setUpClass(cls):
        cls.index = json.loads((VOICES / "index.json").read_text("utf-8"))

    def test_the_index_names_all_folders_and_says_what_a_user_must_know(self):
        folders = {path.name for path in VOICES.iterdir() if path.is_dir()} - {"__pycache__"}
        self.assertEqual({entry["folder"] for entry in self.index.values()}, folders)
        for name, entry in self.index.items():
            with self.subTest(name):
                self.assertLessEqual(FACTS, entry.keys())
                card = (VOICES / entry["folder"] / "README.md").read_text("utf-8")
                self.assertNotIn("FILL IN", card)
                self.assertIn(entry["licence"], card)
                self.assertIn(entry["consent"], card)

    def test_files_are_those_of_the_checksums(self):
        for entry in self.index.values():
            folder = VOICES / entry["folder"]
            sums = dict(
                reversed(line.split("  ")) for line in (folder / CHECKSUMS).read_text().splitlines()
            )
            files = [path for path in folder.rglob("*") if path.is_file()]
            found = {
                str(path.relative_to(folder)): file_digest(path)
                for path in files
                if path.name != CHECKSUMS
            }
            self.assertEqual(found, sums)
            self.assertAlmostEqual(
                sum(path.stat().st_size for path in files), 1e6 * entry["mb"], -6
            )

    def test_the_wheel_is_small(self):
        files = (path for path in VOICES.rglob("*") if path.is_file())
        self.assertLess(sum(len(zlib.compress(path.read_bytes(), 1)) for path in files), MAX_BYTES)

    def test_the_wheel_requires_what_reads_the_texts_of_its_voices(self):
        project = (ROOT / "voices/pyproject.toml").read_text("utf-8")
        (required,) = re.findall(r"^dependencies = (\[.*\])$", project, re.MULTILINE)
        languages = {code for entry in self.index.values() for code in entry["languages"]}
        codes = {language.split("-")[0] for language in languages} & LIBRARIES.keys()
        needed = {LIBRARIES[code].requirement for code in codes}
        self.assertEqual(set(json.loads(required)), needed)

    def test_each_speaks_without_tensorflow(self):
        mute = {name for name in self.index if not (VOICES / name / "onnx").is_dir()}
        self.assertEqual(mute, {"base"})
        for name in self.index.keys() - mute:
            with self.subTest(name):
                entry = self.index[name]
                out = self.folder / f"{name}.wav"
                code = "import sys; sys.modules['tensorflow'] = None"
                code += "; from myxtts.commands.main import main; sys.exit(main())"
                text = TEXTS[entry["languages"][0].split("-")[0]]
                command = [
                    sys.executable,
                    "-c",
                    code,
                    "say",
                    text,
                    "--voice",
                    name,
                    "--out",
                    str(out),
                ]
                run = {"capture_output": True, "text": True, "timeout": DEADLINE_S, "cwd": ROOT}
                done = subprocess.run(command, **run, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                for part in (name, entry["licence"], "the speech is synthetic"):
                    self.assertIn(part, done.stdout + done.stderr)
                wave, rate_hz = soundfile.read(out)
                self.assertEqual(rate_hz, 24_000)
                self.assertTrue(1.0 < len(wave) / rate_hz < 5.0)
                self.assertGreater(np.abs(wave).max(), 0.05)


if __name__ == "__main__":
    unittest.main()
