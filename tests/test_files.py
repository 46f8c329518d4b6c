"""Names and contents of files that no encoding and no file system may refuse."""

import json
import os
import tempfile
import unittest
from pathlib import Path

from myxtts.base.files import new_folder, numbered_name, write_json
from myxtts.base.processes import output_of

LATIN_1 = os.fsdecode(b"caf\xe9")


class Names(unittest.TestCase):
    def test_a_name_begins_with_a_number_and_the_stem_of_the_recording(self):
        self.assertEqual(numbered_name(3, "a/chapter 1.wav"), "3-chapter 1")

    def test_bytes_that_are_not_utf_8_are_replaced(self):
        self.assertEqual(numbered_name(1, f"a/{LATIN_1}.wav"), "1-caf\ufffd")

    def test_a_long_name_is_cut_between_characters_and_leaves_room_for_what_follows(self):
        name = numbered_name(12, "ა" * 83 + ".wav")  # 3 bytes each
        self.assertEqual(name, "12-" + "ა" * 60)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"{name}.synthesized-griffin-lim.wav").touch()


class Folders(unittest.TestCase):
    def test_what_a_killed_process_left_is_no_part_of_a_new_folder(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "step-000001"
            left = Path(name) / ".partial-step-000001"
            left.mkdir()
            (left / "old.wav").touch()
            with new_folder(folder) as partial:
                (partial / "new.wav").touch()
            self.assertEqual(os.listdir(folder), ["new.wav"])


class Programs(unittest.TestCase):
    def test_a_program_that_hangs_or_fails_prints_nothing(self):
        self.assertEqual(output_of(("echo", "GPU 0"), 60.0), "GPU 0\n")
        self.assertIsNone(output_of(("sleep", "60"), 0.01))
        self.assertIsNone(output_of(("false",), 60.0))
        self.assertIsNone(output_of(("no such program",), 60.0))


class Json(unittest.TestCase):
    def test_names_that_are_not_utf_8_are_written_and_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "figures.json"
            document = {"id": f"{LATIN_1}.wav", "text": "სალამი"}
            write_json(file, document)
            content = file.read_text(encoding="utf-8")
            self.assertEqual(json.loads(content), document)
            self.assertIn("სალამი", content)
