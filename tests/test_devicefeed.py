"""The library stands alone: what it imports, and a copy of its folder under another name."""

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from tests.fixtures import temporary_folder
from tests.long import long

ROOT = Path(__file__).parents[1]
LINES = 1_250
# MyXTTS cannot be imported, wherever it may be installed.
DISCOVER = """
import sys, unittest
sys.modules["myxtts"] = None
unittest.main(None, argv=["unittest", "discover", "-s", "checks", "-t", "."])
"""


class Alone(unittest.TestCase):
    def test_it_imports_nothing_else_of_the_package_and_routes_no_tensorflow(self):
        source = "import sys, myxtts.devicefeed as core\ncore.PlacementError\nimport"
        source += " myxtts.devicefeed.routes\nassert 'tensorflow' not in sys.modules\n"
        source += "core.DeviceFeed\nprint(*(n for n in sys.modules if n.startswith('myxtts.')))"
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        names = done.stdout.split()
        self.assertEqual([n for n in names if not n.startswith("myxtts.devicefeed")], [])
        files = [ROOT / f"{name.replace('.', '/')}.py" for name in names]
        lines = sum(len(file.read_text("utf-8").splitlines()) for file in files if file.exists())
        self.assertLessEqual(lines, LINES)

    def test_the_folder_has_as_many_lines(self):
        files = (ROOT / "myxtts" / "devicefeed").rglob("*.py")
        self.assertLessEqual(sum(len(f.read_text("utf-8").splitlines()) for f in files), LINES)

    def test_a_renamed_copy_passes_its_tests(self):
        folder = temporary_folder(self.addCleanup)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "myxtts" / "devicefeed", folder / "renamed", ignore=ignored)
        shutil.copytree(ROOT / "tests" / "devicefeed", folder / "checks", ignore=ignored)
        for path in (folder / "checks").glob("*.py"):
            text = path.read_text("utf-8").replace("myxtts.devicefeed", "renamed")
            path.write_text(text, "utf-8")
        command = [sys.executable, "-c", DISCOVER]
        settings = {"cwd": folder, "env": {"PYTHONPATH": str(folder)}}
        done = subprocess.run(command, capture_output=True, text=True, **settings)
        self.assertEqual(done.returncode, 0, done.stderr)
        (count,) = re.findall(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
        self.assertGreater(int(count), 20)
        self.assertNotIn("skipped", done.stderr)


class Examples(unittest.TestCase):
    @long
    def test_both_train_with_the_same_losses(self):
        losses = []
        for name in ("device_feed", "by_hand"):
            command = [sys.executable, f"examples/{name}.py", "--simulate", "2", "--steps", "6"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            losses += re.findall(r"^loss (\d\.\d{3})\b", done.stdout, re.MULTILINE)
        self.assertEqual(len(losses), 2)
        self.assertEqual(*losses)


if __name__ == "__main__":
    unittest.main()
