"""Section 6: suspected costs on a GPU: alignment search, float64, waiting, scalars, copies."""

import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import numpy as np
import tensorflow as tf

from benchmarks._mel import log_mel_float32, mel_by_librosa
from benchmarks.proof import configs
from benchmarks.proof.section import Figure, Scope, SectionResult, table
from benchmarks.proof.stages import most_frequent_bucket
from fakes.copies import find_copies
from fakes.toy_models import toy_models
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import log_mel
from myxtts.devicefeed.devices import synchronize
from myxtts.placement.devices import xla_failure
from myxtts.tasks.tts.alignment import search_by_frames
from myxtts.tasks.tts.alignment_choice import compiled, search_of
from myxtts.trial.steps import (
    Batch,
    ProfiledRun,
    measure_isolated,
    measurement_window,
    open_run,
    run_untraced,
    time_step,
)

TITLE = "Suspected costs"
REPEATS, SMALL_REPEATS = 20, 3
STEPS, SMALL_STEPS = 40, 3
TONE_HZ = 300.0
MAX_SEARCH_SHARE = 0.25
MAX_MEL_ERROR = 1e-3
MIN_THROUGHPUT = 0.97  # with waiting, of that without
MAX_SCALAR_SHARE = 0.02


@dataclass(frozen=True)
class Bench:
    """A run whose stages were measured.

    Attributes:
        batch: features of the most frequent bucket.
        waves: loud tones of the same length on the data device, float32 [rows, samples]. In their
            log-mel, rounding errors are the largest, since some bands stay at the floor.
        step_s: seconds of a step on the batch.
    """

    scope: Scope
    run: ProfiledRun
    batch: Batch
    waves: tf.Tensor
    step_s: float

    @property
    def repeats(self) -> int:
        return SMALL_REPEATS if self.scope.small else REPEATS

    @property
    def unless_simulated(self) -> bool | None:
        """What a claim is that holds: simulated GPUs do not show it."""
        return None if self.scope.simulated else True

    def seconds(self, call: Callable[[], tf.Tensor]) -> float:
        """Return the median seconds of a call until its float result is there, after a warm-up."""
        synchronize(call())
        times_s = []
        for _ in range(self.repeats):
            started_s = time.perf_counter()
            synchronize(call())
            times_s.append(time.perf_counter() - started_s)
        return median(times_s)


def run(scope: Scope) -> SectionResult:
    findings = SectionResult(TITLE)
    config = configs.config_of(scope, size="tiny" if scope.small else "normal", data={"buckets": 2})
    with toy_models() if scope.small else nullcontext(), open_run(config) as profiled:
        bench = make_bench(scope, profiled)
        for part in PARTS:
            try:
                part(bench, findings)
            except Exception as error:  # the other costs are still measured
                traceback.print_exc()
                reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
                claim = f"{part.__name__} is measured"
                findings.figures.append(Figure(claim, reason, "measured", "not met"))
            scope.record(findings)
    return findings


def make_bench(scope: Scope, profiled: ProfiledRun) -> Bench:
    pipeline = profiled.setup.training_pipeline(synchronize=True)
    window = measurement_window(pipeline, SMALL_STEPS)
    _, samples = measure_isolated(profiled, pipeline, window)  # traces the step
    batch = samples[most_frequent_bucket(window)][0]
    rows, samples_count = batch["mel"].shape[0], batch["mel"].shape[1] * HOP_SAMPLES
    tone = np.sin(2.0 * np.pi * TONE_HZ / SAMPLE_RATE_HZ * np.arange(samples_count))
    with tf.device(profiled.route.data):
        waves = tf.constant(np.tile(tone, (rows, 1)), tf.float32)
    repeats = SMALL_REPEATS if scope.small else REPEATS
    step_s = median(time_step(profiled.setup, profiled.step, [batch]) for _ in range(repeats))
    return Bench(scope, profiled, batch, waves, step_s)


