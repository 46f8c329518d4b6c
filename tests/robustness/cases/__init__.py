"""Cases of people with other texts, files, clusters and habits, each with its right value."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from myxtts.devicefeed.errors import UserError
from myxtts.text.frontend import TextFrontend

PROJECT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 600.0
RUN_FLAGS = (
    "--model-size tiny --batch-size 4 --max-steps 2 --log-every 1 --checkpoint-every 0"
    " --validation-fraction 0.1 --validate-every 0 --sample-every 0"
)


class Case(NamedTuple):
    """What is given, and a value or a pattern of what must be found, as a whole."""

    kind: str
    given: str
    expected: str
    find: Callable[[], str]


def found_in(case: Case) -> str:
    """Return what is found: `error: ` and a message for the user, `crash: ` and a defect."""
    try:
        return case.find()
    except UserError as error:
        return f"error: {error}"
    except Exception as error:
        return f"crash: {type(error).__name__}: {error}"


@contextlib.contextmanager
def warnings() -> Iterator[list[str]]:
    """Yield a list that gets the warnings of the package."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("myxtts").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("myxtts").removeHandler(handler)


def program(*command: str | Path, **environment: str) -> tuple[int, str]:
    """Run a program of the project; return its exit code and all that it prints."""
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=PROJECT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        text=True,
        errors="replace",
    )
    return ended.returncode, ended.stdout


@dataclass(frozen=True)
class Lab:
    """What cases share in a folder, each made when it is first needed."""

    folder: Path
    clips: Path | None = None

    @cached_property
    def demo(self) -> Path:
        """A corpus of 20 utterances of one English speaker."""
        flags = "--utterances 20 --languages en --speakers 1".split()
        code, printed = program("-m", "myxtts", "corpus", "--out", self.folder / "demo", *flags)
        assert code == 0, printed
        return self.folder / "demo"

    @cached_property
    def rows(self) -> list[list[str]]:
        """Name and text of each utterance of the demo corpus."""
        lines = (self.demo / "metadata.csv").read_text("utf-8").splitlines()
        return [line.split("|")[:2] for line in lines]

    @cached_property
    def voice(self) -> Path:
        """An exported voice of two speakers, which reads the texts of the demo corpus."""
        frontend = TextFrontend(normaliser="words-1")
        symbols = {symbol for _, text in self.rows for symbol in frontend.symbols(text, "en")}
        folder = self.folder / "exported"
        folder.mkdir()
        # In a process of its own, since it chooses other devices than synthesis.
        export = "import sys; from tests.onnx_voice import export_voice, Path; "
        export += "export_voice(Path(sys.argv[1]), sys.argv[2:], ['en'])"
        code, printed = program("-c", export, folder / "voice", *sorted(symbols))
        assert code == 0, printed
        return folder / "voice"

    @cached_property
    def trained(self) -> Path:
        """The run of a voice after two steps."""
        code, printed = self.train("run", self.demo)
        assert code == 0, printed
        return self.folder / "runs/run"

    def train(self, run: str, corpus: Path, *flags: str, **environment: str) -> tuple[int, str]:
        command = ["train_main.py", "--train-data", corpus, "--run", run]
        command += ["--runs-dir", self.folder / "runs", *RUN_FLAGS.split(), *flags]
        return program(*command, **environment)
