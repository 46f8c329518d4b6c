"""The documentation against the program: its links lead somewhere, its flags and commands exist."""

import re
import shlex
import subprocess
import sys
import unittest
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from myxtts.commands import train
from myxtts.config.settings import SETTINGS
from myxtts.errors import ConfigError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OWN_FLAGS = {"--help", "--config", "--print-config"}  # of train_main.py, beside the settings
FOREIGN_FLAGS = {"--logdir"}  # of tensorboard

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SCRIPT = r"(?:train_main|validate_dual_gpu_pipeline|utilities/\w+|benchmarks/\w+)\.py"
COMMAND = re.compile(rf"^(?:\w+=\S+ )?python3? +({SCRIPT})(.*)$", re.MULTILINE)
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/>])/(?!corpora/)[A-Za-z]\w*/\w|\b[A-Z]:\\|file:/")  # /corpora/ is the example


def setting_flags() -> set[str]:
    switches = {setting.flag.replace("--", "--no-", 1) for setting in SETTINGS.values() if setting.kind is bool}
    return {setting.flag for setting in SETTINGS.values()} | switches


@cache
def script_flags(script: str) -> set[str]:
    """What the --help of a script names."""
    told = help_of(script)
    commands = re.findall(r"^  \{([\w,]+)\}", told, re.MULTILINE)
    return set(FLAG.findall("".join([told, *(help_of(script, one) for names in commands for one in names.split(","))])))


def help_of(script: str, *command: str) -> str:
    line = [sys.executable, ROOT / script, *command, "--help"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def scripts() -> list[str]:
    found = [*ROOT.glob("validate_*.py"), *ROOT.glob("utilities/[!_]*.py"), *ROOT.glob("benchmarks/[!_]*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(script, arguments) of each command in the code blocks of a page, and of what a command launches behind --."""
    for block in FENCED.findall(text.replace("\\\n", " ")):
        for script, arguments in COMMAND.findall(block):
            own, launched = shlex.split(arguments, comments=True), []
            if "--" in own:
                at = own.index("--")
                own, launched = own[:at], own[at + 1 :]
            yield script, own
            if launched:
                yield launched[0], launched[1:]


def with_shipped_files(arguments: list[str]) -> list[str]:
    """The arguments without the --config of a file that is the reader's own; shipped ones lie under ROOT."""
    if "--config" not in arguments:
        return arguments
    at = arguments.index("--config")
    name = arguments[at + 1]
    shipped = ["--config", str(ROOT / name)] if name.startswith("configs/") else []
    return arguments[:at] + shipped + arguments[at + 2 :]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


class LinkTest(unittest.TestCase):
    def test_relative_links_lead_to_files_and_headings(self):
        for page in PAGES:
            for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
                if re.match(r"https?:|mailto:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = page.parent / name if name else page
                with self.subTest(page=page.name, link=link):
                    self.assertTrue(target.exists(), "leads nowhere")
                    self.assertTrue(target.resolve().is_relative_to(ROOT), "leads out of the project")
                    if anchor:
                        self.assertIn(anchor, anchors(target.read_text(encoding="utf-8")))

    def test_index_links_to_every_page(self):
        linked = set(LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
        pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"}
        self.assertEqual(pages - linked, set())

    def test_no_page_names_an_absolute_path(self):
        for page in PAGES:
            with self.subTest(page=page.name):
                self.assertIsNone(ABSOLUTE_PATH.search(page.read_text(encoding="utf-8")))


class FlagTest(unittest.TestCase):
    def test_every_flag_named_exists(self):
        known = setting_flags() | OWN_FLAGS | FOREIGN_FLAGS | set().union(*map(script_flags, scripts()))
        for page in PAGES:
            named = {flag.replace("_", "-") for flag in FLAG.findall(page.read_text(encoding="utf-8"))}
            with self.subTest(page=page.name):
                self.assertEqual(named - known, set())

    def test_train_main_accepts_its_commands(self):
        accepted = 0
        for page in PAGES:
            for script, arguments in commands(page.read_text(encoding="utf-8")):
                if script != "train_main.py" or arguments == ["--help"]:
                    continue
                with self.subTest(page=page.name, arguments=arguments):
                    try:
                        train.parse(with_shipped_files(arguments))
                    except ConfigError as error:
                        self.fail(str(error))
                    accepted += 1
        self.assertGreater(accepted, 10)  # or the pattern finds no commands any more

    def test_other_scripts_have_the_flags_of_their_commands(self):
        for page in PAGES:
            for script, arguments in commands(page.read_text(encoding="utf-8")):
                if script != "train_main.py":
                    with self.subTest(page=page.name, script=script):
                        self.assertIn(script, scripts())
                        given = {argument for argument in arguments if argument.startswith("--")}
                        self.assertEqual(given - script_flags(script), set())


if __name__ == "__main__":
    unittest.main()
