"""Trials of other settings for the slowest stage of a run."""

import numpy as np
import tensorflow as tf

from myxtts.batch import Batch, first_rows
from myxtts.throughput.advice import candidates
from myxtts.throughput.analysis import Trials
from myxtts.throughput.isolated_stages import SampleBatches, time_reading, time_step
from myxtts.throughput.model import StageTimes
from myxtts.throughput.profiled_run import MeasurementWindow, ProfiledRun
from myxtts.training.setup import make_step

# a stage is tried with other settings if it takes this fraction of the slowest stage's time
TRIAL_THRESHOLD = 0.9
REPEATS = 5


def try_settings(
    run: ProfiledRun, window: MeasurementWindow, samples: SampleBatches, isolated: StageTimes
) -> Trials:
    """Measure other settings of the slowest stages."""
    data = run.setup.config.data
    read_s, step_s = isolated.read_s.sum(), isolated.step_s.sum()
    slow_s = TRIAL_THRESHOLD * max(
        read_s, isolated.produce_s.sum(), isolated.transfer_s.sum(), step_s
    )
    changes = candidates("read", data, not run.setup.between_devices, run.setup.gpu_count)
    num_workers = next(
        (change["num_workers"] for change in changes if "num_workers" in change), None
    )
    more_workers_s = None
    if read_s > slow_s and num_workers is not None:
        more_workers_s = try_workers(run, window, isolated, num_workers)
    tries_step = step_s > slow_s and not data.enable_static_shapes
    step_trials = (
        try_steps(run, samples[window.most_frequent_bucket][0]) if tries_step else Trials()
    )
    return step_trials._replace(more_workers_s=more_workers_s)


def try_workers(
    run: ProfiledRun, window: MeasurementWindow, isolated: StageTimes, num_workers: int
) -> float:
    """Return the seconds between two batches with another number of workers."""
    # The first pass has brought the files into the host's memory. Both passes here read them from
    # there.
    current_s, changed_s = (
        time_reading(run.setup.training_pipeline(synchronize=True, **change), window)[0].mean()
        for change in ({}, {"num_workers": num_workers})
    )
    return float(isolated.read_s.mean() * changed_s / current_s)


def try_steps(run: ProfiledRun, batch: Batch) -> Trials:
    """Measure steps with static shapes and steps on half the rows, alternating with steps of the
    run.
    """
    setup = run.setup
    static = setup.config.data.model_copy(update={"enable_static_shapes": True})
    static_step = make_step(setup.config.model_copy(update={"data": static}), setup.state)
    rows = len(batch["frames"])
    with tf.device(run.route.data):
        half = first_rows(batch, setup.state.model.BATCH_FIELDS, rows // 2)
    variants = [(run.step, batch), (static_step, batch), (run.step, half if rows > 1 else batch)]
    times_s = [
        [time_step(setup, step, [variant]) for step, variant in variants]
        for _ in range(REPEATS + 1)
    ]
    # The first calls trace. Of the others the fastest counts: other programs can only add time.
    full_s, static_s, half_s = np.min(times_s[1:], axis=0)
    row_s = (full_s - half_s) / (rows - rows // 2)
    fixed_fraction = float(np.clip(1.0 - row_s * rows / full_s, 0.0, 1.0)) if rows > 1 else None
    return Trials(static_shapes_ratio=float(static_s / full_s), fixed_fraction=fixed_fraction)
