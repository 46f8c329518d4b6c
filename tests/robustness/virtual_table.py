"""Run what MyXTTS does with GPUs on virtual GPUs and on the CPU, and compare what comes out:

    python tests/robustness/virtual_table.py
    python tests/robustness/virtual_table.py --rows voice synthesis

Each row is a program with the smallest networks or a toy, without soft placement. Rows that need a
trained run read that of the CPU, which must be among the rows or in --folder. `difference` is the
largest one of losses and scores, relative to 1 where they are smaller, or of samples of waves.
Nothing is compared where both sides may do something else: `--placement auto` and the profiler
measure times, and the preflight has no figures.
Exit code 1: a program failed, or something differs by more than its row allows.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SIDES = ("cpu", "virtual")
GPUS = 3
LIMIT_S = 3600  # of a program; most take half a minute on an idle machine
SHORT = "--buckets 2 --max-steps 4 --batch-size 2 --log-every 1 --warmup-steps 2 --sample-every 0"
SHORT += " --validation-fraction 0.25 --validate-every"
SPOKEN = "--text-frontend characters --reference-seconds 0.5 --ode-steps 2 --alignment-search host"
HEARD = "--task asr --text-frontend characters"
DUAL = "--data-gpu 0 --model-gpu 1"
OBSERVED = "--validate-every 2 --sample-every 4"
VOICE, ASR, VOCODER = "{cpu}/voice", "{cpu}/recogniser", "{cpu}/vocoder"
NOT_COMPARED = ("time", "rtf", "real_time_factor", "seconds", "checkpoint", "file", "run", "notes")
SAVED_MODEL = """
import numpy as np, tensorflow as tf
network = tf.saved_model.load("{out}/export")
noise = np.random.default_rng(0).normal(-5.5, 2.0, [1, 40, 80]).astype(np.float32)
inputs = dict(mel=tf.constant(noise), frames=tf.constant([40]), seed=tf.constant([0, 1]))
np.save("{out}/export.npy", network.signatures["serving_default"](**inputs)["wave"].numpy())
"""


class Row(NamedTuple):
    """A command of `myxtts` and its arguments, which follow SHORT.

    Attributes:
        output: file to compare; the metrics of a run by default.
        limit: largest difference allowed; None runs nothing on the CPU.
        toy: whether the network is a toy, since the row is about devices.
        like: row whose run on the CPU is compared instead.
        workers: processes that train together.
    """

    command: str
    arguments: str
    output: str = ""
    limit: float | None = 1e-4
    toy: bool = False
    like: str = ""
    workers: int = 1


ROWS = {
    "voice": Row("train", f"{SPOKEN} {DUAL} {OBSERVED}"),
    "recogniser": Row("train", f"{HEARD} {DUAL} {OBSERVED}"),
    "recogniser of GRUs": Row("train", f"{HEARD} --encoder gru {DUAL}"),
    "vocoder": Row("train", f"--task vocoder {DUAL} {OBSERVED}"),
    "vocoder of a voice": Row(
        "train", f"--task vocoder --teacher {VOICE} --reference-seconds 0.5 {DUAL}", limit=1e-3
    ),
    "voice of a voice": Row("train", f"--teacher {VOICE} {SPOKEN} {DUAL}", limit=1e-3),
    "toy": Row("train", f"{SPOKEN} {DUAL}", toy=True),
    "toy, bfloat16": Row(
        "train", f"{SPOKEN} {DUAL} --precision mixed_bfloat16", limit=0.02, toy=True
    ),
    "toy, float16": Row(
        "train", f"{SPOKEN} {DUAL} --precision mixed_float16", limit=0.02, toy=True
    ),
    "toy, one GPU": Row("train", f"{SPOKEN} --data-gpu 0 --model-gpu 0", toy=True, like="toy"),
    "toy, two GPUs make batches": Row(
        "train", f"{SPOKEN} --data-gpus 0 2 --model-gpu 1", toy=True, like="toy"
    ),
    "toy, observer": Row(
        "train", f"{SPOKEN} {DUAL} --validate-every 2 --observer 2", toy=True, like="toy"
    ),
    "toy, two replicas": Row("train", f"{SPOKEN} --model-gpus 0 1", toy=True),
    "toy, a GPU makes batches of two replicas": Row(
        "train", f"{SPOKEN} --data-gpu 2 --model-gpus 1 0", toy=True, like="toy, two replicas"
    ),
    "toy, two workers": Row(
        "train",
        f"{SPOKEN} --data-gpu 1 --model-gpu 0",
        toy=True,
        like="toy, two replicas",
        workers=2,
    ),
    "toy, --placement auto": Row("train", f"{SPOKEN} --placement auto", limit=None, toy=True),
    "profiler": Row("profile", f"{SPOKEN} {DUAL} --num-steps 4", limit=None, toy=True),
    "preflight": Row("preflight", f"{SPOKEN} {DUAL} --steps 4", limit=None),
    "synthesis": Row(
        "synthesize", f"--run {VOICE} --text abcd --vocoder {VOCODER} --out {{out}}/s.wav", "s.wav"
    ),
    "Griffin-Lim": Row("synthesize", f"--run {VOICE} --text abcd --out {{out}}/g.wav", "g.wav"),
    "transcription": Row(
        "transcribe", f"--run {ASR} --json {{out}}/t.json {{corpus}}/u3.wav", "t.json"
    ),
    **{
        f"evaluation, {name}": Row(
            "evaluate",
            f"--run {run} --utterances 2 --json {{out}}/{name}.json --out {{out}}/{name}",
            f"{name}.json",
            # F0 of an untrained vocoder is the likeliest of bins that are nearly alike.
            0.05,
        )
        for name, run in (("voice", VOICE), ("recogniser", ASR), ("vocoder", VOCODER))
    },
    "times of words": Row(
        "align",
        f"--run {VOICE} --train-data {{corpus}}/corpus.csv --out {{out}}/a",
        "a/alignment.csv",
    ),
    "export": Row("export", f"--run {VOCODER} --out {{out}}/export", "export.npy"),
    "export, ONNX": Row(
        "export", f"--run {VOICE} --vocoder {VOCODER} --format onnx --out {{out}}/onnx", limit=None
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    add("--folder", type=Path, help="keep what the programs write, and run none twice")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        for side in SIDES:
            start = [] if side == "cpu" else ["-m", "tests.virtual_gpu", "--gpus", str(GPUS), "--"]
            code = ["-c", f"from {module_name()} import *; run_rows({side!r}, sys.argv[1:])"]
            arguments = [str(folder.resolve()), *options.rows]
            subprocess.run([sys.executable, *start, *code, *arguments], cwd=ROOT, check=True)
        print("| row | exit code | difference | allowed |\n|---|---:|---:|---:|")
        return int(not all([print_row(folder, name) for name in options.rows]))


def module_name() -> str:
    return ".".join(Path(__file__).resolve().relative_to(ROOT).with_suffix("").parts)


def print_row(folder: Path, name: str) -> bool:
    """Print a row of the table; return whether it is as expected."""
    row = ROWS[name]
    code = (folder / "virtual" / f"{name}.code").read_text()
    found, allowed, is_met = "", "", code == "0"
    if is_met and row.limit is not None:
        first = figures(folder / "cpu", row.like or name, row)
        second = figures(folder / "virtual", name, row)
        assert first and (row.like or first.keys() == second.keys()), (first.keys(), second.keys())
        largest = max(difference(first[name], second[name]) for name in first)
        found, allowed, is_met = f"{largest:.1e}", f"{row.limit:.0e}", largest <= row.limit
    print(f"| {name} | {code} | {found} | {allowed} |", flush=True)
    return is_met


def figures(folder: Path, name: str, row: Row) -> dict[str, float | str]:
    """Return what a program wrote, by names."""
    import numpy as np
    import soundfile

    path = folder / (row.output or f"{folder_name(name)}/metrics.jsonl")
    if path.suffix == ".wav":
        return dict(leaves(soundfile.read(path)[0].tolist()))
    if path.suffix == ".npy":
        return dict(leaves(np.load(path).ravel().tolist()))
    if path.suffix == ".csv":
        return dict(leaves(path.read_text().split()))
    if row.output:
        return dict(leaves(json.loads(path.read_text())))
    found = {}
    for line in map(json.loads, path.read_text().splitlines()):
        losses = {key: value for key, value in line.items() if "loss" in key}
        found |= leaves(losses, f"step {line.get('step')}")
    return found


def leaves(value, name: str = "") -> Iterator[tuple[str, float | str]]:
    """Yield names and values of the numbers and texts in JSON, but for times and paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.endswith("_s") and key not in NOT_COMPARED:
                yield from leaves(inner, f"{name} {key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{name} {number}")
    elif value is not None:
        yield name, value


