"""What happens to runs in a chaos test: each scenario draws from the case's numbers alone."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from myxtts.checkpoints.files import step_of
from tests.robustness.faults import injection
from tests.robustness.faults.children import Child
from tests.robustness.faults.damage import damage
from tests.robustness.faults.injection import ClockJump, Defect, Injection
from tests.robustness.faults.lab import CHECKPOINT_EVERY, STEPS, UTTERANCES, newest_step
from tests.robustness.faults.trial import STOPS, Interrupt, Trial

# Parts of the paths of a run folder: where a named point may be.
PLACES = (
    "",
    *(
        ".partial-step step-0000 state.json model.safetensors optimizer.safetensors"
        " averages.safetensors checkpoints metrics.jsonl config.yaml run.json timeline.json"
        " report.html index.html log.txt manifest- rejected.csv pcm- tensorboard .lock"
    ).split(),
)
LINES = ("corpus", "placement", "threads", "feed ")
LINES += (*(f"step {step:6d} |" for step in range(1, STEPS + 1)), "time  ")
MAX_INTERRUPTS = 3
TMPFS_KIB = (16, 700)  # a whole run takes about 600
DAY_S = 86_400.0


def interrupts(trial: Trial) -> None:
    """Kill, stop, terminate or interrupt a run, at named points or at random, and resume it."""
    keep = "--keep-checkpoints", str(trial.random.choice((1, 2, 9)))
    numbers = (*[signal.SIGKILL] * 3, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
    ends = STOPS | {signal.SIGKILL: 128 + signal.SIGKILL}
    for _ in range(trial.random.randint(1, MAX_INTERRUPTS)):
        number = trial.random.choice(numbers)
        codes = [0, ends[number]] if number in ends else [0]
        moment = _moment(trial.random, number)
        kind = "interrupts" if isinstance(moment, Interrupt) else "arms"
        trial.train(str(moment), *keep, codes=codes, **{kind: [moment]})
    trial.finish_run("undisturbed", *keep)


def _moment(source: random.Random, number: int) -> Interrupt | Injection:
    kind = source.choice(("point", "point", "line", "time"))
    if kind == "point":
        calls, place = (source.choice(injection.CHANGING),), source.choice(PLACES)
        return Injection(calls, place, source.choice((1, 2, 3, 5, 8, 13)), signal=number)
    pause_s = source.uniform(0.2, 3.0)
    if kind == "line":
        return Interrupt(number, line=source.choice(LINES), pause_s=pause_s)
    return Interrupt(number, fraction=source.uniform(0.0, 1.1), pause_s=pause_s)


def damaged_run(trial: Trial) -> None:
    """Damage a file of a run folder, remove the checkpoints that the message names, and resume."""
    without = trial.random.choice(((12,), (12,), (9, 12)))
    trial.copy_template(without)
    newest = trial.run_dir / "checkpoints" / f"step-{STEPS - CHECKPOINT_EVERY * len(without):06d}"
    files = sorted(path for path in trial.run_dir.rglob("*") if path.is_file())
    of_newest = [path for path in files if path.parent == newest]
    others = [path for path in files if path.parent.parent != newest.parent]
    path = trial.random.choice([*of_newest, *of_newest, *others])
    # Its bytes have no checksum: reading a large corpus at each start takes too long.
    if path.name.startswith("pcm-"):
        path.write_bytes(path.read_bytes()[: trial.random.randrange(path.stat().st_size)])
        trial.steps.append(f"{path.name}: cut")
    else:
        trial.steps.append(damage(path, trial.random))
    caches = ("--cache-dataset",) * trial.random.randint(0, 1)
    trial.faults += 1
    for _ in range(2):
        finished = trial.train("resumed", *caches, codes=(0, 2), checks_start=False)
        if finished.code != 2:
            break
        removed = _follow_advice(trial, finished.message)
        if not removed:
            trial.fail("message", f"its advice leads no further: {finished.message!r}")
            return
        trial.steps.append(f"removed {removed}, as the message says")
    if finished.code == 0:
        # A changed digit in a curve is not damage that can be seen.
        trial.check_equal(*((True, step_of(newest)) if path.name == "metrics.jsonl" else ()))


def _follow_advice(trial: Trial, message: str) -> list[str]:
    """Remove the files that a message tells to remove or to move away; return their names."""
    named = message.rpartition("emove ")[2].rstrip(".")
    if "ove it away" in message:
        named = message.partition(": ")[0]
    paths = [path for path in map(Path, re.findall(r"[^\s,]+", named)) if path.is_absolute()]
    inside = [path for path in paths if trial.run_dir in path.parents and path.exists()]
    for path in inside:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [path.name for path in inside]


def full_disk(trial: Trial) -> None:
    """Fill the disk in a run, then free it and resume."""
    means = trial.random.choice(("tmpfs", "ENOSPC", "EDQUOT", "limit"))
    arms: list = []
    if means == "limit":
        sizes = (20_000, 40_000, 60_000, 100_000)
        arms = [injection.SizeLimit(trial.random.choice(sizes))]
    elif means != "tmpfs":
        places = ("", "", "checkpoints", "step-0000", "metrics.jsonl", "tensorboard")
        places += ("report.html", "timeline.json")
        number, nth = getattr(errno, means), trial.random.randint(1, 120)
        place = trial.random.choice(places)
        arms = [Injection(injection.GROWING, place, nth, error=number, lasting=True)]
    size_kib = trial.random.randint(*TMPFS_KIB)
    with _small_disk(trial.runs, size_kib if means == "tmpfs" else 0) as enlarge:
        what = "; ".join(map(str, arms)) or f"a disk of {size_kib} KiB"
        trial.faults += not arms
        finished = trial.train(what, arms=arms, codes=(0, 2))
        if "gpu-memory" in finished.err + finished.out:
            trial.fail("message", f"a full disk is taken for memory: {finished.err!r}")
        enlarge()
        trial.finish_run("with space", may_lack_lines=True)


@contextmanager
def _small_disk(folder: Path, size_kib: int) -> Iterator:
    """Mount a file system of a size on a folder, if root may; yield what makes it large."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)]
    if not size_kib or subprocess.run(mount, capture_output=True).returncode:
        yield lambda: None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def read_only(trial: Trial) -> None:
    """Refuse changes of a part of the run folder from a moment on, then allow them and resume."""
    number = trial.random.choice((errno.EROFS, errno.EACCES, errno.EPERM))
    place, nth = trial.random.choice(PLACES), trial.random.choice((1, 1, 2, 3, 8, 20))
    arm = Injection(("create", "mkdir", "rename", "unlink"), place, nth, error=number, lasting=True)
    trial.train(str(arm), arms=[arm], codes=(0, 2))
    trial.finish_run("with rights", may_lack_lines=True)