def alignment_search(bench: Bench, findings: SectionResult) -> None:
    """Time the searches of --alignment-search, and XLA's frame by frame, as a CPU runs it."""
    model = bench.run.route.model
    rows, frames = bench.batch["mel"].shape[:2]
    tokens = int(bench.batch["tokens"].shape[1])
    with tf.device(model):
        score = tf.random.stateless_normal([rows, frames, tokens], [0, 0])
        arguments = score, tf.fill([rows], min(tokens, frames)), tf.fill([rows], frames)
    searches = {"host": search_of("host", model), "loop": tf.function(search_by_frames)}
    if xla_failure(model) is None:  # else LLVM may end the process
        by_frames = compiled(search_by_frames)
        searches |= {"xla": search_of("xla", model), "xla, frame by frame": by_frames}

    def search_on(function: Callable) -> tf.Tensor:
        with tf.device(model):
            return tf.cast(function(*arguments), tf.float32)

    times_s = {name: bench.seconds(lambda: search_on(search)) for name, search in searches.items()}  # noqa: B023
    shares = {name: seconds / bench.step_s for name, seconds in times_s.items()}
    choice = bench.run.setup.implementation_notes["alignment"]
    cells = [(name, f"{1e3 * s:.2f}", f"{shares[name]:.0%}") for name, s in times_s.items()]
    findings.lines += [
        f"Alignment search of {rows} x {frames} frames x {tokens} tokens; a step takes"
        f" {1e3 * bench.step_s:.1f} ms, with its choice: {choice}.",
        *table(("search", "ms", "share of a step"), cells),
    ]
    found = {"shape": [rows, frames, tokens], "step_s": bench.step_s, "times_s": times_s}
    findings.data["alignment_search"] = found
    fastest = min(shares, key=shares.__getitem__)
    findings.add(
        "the alignment search is a small part of a step",
        ", ".join(f"{name} {share:.0%}" for name, share in shares.items()),
        f"the fastest at most {MAX_SEARCH_SHARE:.0%}",
        shares[fastest] <= MAX_SEARCH_SHARE if bench.scope.is_real else None,
    )


def float64_mel(bench: Bench, findings: SectionResult) -> None:
    """Compare log-mel in float64 and float32: time on the data device, error against librosa."""
    wave = bench.waves
    exact = mel_by_librosa(wave[0].numpy())
    rows, results = [], {}
    for name, function in (("float64", log_mel), ("float32", log_mel_float32)):
        compiled = tf.function(function)

        def compute(compiled: Callable = compiled) -> tf.Tensor:
            with tf.device(bench.run.route.data):
                return compiled(wave)

        error = float(np.abs(compute()[0].numpy() - exact).max())
        results[name] = {"seconds": bench.seconds(compute), "error": error}
        rows.append((name, f"{1e3 * results[name]['seconds']:.2f}", f"{error:.1e}"))
    findings.lines += [
        "",
        "Log-mel of a loud tone, against librosa in float64:",
        *table(("STFT in", "ms", "largest error"), rows),
    ]
    findings.data["log_mel"] = results
    gain_s = results["float64"]["seconds"] - results["float32"]["seconds"]
    findings.add(
        "log-mel is as exact as in librosa",
        f"{results['float64']['error']:.1e} ({results['float32']['error']:.1e} in float32)",
        f"at most {MAX_MEL_ERROR:.0e}",
        results["float64"]["error"] <= MAX_MEL_ERROR and bench.unless_simulated,
    )
    saved = f"{1e3 * gain_s:.2f} ms, {gain_s / bench.step_s:.1%} of a step."
    findings.lines.append(f"Float32 would save {saved}")


