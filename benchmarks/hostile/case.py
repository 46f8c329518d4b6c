"""One case of hostile input: made, called as a command calls it, watched, and judged.

A case is a pure function of (seed, kind, number). Its folder has three parts: `corpus` and `runs`,
which the program may open, and `outside`, which it may not, with files to which the case has links
and paths.
"""

import contextlib
import gc
import io
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from myxtts.commands.console import report_errors

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    "audio": (2_000, "benchmarks.hostile.audio"),
    "metadata": (2_000, "benchmarks.hostile.metadata"),
    "yaml": (1_000, "benchmarks.hostile.yaml_files"),
    "checkpoints": (1_000, "benchmarks.hostile.checkpoints"),
    "texts": (1_500, "benchmarks.hostile.texts"),
}
"""Kind -> number of cases, 7,500 in all, and the module that makes them."""

LIMIT_S = 2.0
HANG_S = (
    10.0  # a case is interrupted then, without the time in which other processes had the processor
)
MEMORY_MIB = 512  # by which the resident memory may grow at its peak
MESSAGE_CHARACTERS = 4_000
MARK = "/hostile-input"  # a path that does not exist: attempts to open it are marks for strace
BIDIRECTIONAL = (
    "LRE",
    "RLE",
    "PDF",
    "LRO",
    "RLO",
    "LRI",
    "RLI",
    "FSI",
    "PDI",
)  # classes of Unicode's controls
PLACES = ("corpus", "runs", "outside")
OPENED = ("corpus", "runs")

# What the program may read beside the folders of the case: itself, Python, its packages, and the
# system's libraries.
PROGRAM = (
    *(str(ROOT / name) for name in ("myxtts", "configs", "benchmarks", "tests")),
    *{os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)},
    *(
        sys.prefix,
        "/usr/lib",
        "/usr/local/lib",
        "/usr/share/zoneinfo",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
    ),
    *("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/localtime"),
)
_WRITING = re.compile("[wax+]")
_CHANGES = {
    *(
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.symlink",
        "os.link",
        "os.truncate",
        "os.chmod",
    ),
    *("os.chown", "os.utime"),
}
_LISTS = {"os.listdir", "os.scandir"}


class Place(NamedTuple):
    """The folders of a case."""

    corpus: Path
    runs: Path
    outside: Path


Call = Callable[[], object]
Prepare = Callable[[random.Random, Place], Call]


@dataclass
class Outcome:
    """What a case did.

    Attributes:
        code: exit code of the program; None if it did not end by itself.
        seconds: of the call, without the time to make the case, and without the time in which other
            processes had the processor that its thread waited for (Linux tells it).
        wall_s, cpu_s: wall time, and processor time of all threads.
        memory_mib: growth of the resident memory at its peak; 0 where it was not measured.
        message: of the user error.
        faults: what is wrong, empty for a case that passed.
    """

    kind: str
    number: int
    code: int | None = None
    seconds: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mib: float = 0.0
    message: str = ""
    faults: list[str] = field(default_factory=list)


class Hang(BaseException):
    """A case did not end."""


def run_case(kind: str, number: int, seed: int, folder: Path, in_worker: bool = False) -> Outcome:
    """Make a case in `folder`, whose content is removed first, and run it in this process.

    Args:
        in_worker: measure the memory, and mark begin and end of the case for strace.
    """
    outcome = _run(kind, number, seed, folder, in_worker)
    if (
        outcome.seconds > LIMIT_S and outcome.code is not None
    ):  # perhaps other processes delayed its threads
        again = _run(kind, number, seed, folder, in_worker)
        outcome = min(outcome, again, key=lambda outcome: outcome.seconds)
    if outcome.seconds > LIMIT_S:
        outcome.faults.append(
            f"slow: {outcome.seconds:.1f} s, {outcome.cpu_s:.1f} s of processor time"
        )
    if outcome.memory_mib > MEMORY_MIB:
        outcome.faults.append(f"memory: {outcome.memory_mib:,.0f} MiB")
    return outcome


def _run(kind: str, number: int, seed: int, folder: Path, in_worker: bool) -> Outcome:
    place, outcome = make_place(folder), Outcome(kind, number)
    call = prepare(kind, number, seed, place)
    opens = Opens(folder)

    def program() -> int:
        call()
        return 0

    gc.collect()
    before_mib = _reset_peak() if in_worker else 0.0
    _mark(kind, number, in_worker)
    began_s = _times_s()
    out, errors = io.BytesIO(), io.BytesIO()
    try:
        with _console(out, errors), opens.recorded(), _alarm(HANG_S):
            outcome.code = report_errors(program)
    except Hang:
        outcome.faults.append(f"hang: not done after {HANG_S:g} s, at {_where()}")
    except BaseException as error:  # whatever is raised is the finding
        outcome.faults.append(
            f"traceback: {type(error).__name__}: {str(error)[:200]!r} at {_where()}"
        )
    outcome.wall_s, outcome.cpu_s, waited_s = (
        end - begin for begin, end in zip(began_s, _times_s(), strict=True)
    )
    outcome.seconds = outcome.wall_s - waited_s
    _mark(kind, "end", in_worker)
    outcome.memory_mib = _peak_mib() - before_mib if in_worker else 0.0
    outcome.faults += [f"opened: {path}" for path in opens.forbidden]
    outcome.message = errors.getvalue().decode("utf-8", errors="backslashreplace")
    outcome.faults += _faults_of_console(
        outcome.code, outcome.message, out.getvalue().decode("utf-8", "replace")
    )
    shutil.rmtree(folder / "case", ignore_errors=True)
    return outcome


