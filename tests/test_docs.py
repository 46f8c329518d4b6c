"""The documentation: its links have targets, and its flags and commands exist."""

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import sys
import unittest
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

from docs import generate, site_pages
from myxtts.base import plugins
from myxtts.base.errors import ConfigError
from myxtts.commands import train
from myxtts.commands.main import COMPLETION, load_command, run
from myxtts.config.advice import other_names
from myxtts.config.flags import SCRIPTS, SETTINGS
from tests.fixtures import temporary_folder
from tests.test_layers import ROWS

ROOT = Path(__file__).parents[1]
COMMANDS = plugins.names("commands")
DOCS = ROOT / "docs"
WRITTEN = sorted(set(DOCS.rglob("*.md")) - set(generate.PAGES))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
COMING_FROM = DOCS / "guides" / "coming_from.md"
# Of tensorboard, pip and tests.run; of sbatch, srun, torchrun and mpirun.
FOREIGN_FLAGS = {"--logdir", "--no-deps", "--wheel-dir", "--times", "--resv-ports", "--nnodes"}
FOREIGN_FLAGS |= {"--nproc-per-node", "--master-addr", "--map-by", "--gpus-per-task"}
FOREIGN_FLAGS |= {"--requeue", "--signal", "--time"}
FOREIGN_FLAGS.add("--simulate")  # of examples/device_feed.py, whose help loads TensorFlow
# Of wyoming-piper, and of http.server.
FOREIGN_FLAGS |= {"--voice", "--data-dir", "--uri", "--bind", "--directory"}

# Files that the page tells its reader to write.
READERS_FILES = {"ray_voice.py"}

PYTHON_FILE = re.compile(r"(?<![\w./-])[\w./-]*\w\.py\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SCRIPT = (
    r"(?:train_main|validate_dual_gpu_pipeline"
    r"|(?:utilities(?:/human)?|benchmarks|tests/robustness)/\w+)\.py"
)
COMMAND = re.compile(
    rf"^(?:\w+=\S+ )?(?:python3? +({SCRIPT})|(?:python3? -m |bin/)?myxtts ([a-z-]+))(.*)$",
    re.MULTILINE,
)
# /corpora/ is the example.
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/>])/(?!corpora/)[A-Za-z]\w*/\w|\b[A-Z]:\\|file:/")


SETTING_FLAGS = {setting.flag for setting in SETTINGS.values()}
for _setting in SETTINGS.values():
    if _setting.kind is bool:
        SETTING_FLAGS.add(_setting.flag.replace("--", "--no-", 1))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def flags_in(text: str) -> set[str]:
    return {flag.replace("_", "-") for flag in FLAG.findall(text)}


@cache
def flags_of(program: str) -> set[str]:
    """Return the flags in the --help of a script or command."""
    command, out = command_of(program), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
        mock.patch.object(sys, "argv", [program, "--help"]),
        mock.patch.dict(os.environ),
    ):
        if command is not None:
            run([command, "--help"])
        else:
            runpy.run_path(str(ROOT / program), run_name="__main__")
    return set(FLAG.findall(out.getvalue()))


def command_of(program: str) -> str | None:
    """Return the command of a name or script; None for a benchmark or a test."""
    if program in COMMANDS or program.startswith(("benchmarks/", "tests/robustness/")):
        return program if program in COMMANDS else None
    return next((name for name, script in SCRIPTS.items() if script == program), None)


