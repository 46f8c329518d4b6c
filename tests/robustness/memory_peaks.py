"""Compare the memory that the preflight forecasts for each GPU with the peak of a run on it, as
TensorFlow's allocator counts it. It needs GPUs, real ones or virtual ones:

    python -m tests.virtual_gpu --memory-mib 65536 --costs-only --scale 0 -- \\
        tests/robustness/memory_peaks.py --tasks tts asr vocoder --sizes tiny

GPU 0 makes batches and observes, GPU 1 trains. The forecast is the least memory with which `myxtts
preflight` passes: the peak of its heaviest steps and observation, and its headroom.
The peak is that of a run with full buffers, which copies its weights and validates the heaviest
held-out batch beside each step.
Each task and size has a process of its own. Virtual GPUs that compute nothing allocate what others
do; the memory that kernels use while they run, cuDNN's workspace for instance, is not seen there.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SECONDS = tuple(0.6 + 0.1 * i for i in range(13))
STEPS = 30
FULL_S = 600.0
FLAGS = "--data-gpu 0 --model-gpu 1 --batch-size 4 --buckets 2 --validation-fraction 0.25"
FLAGS += " --validate-every 3 --sample-every 0"
# A vocoder reads no texts, and a voice alone has references.
FLAGS_OF = {
    "tts": "--text-frontend characters --reference-seconds 1",
    "asr": "--text-frontend characters",
    "vocoder": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(FLAGS_OF), metavar="TASK")
    parser.add_argument("--sizes", nargs="+", default=["tiny"], metavar="SIZE")
    options = parser.parse_args()
    print("| task | size | GPU | forecast, MiB | peak, MiB | forecast / peak |", flush=True)
    print("|---|---|---|---:|---:|---:|", flush=True)
    code = 0
    for task in options.tasks:
        for size in options.sizes:
            command = [sys.executable, "-c", CHILD, task, size]
            ended = subprocess.run(command, cwd=Path(__file__).parents[2])
            code = code or ended.returncode
    return code


CHILD = """
import sys
from tests.robustness.memory_peaks import compare
from myxtts.base.console import report_errors
sys.exit(report_errors(lambda: compare(*sys.argv[1:])))
"""


def measure(folder: Path, task: str, size: str) -> dict[str, tuple[float, float]]:
    """Return the forecast and the peak of each GPU in MiB."""
    # Imported here, because TensorFlow takes seconds.
    import tensorflow as tf

    from myxtts.batches.plan import Pass
    from myxtts.checkpoints.run_folder import RunFolder
    from myxtts.commands import train
    from myxtts.run.setup import load_run_corpora, open_run
    from myxtts.run.start import resolve_start
    from myxtts.trial.preflight.checks import Report
    from myxtts.trial.preflight.first_steps import HEADROOM, Trial, check_model
    from myxtts.trial.steps import train_steps
    from tests.sine_corpus import write_corpus

    def peaks() -> dict[str, float]:
        info = {name: tf.config.experimental.get_memory_info(name[1:]) for name in names}
        return {name: of_device["peak"] / 2**20 for name, of_device in info.items()}

    write_corpus(folder / "corpus", SECONDS)
    argv = f"--task {task} --model-size {size} --train-data {folder}/corpus/corpus.csv"
    config, _ = train.parse(f"{argv} {FLAGS} {FLAGS_OF[task]}".split())
    start = resolve_start(config, RunFolder(folder / "run"))
    with open_run(start) as run:
        names = [device.name for device in run.placement.devices]
        corpora = load_run_corpora(start, folder, run.replicas.count)
        trial = Report().run("Model", check_model(run, corpora))
        assert isinstance(trial, Trial)
        forecast_mib = peaks()
        trial.batches.clear()
        gc.collect()
        for name in names:
            tf.config.experimental.reset_memory_stats(name[1:])
        setup = trial.setup
        # Where nothing is computed, losses are what was in memory.
        unchecked = mock.patch("myxtts.run.loop.require_finite")
        feed_of_run = trial.pipeline.open_feed(Pass())
        with unchecked, feed_of_run as feed, ThreadPoolExecutor(1) as observer:
            for _ in range(STEPS):
                feed.wait_until_full(FULL_S)
                observed = observer.submit(trial.observe)
                train_steps(setup, trial.step, feed, setup.schedule, 1)
                observed.result()
        peak_mib = peaks()
        return {name: (forecast_mib[name] / (1 - HEADROOM), peak_mib[name]) for name in names}


def compare(task: str, size: str) -> int:
    """Print a row of the table for each GPU."""
    with tempfile.TemporaryDirectory() as name:
        for device, (forecast_mib, peak_mib) in measure(Path(name), task, size).items():
            columns = f"{forecast_mib:,.1f} | {peak_mib:,.1f} | {forecast_mib / peak_mib:.2f}"
            print(f"| {task} | {size} | {device} | {columns} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