def input_output_errors(trial: Trial) -> None:
    """Let reading or writing fail with EIO, once or from then on; then resume."""
    call = trial.random.choice(("write", "fsync", "rename", "create", "unlink", "read", "open"))
    place, nth = trial.random.choice(PLACES), trial.random.choice((1, 1, 2, 3, 5, 8, 20))
    arm = Injection((call,), place, nth, error=errno.EIO, lasting=trial.random.random() < 0.5)
    if call in ("read", "open") and trial.random.random() < 0.5:
        trial.copy_template(without=(12,))
    trial.train(str(arm), arms=[arm], codes=(0, 2))
    trial.finish_run("on a sound disk", may_lack_lines=True)


def clock_jumps(trial: Trial) -> None:
    """Let the clock of the day jump by seconds or by years, forwards or back."""
    seconds = trial.random.choice((1.0, 3600.0, DAY_S, 3650 * DAY_S))
    jump = ClockJump(seconds * trial.random.choice((1.0, -1.0)), trial.random.randint(1, 60))
    flags = trial.random.choice(((), ("--validate-every", "4")))
    finished = trial.train(str(jump), *flags, arms=[jump])
    if finished.code == 0:
        trial.check_equal()


def planted_defect(trial: Trial) -> None:
    """Plant a defect in the report of a step: a traceback, after saving. Then resume."""
    defect = Defect(trial.random.randint(1, STEPS))
    finished = trial.train(str(defect), arms=[defect], codes=(1,), planted="KeyError: 'planted'")
    newest = newest_step(trial.run_dir)
    if finished.code == 1 and newest < defect.step:
        trial.fail("lost steps", f"{newest} is saved, but the defect was at step {defect.step}")
    trial.finish_run("without the defect", may_lack_lines=True)  # that of the defective report