def _mark(kind: str, name: object, is_on: bool) -> None:
    with contextlib.suppress(OSError):
        if is_on:
            os.open(f"{MARK}/{kind}/{name}", os.O_RDONLY)


def prepare(kind: str, number: int, seed: int, place: Place) -> Call:
    """Write the files of a case, and return the call."""
    return import_module(KINDS[kind][1]).prepare(draw_of(kind, number, seed), place)


def draw_of(kind: str, number: int, seed: int) -> random.Random:
    """Return the source of all that is random in a case."""
    return random.Random(f"{seed}:{kind}:{number}")


def make_place(folder: Path) -> Place:
    shutil.rmtree(folder / "case", ignore_errors=True)
    place = Place(*(folder / "case" / name for name in PLACES))
    for path in place:
        path.mkdir(parents=True)
    return place


def _faults_of_console(code: int | None, message: str, log: str) -> list[str]:
    """Return what is wrong with an exit code, the message on stderr and the log on stdout."""
    faults = []
    if code not in (0, 2, None):
        faults.append(f"exit code: {code}")
    if code == 2 and not message.startswith("error: "):
        faults.append(f"message: {message[:100]!r}")
    if code == 2 and len(message.split()) < 4:
        faults.append(f"short message: {message!r}")
    if code == 0 and message:
        faults.append(f"message without an error: {message[:200]!r}")
    if len(message) > MESSAGE_CHARACTERS:
        faults.append(f"long message: {len(message):,} characters, {message[:100]!r}")
    if len(longest := max(log.split("\n"), key=len)) > MESSAGE_CHARACTERS:
        faults.append(f"long log line: {len(longest):,} characters, {longest[:100]!r}")
    if "Traceback" in message + log:
        faults.append("traceback in the console")
    if unprintable := sorted({character for character in message + log if _is_control(character)}):
        faults.append(f"control characters in the console: {unprintable[:10]}")
    return faults


def _is_control(character: str) -> bool:
    """Whether a terminal would act on a character, or show the characters beside it in another
    order.
    """
    is_control = (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t"
    )
    return is_control or unicodedata.bidirectional(character) in BIDIRECTIONAL


def _where() -> str:
    """Return the innermost frames of the error that is handled, those of the package first
    of all.
    """
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT / "myxtts"))]
    shown = (
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in [*own[-2:], *frames[-1:]]
    )
    return " > ".join(dict.fromkeys(shown))


@contextlib.contextmanager
def _console(out: io.BytesIO, errors: io.BytesIO) -> Iterator[None]:
    """Take what is written on the console, which is strict as that of a user with UTF-8."""
    stdout = io.TextIOWrapper(out, "utf-8", errors="strict", write_through=True)
    stderr = io.TextIOWrapper(errors, "utf-8", errors="backslashreplace", write_through=True)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            yield
    finally:
        stdout.detach(), stderr.detach()  # or they would close what they write to


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread after a time of its own; a read of a pipe is interrupted, a
    loop in C is not.
    """
    began_s = _times_s()

    def ring(*_: object) -> None:
        wall_s, _, waited_s = (end - begin for begin, end in zip(began_s, _times_s(), strict=True))
        if wall_s - waited_s >= seconds:
            raise Hang
        signal.setitimer(signal.ITIMER_REAL, max(seconds - wall_s + waited_s, 0.1))

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Opens:
    """What Python opens outside of the folders of a case: the audit event comes before the call.

    Files that C libraries open by themselves raise no event; strace sees those.
    """

    _recording: "Opens | None" = None
    _is_installed = False

    def __init__(self, folder: Path):
        self.forbidden: list[str] = []
        case = os.path.realpath(folder / "case")
        self._allowed = tuple(os.path.join(case, name, "") for name in OPENED)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        if not Opens._is_installed:
            sys.addaudithook(Opens._hook)  # stays until the process ends
            Opens._is_installed = True
        Opens._recording = self
        try:
            yield
        finally:
            Opens._recording = None

    @staticmethod
    def _hook(event: str, arguments: tuple) -> None:
        if Opens._recording is not None and (
            event == "open" or event in _CHANGES or event in _LISTS
        ):
            Opens._recording._record(event, arguments)

    def _record(self, event: str, arguments: tuple) -> None:
        if isinstance(arguments[0], int) or arguments[0] is None:
            return
        path = os.fsdecode(arguments[0])
        caller = sys._getframe(2).f_code.co_filename
        if (
            not os.path.isabs(path) and caller == shutil.__file__
        ):  # relative to an open folder without a name
            return
        is_write = event in _CHANGES
        if event == "open":
            _, mode, flags = arguments
            is_write = bool(_WRITING.search(mode or "")) or bool(
                (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
        if not self.allows(os.path.realpath(path), is_write):
            self.forbidden.append(f"{event} {path[-200:]!r}{' to write' * is_write}")

    def allows(self, real_path: str, is_write: bool) -> bool:
        """Whether a path without links may be opened."""
        return f"{real_path}/".startswith(self._allowed) or (
            not is_write and real_path.startswith(PROGRAM)
        )


def _times_s() -> tuple[float, float, float]:
    """Return wall time, processor time of this process, and the time that this thread waited for a
    processor.
    """
    try:
        waited_s = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        waited_s = 0.0
    return time.perf_counter(), time.process_time(), waited_s


def _reset_peak() -> float:
    """Set the peak of the resident memory to what it is now, in MiB, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mib()


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[1]) / 1024