def programs() -> list[str]:
    scripts = [ROOT / "train_main.py", *ROOT.glob("validate_*.py")]
    scripts.append(ROOT / "tests/virtual_gpu/__main__.py")
    for folder in ("utilities", "utilities/human", "benchmarks"):
        scripts += ROOT.glob(f"{folder}/[!_]*.py")
    robustness = ROOT.glob("tests/robustness/*.py")
    scripts += [path for path in robustness if "ArgumentParser" in path.read_text("utf-8")]
    return [*COMMANDS, *sorted(path.relative_to(ROOT).as_posix() for path in scripts)]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Return (program, arguments) of each command line in code blocks, also after `--`."""
    for block in FENCED.findall(text.replace("\\\n", " ")):
        for script, name, rest in COMMAND.findall(block):
            arguments, launched = shlex.split(rest, comments=True), []
            if "--" in arguments:
                end = arguments.index("--")
                arguments, launched = arguments[:end], arguments[end + 1 :]
            yield script or name, arguments
            if launched:
                yield launched[0], launched[1:]


# The runs that pages resume do not exist.
of_any_run = mock.patch(
    "myxtts.config.settings_parser.config_of_run", lambda **run: ROOT / "configs" / "default.yaml"
)


def with_shipped_files(arguments: list[str]) -> list[str]:
    """Return the arguments with --config paths of the project under ROOT, without other ones."""
    if "--config" not in arguments:
        return arguments
    at = arguments.index("--config")
    name = arguments[at + 1]
    shipped = ["--config", str(ROOT / name)] if name.startswith("configs/") else []
    return arguments[:at] + shipped + arguments[at + 2 :]


def foreign_rows(text: str) -> Iterator[tuple[str, str]]:
    """Return (name elsewhere, name here) of each row of the tables for users of other trainers."""
    for line in re.findall(r"^\| (?!-)(.+) \|$", text, re.MULTILINE):
        theirs, _, ours = line.partition(" | ")
        yield theirs, ours


def spans(cell: str) -> list[list[str]]:
    """Return the words of each code span of a cell, without those of programs before a pipe."""
    return [shlex.split(span.rpartition("\\|")[2]) for span in re.findall(r"`([^`]+)`", cell)]


def parse(program: str, arguments: list[str]) -> None:
    """Read arguments as a script or command does; raises ConfigError."""
    command = load_command(command_of(program) or program)
    if hasattr(command, "parse"):
        command.parse(arguments)
    else:
        command.read_settings(command.make_parser(), arguments)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


class LinkTest(unittest.TestCase):
    def test_relative_links_have_targets(self):
        for page in PAGES:
            for link in LINK.findall(FENCED.sub("", read(page))):
                if re.match(r"https?:|mailto:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = (page.parent / name).resolve() if name else page
                with self.subTest(page=page.name, link=link):
                    self.assertTrue(target.exists(), "no such file")
                    self.assertTrue(target.resolve().is_relative_to(ROOT), "outside the project")
                    if anchor:
                        self.assertIn(anchor, anchors(read(target)))

    def test_index_links_to_every_page(self):
        linked = set(LINK.findall(read(DOCS / "README.md")))
        pages = {page.relative_to(DOCS).as_posix() for page in (*WRITTEN, *generate.PAGES)}
        pages -= {"README.md"}
        self.assertEqual(pages - linked, set())

    def test_site_has_every_page(self):
        pages = site_pages.reachable(ROOT / "README.md")
        self.assertEqual({*PAGES, *generate.PAGES} - pages, set())

    def test_landing_page_is_short(self):
        text = read(ROOT / "README.md")
        lines = [line for line in text.splitlines() if line]
        self.assertLessEqual(max(map(len, lines)), 120)
        self.assertLessEqual(sum(map(len, lines)) / len(lines), 100)
        self.assertLessEqual(len(re.findall(r"(?<!!)\[[^\]]*\]\(", FENCED.sub("", text))), 15)

    def test_pages_have_no_absolute_paths(self):
        for page in PAGES:
            with self.subTest(page=page.name):
                self.assertIsNone(ABSOLUTE_PATH.search(read(page)))


class FileTest(unittest.TestCase):
    def test_every_python_file_exists(self):
        names = set()
        for folder in ("benchmarks", "docs", "examples", "fakes", "myxtts", "tests", "utilities"):
            names |= {path.name for path in (ROOT / folder).rglob("*.py")}
        for page in [*PAGES, ROOT / "AGENTS.md", *(ROOT / "myxtts").rglob("README.md")]:
            text = read(page)
            if page == COMING_FROM:
                text = re.sub(r"(?m)^\| .+? \| ", "", text)  # files of other trainers
            folders = ROOT, ROOT / "myxtts", page.parent
            for path in sorted({*PYTHON_FILE.findall(text)} - READERS_FILES):
                with self.subTest(page=page.name, file=path):
                    found = path in names or any((folder / path).is_file() for folder in folders)
                    self.assertTrue(found, "no such file in the project or in myxtts/")

    def test_architecture_has_the_rows_of_the_layers(self):
        rows = re.findall(r"^\| (\d) \| `(\w+)/` \|", read(DOCS / "architecture.md"), re.MULTILINE)
        layers = [(str(height), name) for height, row in enumerate(ROWS, 1) for name in row]
        self.assertEqual(sorted(rows), sorted(layers))


class GeneratedPagesTest(unittest.TestCase):
    def test_pages_are_those_of_the_sources(self):
        advice = "is not what the sources give. `python -m docs.generate` writes it anew"
        for path, page in generate.PAGES.items():
            with self.subTest(page=path.name):
                is_current = path.is_file() and read(path) == page()
                self.assertTrue(is_current, f"{path.relative_to(ROOT)} {advice}")

    def test_all_pages_are_written(self):
        folder = temporary_folder(self.addCleanup)
        pages = {folder / path.name: page for path, page in generate.PAGES.items()}
        with (
            mock.patch.multiple(generate, FOLDER=folder, PAGES=pages, ROOT=folder),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            generate.main()
        self.assertEqual({path.name for path in folder.iterdir()}, {path.name for path in pages})

    def test_page_of_settings_has_a_row_for_each_setting(self):
        page = generate.configuration()
        rows = re.findall(r"^\| `(--[\w-]+)` \| .+ \| .+ \| .+ \|$", page, re.MULTILINE)
        self.assertEqual(rows, [setting.flag for setting in SETTINGS.values()])
        self.assertEqual(flags_in(page) - SETTING_FLAGS - flags_of("train"), set())

    def test_page_of_messages_has_errors_log_lines_and_helps(self):
        tree = ast.parse(
            "def check(name):\n"
            '    """Check a name."""\n'
            "    log.info('it is checked')\n"
            "    kind, key = 'word', 'two words'\n"
            "    raise ConfigError(f'no file {name} in {folder:.1f}')\n"
        )
        sentences = ["it is checked", "two words", "no file {name} in {folder:.1f}"]
        self.assertEqual(list(generate._sentences(tree)), [("check", text) for text in sentences])
        page = generate.messages()
        for text in ("max_steps and epochs are both 0", "iterations of Griffin-Lim (default 30)"):
            self.assertIn(text, page)


class FlagTest(unittest.TestCase):
    def test_every_flag_in_the_documentation_exists(self):
        known = SETTING_FLAGS | FOREIGN_FLAGS | set().union(*map(flags_of, programs()))
        known.add(COMPLETION)
        for page in PAGES:
            if page == COMING_FROM:
                continue  # ForeignFlagTest
            with self.subTest(page=page.name):
                self.assertEqual(flags_in(read(page)) - known, set())

    @of_any_run
    def test_train_accepts_its_command_lines(self):
        accepted = 0
        for page in PAGES:
            for program, arguments in commands(read(page)):
                if program not in ("train", "train_main.py") or arguments == ["--help"]:
                    continue
                with self.subTest(page=page.name, arguments=arguments):
                    train.parse(with_shipped_files(arguments))
                    accepted += 1
        self.assertGreater(accepted, 10)  # fewer: the pattern no longer matches the command lines

    def test_programs_have_the_flags_of_their_command_lines(self):
        for page in PAGES:
            for program, arguments in commands(read(page)):
                with self.subTest(page=page.name, program=program):
                    self.assertIn(program, programs())
                    words = {word.partition("=")[0] for word in arguments if word[:2] == "--"}
                    switches = SETTING_FLAGS if program in ("train", "train_main.py") else set()
                    flags = {word.replace("_", "-") for word in words}
                    self.assertEqual(flags - flags_of(program) - switches, set())


class ForeignFlagTest(unittest.TestCase):
    """The page for users of other trainers: their names on the left of a table, ours right."""

    def setUp(self):
        self.rows = list(foreign_rows(read(COMING_FROM)))
        self.assertGreater(len(self.rows), 100)  # fewer: the pattern no longer matches the tables

    def test_our_flags_exist(self):
        known = SETTING_FLAGS | set().union(*map(flags_of, COMMANDS))
        for theirs, ours in self.rows:
            with self.subTest(theirs=theirs):
                self.assertEqual(set(FLAG.findall(ours)) - known - FOREIGN_FLAGS, set())

    @of_any_run
    def test_our_commands_and_flags_are_accepted(self):
        accepted = 0
        for theirs, ours in self.rows:
            for words in spans(ours):
                at = 3 if words[1:3] == ["-m", "myxtts"] else 1
                program, arguments = words[at : at + 1], words[at + 1 :]
                if (
                    words[0].startswith("--")
                    and {word for word in words if word.startswith("--")} <= SETTING_FLAGS
                ):
                    program, arguments = ["train"], words if len(words) > 1 else ["--help"]
                elif words[0] != "python":
                    continue
                with self.subTest(theirs=theirs, words=words), contextlib.suppress(SystemExit):
                    parse(program[0], with_shipped_files(arguments))
                accepted += 1
        self.assertGreater(accepted, 80)

    def test_error_for_a_flag_of_another_trainer_names_ours(self):
        named = 0
        for theirs, ours in self.rows:
            if not ours.startswith("`--") or " of `" in ours:
                continue
            for flag in re.findall(r"(?<=`)--[a-z][\w.-]*", theirs):
                if flag.replace("_", "-") in SETTING_FLAGS:
                    continue
                with self.subTest(flag=flag):
                    with self.assertRaises(ConfigError) as caught:
                        train.parse([flag, "1"])
                    message = str(caught.exception)
                    self.assertTrue(flags_in(ours) & flags_in(message), message)
                named += 1
        self.assertGreater(named, 20)

    def test_flags_of_the_tables_have_an_answer(self):
        column = " ".join(theirs for theirs, _ in self.rows).replace("_", "-")
        flags = set(re.findall(r"(?<![\w-])--(?:[a-z]+\.)?([a-z][\w-]*)", column))
        ours = SETTING_FLAGS | FOREIGN_FLAGS | set().union(*map(flags_of, COMMANDS))
        known = {name.replace("_", "-") for name in other_names()["instead"]}
        self.assertEqual({flag for flag in flags - known if f"--{flag}" not in ours}, set())
