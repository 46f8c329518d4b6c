"""Compare the memory that the preflight forecasts for each GPU with the peak of a run on it, as
TensorFlow's allocator counts it. It needs GPUs, real ones or virtual ones:

    python -m tests.virtual_gpu --memory-mib 65536 --costs-only --scale 0 -- \\
        tests/robustness/memory_peaks.py --tasks tts asr vocoder --sizes tiny

GPU 0 makes batches and observes, GPU 1 trains. The forecast is the least memory with which `myxtts
preflight` passes: the peak of its heaviest steps, what it adds for the observer, and its headroom.
The peak is that of a run with full buffers, which observes held-out utterances beside each step.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SECONDS = tuple(0.6 + 0.1 * i for i in range(13))
STEPS = 6
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
from myxtts.commands.console import report_errors
sys.exit(report_errors(lambda: compare(*sys.argv[1:])))
"""


def measure(folder: Path, task: str, size: str) -> dict[str, tuple[float, float]]:
    """Return the forecast and the peak of each GPU in MiB."""
    # Imported here, because TensorFlow takes seconds.
    import tensorflow as tf

    from myxtts.commands import train
    from myxtts.data.batch_plan import Pass
    from myxtts.preflight.checks import Report
    from myxtts.preflight.trial import HEADROOM, Trial, check_model
    from myxtts.throughput.measure import train_steps
    from myxtts.training.observation import VALIDATION, HeldOutWork, Snapshot
    from myxtts.training.runs import RunFolder
    from myxtts.training.schedule import Observation
    from myxtts.training.setup import load_run_corpora, open_run, resolve_start
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
        setup, pipeline, step = trial.setup, trial.pipeline, trial.step
        forecast_mib = peaks()
        forecast_mib[run.placement.observer] += setup.memory.observer_mib
        # It has a batch.
        del trial
        gc.collect()
        for name in names:
            tf.config.experimental.reset_memory_stats(name[1:])
        snapshot = Snapshot.of_run(setup)
        work = HeldOutWork(setup, snapshot, None, None, None)
        work.trace()
        with pipeline.open_feed(Pass()) as feed, ThreadPoolExecutor(1) as observer:
            for number in range(STEPS):
                feed.wait_until_full(FULL_S)
                snapshot.take()
                observation = Observation(number, (VALIDATION,))
                observed = observer.submit(work.observe, observation, None)
                train_steps(setup, step, feed, setup.schedule, 1)
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