def waiting_for_the_data_device(bench: Bench, findings: SectionResult) -> None:
    """Compare the training loop with and without the producer waiting for each batch, in turn."""
    steps = SMALL_STEPS if bench.scope.small else STEPS
    make_pipeline = bench.run.setup.training_pipeline
    pipelines = {wait: make_pipeline(synchronize=wait) for wait in (False, True)}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 if bench.scope.small else 2):
        for wait, pipeline in pipelines.items():
            seconds[wait].append(run_untraced(bench.run, pipeline, steps) / steps)
    ratio = min(seconds[False]) / min(seconds[True])
    findings.lines += [
        "",
        f"A step of the training loop takes {1e3 * min(seconds[False]):.2f} ms; where the"
        f" producer waits for it after each batch, {1e3 * min(seconds[True]):.2f} ms.",
    ]
    findings.data["waiting"] = {"without_s": seconds[False], "with_s": seconds[True]}
    findings.add(
        "waiting for the data device in the producer costs no throughput",
        f"{ratio:.3f} of the throughput without waiting",
        f"at least {MIN_THROUGHPUT}",
        ratio >= MIN_THROUGHPUT if bench.scope.is_real else None,
    )


def scalars(bench: Bench, findings: SectionResult) -> None:
    """Time a scalar that is made on the model device, idle and while it computes."""
    size = 256 if bench.scope.small else 4096
    with tf.device(bench.run.route.model):
        factor = tf.ones([size, size])
        product = tf.function(lambda x: tf.linalg.matmul(x, x) / size)

        def scalar_s() -> float:
            started_s = time.perf_counter()
            tf.constant(1.0)
            return time.perf_counter() - started_s

        synchronize(product(factor))
        idle_s = median(scalar_s() for _ in range(bench.repeats))
        busy = []
        for _ in range(bench.repeats):
            started_s = time.perf_counter()
            result = factor
            for _ in range(5):
                result = product(result)
            made_s = scalar_s()
            synchronize(result)
            busy.append((made_s, time.perf_counter() - started_s))
    busy_s, work_s = median(made for made, _ in busy), median(work for _, work in busy)
    findings.lines += [
        "",
        f"A scalar on the model device takes {1e6 * idle_s:.0f} µs where it is idle, and"
        f" {1e6 * busy_s:.0f} µs behind {1e3 * work_s:.1f} ms of queued work.",
    ]
    findings.data["scalars"] = {"idle_s": idle_s, "busy_s": busy_s, "queued_s": work_s}
    share = idle_s / bench.step_s
    findings.add(
        "a scalar on an idle device is cheap",
        f"{1e6 * idle_s:.0f} µs, {share:.1%} of a step; {1e6 * busy_s:.0f} µs behind queued work",
        f"at most {MAX_SCALAR_SHARE:.0%} of a step",
        share <= MAX_SCALAR_SHARE if bench.scope.is_real else None,
    )


def hidden_copies(bench: Bench, findings: SectionResult) -> None:
    """Count the copies between host and GPU memory inside the compiled functions."""
    producer = bench.run.setup.training_pipeline(synchronize=True).producers[0]
    functions = {"producer": [producer.produce], "step": bench.run.step.functions([bench.batch])}
    rows, in_loops = [], []
    for name, concrete in functions.items():
        copies = [copy for function in concrete for copy in find_copies(function)]
        to_host = [copy for copy in copies if copy.to_host]
        in_loops += [copy for copy in to_host if copy.in_loop]
        sources = ", ".join(sorted({copy.source for copy in to_host if copy.source})) or "none"
        rows.append((name, len(to_host), len(copies) - len(to_host), sources))
        findings.data[f"copies_{name}"] = [copy._asdict() for copy in copies]
    findings.lines += [
        "",
        "Copies inside the compiled functions, by their graphs. Those to the host wait for the"
        " GPU:",
    ]
    header = "function | to the host | to the GPU | lines that copy to the host"
    findings.lines += table(header, rows)
    counts = ", ".join(f"{row[1]} in the {row[0]}" for row in rows)
    findings.add(
        "no loop copies to the host in each iteration",
        f"{len(in_loops)} copies to the host in loops; outside: {counts}",
        "0 in loops",
        not in_loops and bench.unless_simulated,
    )


PARTS = (alignment_search, float64_mel, waiting_for_the_data_device, scalars, hidden_copies)
