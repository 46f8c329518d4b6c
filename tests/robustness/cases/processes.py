"""Resumes with another corpus, and environments of other projects: the same run, or one message."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import soundfile

from myxtts.report.metrics import read_metrics
from tests.robustness.cases import Case, Lab

RESUMED = "exit code 0"
SAME = "exit code 0, the same losses"
METADATA = "metadata.csv"


def _reverse(folder: Path) -> None:
    path = folder / METADATA
    path.write_text("".join(reversed(path.read_text("utf-8").splitlines(keepends=True))), "utf-8")


def _remove_row(folder: Path) -> None:
    path = folder / METADATA
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")


def _as_flac(folder: Path) -> None:
    for path in (folder / "wavs").iterdir():
        soundfile.write(path.with_suffix(".flac"), *soundfile.read(path, dtype="int16"))
        path.unlink()


def _as_of_windows(folder: Path) -> None:
    path = folder / METADATA
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))


def _with_spaces(folder: Path) -> None:
    path = folder / METADATA
    path.write_text(path.read_text("utf-8").replace(" ", "  "), "utf-8")


# Name: what is done to a copy of the corpus, further flags, and what is right.
RESUMES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "in another folder": (lambda folder: None, "", RESUMED),
    "with CRLF and a BOM": (_as_of_windows, "", RESUMED),
    "with two spaces": (_with_spaces, "", RESUMED),
    "in reverse order": (_reverse, "", "exit code 2: error: .*another order.*"),
    "as FLAC": (_as_flac, "", "exit code 2: error: .*flac.*"),
    "without a row": (_remove_row, "", "exit code 2: error: .*rows.*"),
    "with another batch size": (lambda folder: None, "--batch-size 2", "exit code 2: error: data.batch_size is 2, .* with 4, .*"),
}  # fmt: skip
# Variables, or what keras.json has; in a home of its own.
ENVIRONMENTS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "plain": ({}, {}, SAME),
    "another backend": ({"KERAS_BACKEND": "torch"}, {}, SAME),
    "legacy Keras": ({"TF_USE_LEGACY_KERAS": "1"}, {}, SAME),
    "keras.json": ({}, {"image_data_format": "channels_first", "floatx": "float16", "epsilon": "0.1", "backend": "jax"}, SAME),
    "unknown flag of XLA": ({"XLA_FLAGS": "--xla_no_such_flag=true"}, {}, "exit code 2: error: .*XLA_FLAGS.*"),
    "C locale, no UTF-8": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}, SAME),
    "broken cluster": ({"TF_CONFIG": "{"}, {}, "exit code 2: error: .*TF_CONFIG.*"),
    "missing home": ({"HOME": "/nonexistent"}, {}, SAME),
}  # fmt: skip


class Runs:
    """Trainings of a lab."""

    def __init__(self, lab: Lab):
        self._lab = lab

    @cached_property
    def _losses(self) -> list[float]:
        return self._losses_of(self._lab.trained)

    @staticmethod
    def _losses_of(run: Path) -> list[float]:
        return [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]

    def resumed(self, name: str) -> str:
        change, flags, _ = RESUMES[name]
        corpus, run = (self._lab.folder / kind / _slug(name) for kind in ("resumed", "runs"))
        shutil.copytree(self._lab.demo, corpus)
        shutil.copytree(self._lab.trained, run)
        change(corpus)
        return _ended(
            *self._lab.train(_slug(name), corpus, "--resume", "--max-steps", "3", *flags.split())
        )

    def trained(self, name: str) -> str:
        variables, keras, _ = ENVIRONMENTS[name]
        home = self._lab.folder / "homes" / name
        (home / ".keras").mkdir(parents=True)
        if keras:
            (home / ".keras/keras.json").write_text(json.dumps(keras))
        environment = {"HOME": str(home), "KERAS_HOME": str(home / ".keras")} | variables
        run = _slug(name)
        ended = _ended(*self._lab.train(run, self._lab.demo, **environment))
        if ended != RESUMED:
            return ended
        losses = self._losses_of(self._lab.folder / "runs" / run)
        return SAME if losses == self._losses else f"the losses {losses}, not {self._losses}"


def _ended(code: int, printed: str) -> str:
    if not code:
        return RESUMED
    messages = [line for line in printed.splitlines() if line.startswith("error: ")]
    last = messages[-1] if messages else printed[-300:]
    return f"exit code {code}: {last}"


def cases(lab: Lab) -> Iterator[Case]:
    runs = Runs(lab)
    for name, (*_, expected) in RESUMES.items():
        yield Case("resumes", name, expected, lambda n=name: runs.resumed(n))
    for name, (*_, expected) in ENVIRONMENTS.items():
        yield Case("environments", name, expected, lambda n=name: runs.trained(n))


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)