def difference(first: float | str, second: float | str) -> float:
    if isinstance(first, str) or isinstance(second, str):
        return 0.0 if first == second else math.inf
    return abs(first - second) / max(1.0, abs(first))


# ----------------------------------------------------------- the process of the CPU or of the GPUs


def run_rows(side: str, arguments: list[str]) -> None:
    """Run programs in forks of this process, which has imported what takes seconds."""
    folder, *names = arguments
    commands = (f"myxtts.commands.{row.command}" for row in ROWS.values())
    for module in ("soundfile", "myxtts.run.page", *commands):
        importlib.import_module(module)
    from tests.sine_corpus import write_corpus

    out = Path(folder, side)
    out.mkdir(exist_ok=True)
    if side == "cpu":
        write_corpus(Path(folder, "corpus"), tuple(0.6 + 0.05 * i for i in range(13)))
    for name in names:
        row = ROWS[name]
        if side == "cpu" and (row.like or row.limit is None):
            continue
        if (out / f"{name}.code").exists():
            continue
        began_s = time.monotonic()
        code = run_in_forks(name, side, Path(folder))
        (out / f"{name}.code").write_text(str(code))
        print(
            f"{side}: {name}: {code}, {time.monotonic() - began_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def run_in_forks(name: str, side: str, folder: Path) -> int:
    from myxtts.distributed.cluster import Cluster
    from myxtts.distributed.launcher import local_workers

    row, forks, codes = ROWS[name], [], []
    addresses = local_workers(row.workers)
    for index in range(row.workers):
        fork = os.fork()
        if not fork:
            signal.alarm(LIMIT_S)
            if row.workers > 1:
                os.environ["TF_CONFIG"] = Cluster(addresses, index).tf_config()
            file = os.open(
                folder / side / f"{name}-{index}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            )
            os.dup2(file, 1)
            os.dup2(file, 2)
            os._exit(run_row(name, side, folder))
        forks.append(fork)
    for fork in forks:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    return next(filter(None, codes), 0)


def run_row(name: str, side: str, folder: Path) -> int:
    """Run a program in this process; return its exit code."""
    from fakes.toy_models import toy_models
    from myxtts.base.console import report_errors
    from myxtts.tasks.asr import network as asr
    from myxtts.tasks.tts import network as xtts
    from myxtts.tasks.vocoder import network as vocoder

    row = ROWS[name]
    smallest = {
        xtts: xtts.XTTSSize(16, 0, 0, flow_blocks=1, heads=2, latents=2),
        asr: asr.ASRSize(channels=16, blocks=1, memory=4, order=4),
        vocoder: vocoder.VocoderSize(channels=8, blocks=1, pitch_channels=8, pitch_blocks=1),
    }
    places = {"cpu": folder / "cpu", "out": folder / side, "corpus": folder / "corpus"}
    arguments = row.arguments.format(**places).split()
    if row.command in ("train", "profile", "preflight"):
        fixed = f"{SHORT} 0 --model-size tiny --train-data {folder}/corpus/corpus.csv"
        fixed += f" --run {folder_name(name)} --runs-dir {folder / side}"
        fixed += f" --simulate-gpus {GPUS if side == 'cpu' else 0}"
        arguments = [*fixed.split(), *arguments]
    program = importlib.import_module(f"myxtts.commands.{row.command}")
    with contextlib.ExitStack() as stack:
        for module, size in smallest.items():
            stack.enter_context(mock.patch.dict(module.SIZES, tiny=size))
        if row.toy:
            stack.enter_context(toy_models())
        code = report_errors(lambda: program.main(arguments))
        if name == "export" and code == 0:
            exec(SAVED_MODEL.format(**places))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def folder_name(name: str) -> str:
    return name.replace(",", "").replace(" ", "-").strip("-")


if __name__ == "__main__":
    sys.exit(main())