def two_starts(trial: Trial) -> None:
    """Start a run twice at almost the same time; one trains, or the other when it is done."""
    resume = ["--resume"] if trial.random.random() < 0.6 else []
    if resume and trial.random.random() < 0.5:
        trial.copy_template(without=(12,))
    late_s = trial.random.uniform(0.1, 1.5) * trial.lab.seconds
    between_s = trial.random.choice((0.0, 0.0, 0.05, late_s))
    trial.steps.append(f"two starts {between_s:.2f} s apart {' '.join(resume)}")
    trial.faults += 1
    first = trial.start(resume)
    time.sleep(between_s)
    second = trial.start(resume)
    while (first.poll() is None or second.poll() is None) and not second.exceeds(trial.limit_s):
        time.sleep(0.05)
    finished = [trial.finish(child, (0, 2)) for child in (first, second)]
    if 0 in [program.code for program in finished]:
        trial.check_equal()
    else:
        errors = [program.err for program in finished]
        trial.fail("exit code", f"neither of two starts trained: {errors}")


def bad_audio(trial: Trial) -> None:
    """Take a file of the corpus away in mid-epoch, or change it; put it back and resume."""
    corpus = trial.folder / "corpus"
    shutil.copytree(trial.lab.corpus.parent, corpus)
    victim = corpus / f"u{trial.random.randrange(UTTERANCES)}.wav"
    kinds = ("deleted", "cut", "empty", "replaced", "a folder", "a loop", "no sound", "EIO")
    kind = trial.random.choice(kinds)
    line = f"step {trial.random.randint(1, STEPS - 2):6d} |"
    caches = ("--cache-dataset",) * (trial.random.random() < 0.2)
    # The cache is decoded.
    decoding = ("--no-use-tf-native-loading",) * (trial.random.randint(0, 1) and not caches)
    arms = []
    if kind == "EIO":
        calls = ("open", "read")
        arms = [Injection(calls, victim.name, 20, error=errno.EIO, lasting=True, root=corpus)]
    content, is_done = victim.read_bytes(), False

    def spoil(child: Child) -> None:
        nonlocal is_done
        if not is_done and not arms and line in child.output():
            is_done = True
            _spoil(victim, kind, content, trial.random)

    trial.faults += not arms
    what = f"{victim.name} {kind} at '{line}' {' '.join(decoding)}"
    keywords = {"corpus": corpus / "corpus.csv", "meanwhile": spoil}
    finished = trial.train(what, *caches, *decoding, arms=arms, codes=(0, 2), **keywords)
    if victim.is_dir() and not victim.is_symlink():
        victim.rmdir()
    victim.unlink(missing_ok=True)
    victim.write_bytes(content)
    if kind == "replaced":  # by audio of the same length: the run may have trained on it
        return
    # At the start: rejected.csv.
    is_named = victim.name in finished.message or "cannot be used" in finished.message
    if finished.code == 2 and not is_named:
        trial.fail("message", f"it does not name {victim.name}: {finished.message!r}")
    trial.finish_run("with the file", *decoding, corpus=corpus / "corpus.csv")


def _spoil(path: Path, kind: str, content: bytes, source: random.Random) -> None:
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a loop":
        os.symlink(path, path)
    elif kind != "deleted":
        contents = {
            "cut": lambda: content[: source.randrange(len(content))],
            "empty": bytes,
            "replaced": lambda: content[:44] + bytes(len(content) - 44),
            "no sound": lambda: source.randbytes(len(content)),
        }
        path.write_bytes(contents[kind]())
