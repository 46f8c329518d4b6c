"""Train in each placement on virtual GPUs that compute nothing, where each kernel and each copy
lasts for as long as a table of costs says, and compare the time of a step with what the planner
predicts from the stages alone:

    python tests/robustness/virtual_times.py
    python tests/robustness/virtual_times.py --tasks tts --scale 8000   # on a busy machine

P, T, C and A are the seconds to make a batch, to copy it, of a step and of an all-reduce, each
alone, measured on GPU 0 (P) and GPU 1 (C) as `--placement auto` does. `bound` is the time of a step
divided by the larger of P, times the replicas that a producer feeds, and C + A; a GPU that does
both takes P + C + A. `predicted` is the error of the planner, which knows the speeds. `wait` is the
share of time that training waited for batches, as a run reports it, and `idle` that in which GPU 1
does not train, by C. `host` is the processor time of the process in the steps, relative to their
time on two cores: from 0.7 on, the host cannot keep up. Unlike GPUs with shares are in
virtual_shares.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SPEEDS = ("1 1 1 1", "0.5 1 1 1", "1 0.5 1 1")
# Launches last as long as the host needs for them: at a scale of hundreds, waiting 4 us for each
# would keep both cores busy.
COSTS = {"launch_us": 0, "kernel_us": 3, "gflops": 15_000, "memory_gbps": 1_300}
COSTS |= {"copy_us": 10, "link_gbps": 20, "costs_only": True}
PLACEMENTS = {
    "dual": "--data-gpu 0 --model-gpu 1",
    "single": "--data-gpu 0 --model-gpu 0",
    "replicas": "--model-gpus 0 1",
    "three replicas": "--data-gpu 0 --model-gpus 1 2 3",
}
# Batches of a stage alone; steps of a run in which the feed empties that was filled while the step
# was traced; and steps that are measured, of which a batch more or less in the feed is 5 %.
MEASURED, WARM_UP, STEPS = 10, 10, 20
# TensorFlow waits in a thread for some kernels of virtual GPUs. With two threads, two GPUs that are
# waited for keep the third one idle.
FLAGS = "--model-size tiny --buckets 1 --validate-every 0 --sample-every 0 --inter-op-threads 8"
FLAGS_OF = {
    "tts": "--text-frontend characters --reference-seconds 0.5 --alignment-search host",
    "asr": "--text-frontend characters",
    "vocoder": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=FLAGS_OF, default=["tts", "vocoder"])
    parser.add_argument("--speeds", nargs="+", default=SPEEDS)
    parser.add_argument("--placements", nargs="+", choices=PLACEMENTS, default=[*PLACEMENTS][:3])
    parser.add_argument("--scale", type=float, default=1000.0)
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is printed")
    parser.add_argument("--network", action="store_true", help="of a tts: train a network, no toy")
    options = parser.parse_args()
    # Forks of one process, which has imported what takes seconds, and no device.
    arguments = ["-m", "tests.virtual_gpu", "--gpus", "4", "--", "-c", CHILD]
    command = [sys.executable, *arguments, json.dumps(vars(options))]
    return subprocess.run(command, cwd=ROOT).returncode


CHILD = """
import argparse, json, sys
from tests.robustness.virtual_times import run_all
sys.exit(run_all(argparse.Namespace(**json.loads(sys.argv[1]))))
"""


def run_all(options: argparse.Namespace) -> int:
    import myxtts.trial.steps  # noqa: F401 - before the forks
    from tests.sine_corpus import write_corpus
    from tests.virtual_gpu import variables

    costs = COSTS | {"scale": options.scale}
    header = "task | speeds | placement | P | T | C | A | step, s | bound | predicted | wait"
    print(f"| {header} | idle | host |\n{'|---' * 13}|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, code = Path(name), 0
        write_corpus(folder / "corpus", [0.6 + 0.05 * (i % 13) for i in range(16)])
        for task in options.tasks:
            for of_gpus in options.speeds:
                profile = folder / "profile"
                for placement in options.placements:
                    fork = os.fork()
                    if not fork:
                        os.environ.update(variables(costs | {"speeds": of_gpus}))
                        row = measure(folder, task, placement, of_gpus.split(), profile, options)
                        print(f"| {task} | {of_gpus} | {placement} | {row} |", flush=True)
                        os._exit(0)
                    code = code or os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    return code


def measure(
    folder: Path,
    task: str,
    placement: str,
    speeds: list[str],
    profile: Path,
    options: argparse.Namespace,
) -> str:
    """Return the figures of a row; dual placement writes the profile for the others."""
    import pickle
    from contextlib import ExitStack

    import numpy as np

    from fakes.toy_models import toy_models
    from myxtts.commands import train
    from myxtts.placement.bound import Speeds
    from myxtts.tasks.tts.network import SIZES, XTTSSize
    from myxtts.tasks.vocoder import network as vocoder
    from myxtts.trial import candidates as planner
    from myxtts.trial import steps as measure
    from myxtts.trial.stages import StageProfile

    argv = f"--task {task} --train-data {folder}/corpus/corpus.csv {FLAGS} {FLAGS_OF[task]}"
    argv += f" --batch-size 2 {PLACEMENTS[placement]}"
    config, _ = train.parse(argv.split())
    with ExitStack() as stack:
        if not options.network:
            stack.enter_context(toy_models())
        voice = XTTSSize(16, 0, 0, flow_blocks=1, heads=2, latents=2)
        stack.enter_context(mock.patch.dict(SIZES, tiny=voice))
        small = vocoder.VocoderSize(channels=8, blocks=1, pitch_channels=8, pitch_blocks=1)
        stack.enter_context(mock.patch.dict(vocoder.SIZES, tiny=small))
        stack.enter_context(mock.patch.object(measure, "WARM_UP", WARM_UP))
        run = stack.enter_context(measure.open_run(config, max_replicas=sys.maxsize))
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measure.measurement_window(pipeline, MEASURED)
        if placement == "dual":
            times, features = measure.measure_isolated(run, pipeline, window)
            fixed = measure.measure_fixed(run, window, features, times)
            all_reduce_s = measure.measure_all_reduce(run)
            found = StageProfile(times, all_reduce_s, fixed=fixed)
            profile.write_bytes(pickle.dumps(found))
        found = pickle.loads(profile.read_bytes())
        began_s = time.process_time()
        totals = [
            measure._run_together(run, run.step, pipeline, STEPS, measure.Timeline())
            for _ in range(options.repeats)
        ]
        # Of all steps, those of the warm-up included.
        host = (time.process_time() - began_s) / (2 * options.repeats * (WARM_UP + STEPS))
        total = sorted(totals, key=lambda each: each.busy_s)[options.repeats // 2]
    step_s, replicas = total.busy_s / STEPS, len(run.placement.routes)
    times_s = [
        float(np.median(getattr(found.times, f"{stage}_s")))
        for stage in ("produce", "transfer", "step")
    ]
    produce_s, _, c_s = times_s
    feeds = replicas if placement == "three replicas" else 1
    bound_s = max(feeds * produce_s, c_s + found.all_reduce_s * (replicas > 1))
    if placement in ("single", "replicas"):
        bound_s = produce_s + c_s + found.all_reduce_s * (replicas > 1)
    # The profile has P of GPU 0 and C of GPU 1.
    relative = [tuple(float(each) / float(speeds[i]) for each in speeds) for i in (0, 1)]
    relative.append((found.fixed,) * len(speeds))
    rows = run.setup.corpora.training.plan.batch_sizes.sum(axis=0).tolist()
    candidate = planner.Candidate(config.placement, run.placement, Speeds(*relative), tuple(rows))
    workers = config.data.num_workers
    mean_s = found.times.mean_s(workers)
    predicted_s = candidate.bound(mean_s, workers, found.all_reduce_s).batch_s
    figures = " | ".join(f"{seconds:.3f}" for seconds in (*times_s, found.all_reduce_s, step_s))
    of_planner = f"{replicas * predicted_s / step_s - 1:+.1%}"
    wait = f"{total.wait_share:.1%}"
    idle = f"{max(0.0, 1 - c_s / step_s):.1%}" if replicas == 1 else ""
    columns = f"{figures} | {step_s / bound_s:.3f} | {of_planner} | {wait} | {idle}"
    return f"{columns} | {host / step_s:.2f}"


if __name__ == "__main__":
    sys.exit(main())
