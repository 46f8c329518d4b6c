"""Section 4: the same training in every placement that the machine allows."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.proof.runs import LEAST_S, NO_TIME, read_reports, run_flags, run_program
from benchmarks.proof.section import Figure, Scope, SectionResult, table
from fakes.toy_models import toy_models
from myxtts.checkpoints.files import Checkpoint, checkpoint_of
from myxtts.commands import train
from myxtts.config.schema import Config, PlacementConfig
from myxtts.devicefeed.errors import UserError
from myxtts.placement.bound import Speeds
from myxtts.placement.settings import named_gpus, plan_routes
from myxtts.trial.auto import MEASURED_STEPS, in_subprocess
from myxtts.trial.candidates import Candidate
from myxtts.trial.stages import StageProfile, StageTimes

TITLE = "Placements"
# A GPU of 8 GB has both, and what CUDA needs.
SPLIT_MIB = {"data_gpu_memory": 1536, "model_gpu_memory": 4096}
MAX_WAIT, MAX_PERIOD_RATIO, MAX_ERROR = 0.01, 1.05, 0.10
MAX_REPLICAS_DIFFERENCE = 1e-5
NO_WAIT = "dual placement does not wait for batches where P < C"
AS_SLOWER = "a step of dual placement takes max(P, C)"
AS_PREDICTED = "the bound of each placement is its throughput"
MEASURE_S = 60.0  # to measure the stages
AT_ONCE = 2  # runs whose time does not matter
SUMMATION = (
    "Two replicas add their gradients in another order than one device that accumulates them, so"
    " the last bits of a sum may differ, and training enlarges such a difference from step to step."
)


class Length(NamedTuple):
    """Sizes of the runs.

    Attributes:
        steps, log_every: of the runs for throughput; the first report is not counted.
        equal_steps: steps after which weights are compared.
        measured_steps: from which the times of the stages are taken.
    """

    model_size: str
    steps: int
    log_every: int
    equal_steps: int
    measured_steps: int


@dataclass
class Case:
    """A placement, and what its runs showed.

    Attributes:
        settings: of `PlacementConfig`.
        problem: why it did not run, or why its run failed.
        period_s: seconds of a step.
        wait: fraction of the time in which the model had no batch.
        predicted_s: the period by its bound, if no stage varied.
        checkpoint: whose weights are compared.
    """

    name: str
    settings: dict[str, Any]
    problem: str = ""
    period_s: float | None = None
    wait: float | None = None
    predicted_s: float | None = None
    checkpoint: Path | None = None

    @property
    def replicas(self) -> int:
        return len(self.settings.get("model_gpus", (0,)))

    @property
    def is_split(self) -> bool:
        return "data_gpu_memory" in self.settings

    @property
    def is_dual(self) -> bool:
        """Whether one GPU makes the batches of another."""
        data, model = (self.settings.get(name) for name in ("data_gpu", "model_gpu"))
        return self.replicas == 1 and data != model

    @property
    def error(self) -> float | None:
        """Relative error of the predicted throughput."""
        if not self.predicted_s or not self.period_s:
            return None
        return self.period_s / self.predicted_s - 1.0

    @property
    def flags(self) -> list[str]:
        flags = []
        for name, value in self.settings.items():
            values = value if isinstance(value, tuple) else (value,)
            flags += [f"--{name.replace('_', '-')}", *map(str, values)]
        return flags

    def to_json(self) -> dict[str, Any]:
        names = ("name", "problem", "period_s", "wait", "predicted_s")
        figures = {name: getattr(self, name) for name in (*names, "error")}
        return figures | {"replicas": self.replicas, "flags": " ".join(self.flags)}


@dataclass
class Findings:
    """What the section has found so far.

    Attributes:
        differences: largest difference of the weights from those of the first placement, by
            placement.
        replicas_difference: largest difference of the weights of two replicas from those of one
            device.
        problems: of comparisons that failed.
        notes: comparisons for which no time was left.
    """

    length: Length
    cases: list[Case]
    stages: StageProfile | None = None
    differences: dict[str, float] = field(default_factory=dict)
    replicas_difference: float | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        (self.notes if NO_TIME in problem else self.problems).append(problem)


def run(scope: Scope) -> SectionResult:
    found = Findings(length_of(scope), cases_of(scope))
    runnable = [case for case in found.cases if not case.problem]
    for case in runnable:
        measure_throughput(scope, found.length, case)
        scope.record(result_of(scope, found))
    compare_weights(scope, found, [case for case in runnable if case.replicas == 1])
    scope.record(result_of(scope, found))
    predict_periods(scope, found, runnable)
    scope.record(result_of(scope, found))
    compare_replicas(scope, found)
    return result_of(scope, found)


def length_of(scope: Scope) -> Length:
    if scope.small:
        return Length("tiny", 3, 1, 3, 2)
    return Length("small", 200, 50, 50, 40) if scope.is_real else Length("tiny", 30, 10, 30, 20)


def cases_of(scope: Scope) -> list[Case]:
    """Return all placements of one to three GPUs, and replicas on all; some cannot run."""
    cases = [
        Case("single", {}),
        Case("dual", {"data_gpu": 0, "model_gpu": 1}),
        Case("one GPU split in two", {"data_gpu": 0, "model_gpu": 0, **SPLIT_MIB}),
        Case("2 replicas", {"model_gpus": (0, 1)}),
        Case("dual, the other way round", {"data_gpu": 1, "model_gpu": 0}),
        Case("dual, 2 replicas", {"data_gpu": 0, "model_gpus": (1, 2)}),
        Case("dual, 2 producers", {"data_gpus": (0, 1), "model_gpu": 2}),
    ]
    if scope.small:
        # As the case before it.
        cases = [case for case in cases if case.settings.get("data_gpu") != 1]
    if scope.gpus > 2:
        cases.append(Case(f"{scope.gpus} replicas", {"model_gpus": tuple(range(scope.gpus))}))
    for case in cases:
        settings = case.settings
        numbers = [settings.get("data_gpu", 0), settings.get("model_gpu", 0)]
        numbers += [*settings.get("data_gpus", ()), *settings.get("model_gpus", ())]
        needed = 1 + max(numbers)
        # A split GPU has two logical devices, and all runs need the same number of them.
        if scope.simulated:
            needed += case.is_split
            settings["simulate_gpus"] = scope.gpus - case.is_split
        if needed > scope.gpus:
            case.problem = f"needs {needed} GPUs"
        if scope.virtual and case.is_split:
            case.problem = "needs a GPU with memory limits, which a virtual one has none of"
    return cases


def measure_throughput(scope: Scope, length: Length, case: Case) -> None:
    name = f"placement-{folder_name(case)}"
    if scope.left_s < LEAST_S and not scope.small:
        case.problem = NO_TIME
        return
    flags = run_flags(scope, name, length.model_size, length.steps, length.log_every)
    finished = run_program(scope, "train", [*flags, *case.flags], scope.left_s)
    case.problem = finished.reason
    reports = read_reports(scope, name)[1:]
    if case.problem or not reports:
        return
    case.period_s = float(np.mean([report["step_s"] for report in reports]))
    case.wait = float(np.mean([report["wait_s"] for report in reports])) / case.period_s
    # A CPU needs no deterministic kernels, so the weights of this run can be compared.
    if not scope.is_real:
        case.checkpoint = checkpoint_of(scope.out / "runs" / name / "checkpoints", length.steps)


def folder_name(case: Case) -> str:
    return case.name.replace(",", "").replace(" ", "-")


def compare_weights(scope: Scope, found: Findings, cases: list[Case]) -> None:
    """Compare the weights of all placements of one replica with those of the first."""
    missing = [case for case in cases if case.checkpoint is None and not case.problem]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        growing = [case for case in missing if not case.is_split]
        list(pool.map(lambda case: train_deterministically(scope, found, case), growing))
    # Limits must fit into memory that no other run takes.
    for case in (case for case in missing if case.is_split):
        train_deterministically(scope, found, case)
    checkpoints = {case.name: case.checkpoint for case in cases if case.checkpoint is not None}
    if len(checkpoints) > 1:
        arrays = {name: Checkpoint.read(of).arrays("model") for name, of in checkpoints.items()}
        first, *others = arrays
        found.differences = {
            name: largest_difference(arrays[name], arrays[first]) for name in others
        }


def train_deterministically(scope: Scope, found: Findings, case: Case) -> None:
    name, steps = f"equal-{folder_name(case)}", found.length.equal_steps
    if scope.left_s < LEAST_S:
        found.add_problem(f"weights of {case.name}: {NO_TIME}")
        return
    flags = run_flags(scope, name, found.length.model_size, steps, steps)
    finished = run_program(scope, "train", [*flags, "--deterministic", *case.flags], scope.left_s)
    if finished.reason:
        found.add_problem(f"weights of {case.name}: {finished.reason}")
    else:
        case.checkpoint = checkpoint_of(scope.out / "runs" / name / "checkpoints", steps)


def largest_difference(arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest absolute difference of two sets of arrays; infinity if not alike."""
    shapes, others = ({k: a.shape for k, a in each.items()} for each in (arrays, expected))
    if shapes != others:
        return float("inf")
    return max(float(np.abs(arrays[name] - expected[name]).max(initial=0.0)) for name in arrays)


def predict_periods(scope: Scope, found: Findings, cases: list[Case]) -> None:
    """Predict all placements by their bounds from the stages of section 3, or measured here."""
    placed = next((case for case in cases if case.is_dual), cases[0])
    flags = run_flags(scope, "stages", found.length.model_size, found.length.measured_steps, 1)
    config, _ = train.parse([*flags, *placed.flags])
    try:
        found.stages = stages_of_section_3(scope, found.length.model_size)
        found.stages = found.stages or measured_stages(scope, config, found)
    except UserError as error:
        found.add_problem(f"stages in isolation: {error}")
    for case in cases if found.stages is not None else ():
        is_known = case.replicas == 1 or not np.isnan(found.stages.all_reduce_s)
        # The parts of a GPU share its cores, for which the bound has no model.
        if is_known and not case.is_split:
            case.predicted_s = bound_s(found.stages, config, case)


def stages_of_section_3(scope: Scope, model_size: str) -> StageProfile | None:
    """Return the times of section 3 without variation, reading and all-reduce, if it has any."""
    if scope.small:  # its smallest models are larger than the toy that trains here
        return None
    file = scope.out.parent / "section-3.json"
    if not file.exists():
        return None
    models = json.loads(file.read_text(encoding="utf-8"))["data"].get("models", ())
    times = {(model["task"], model["size"]): model for model in models}.get(("tts", model_size))
    if times is None or times["error"]:
        return None
    means_s = 0.0, times["produce_s"], times["transfer_s"], times["step_s"]
    stages = StageTimes(*(np.full(MEASURED_STEPS, mean_s) for mean_s in means_s))
    return StageProfile(stages, float("nan"))


def measured_stages(scope: Scope, config: Config, found: Findings) -> StageProfile | None:
    """Measure the stages in a process of its own, if there is time for it."""
    if scope.small:
        with toy_models():
            return measure_stages(config, found.length.measured_steps)
    if scope.left_s >= MEASURE_S:
        return in_subprocess(measure_stages, config)
    found.add_problem(f"stages in isolation: {NO_TIME}")
    return None


def measure_stages(config: Config, steps: int) -> StageProfile:
    """Measure the stages of a replica in isolation, and the all-reduce if there are two devices."""
    from myxtts.trial import steps as measure
    from myxtts.trial.steps import measurement_window, open_run

    with open_run(config) as run:
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measurement_window(pipeline, steps)
        times, _ = measure.measure_isolated(run, pipeline, window)
        all_reduce_s = measure.measure_all_reduce(run) if run.setup.between_devices else 0.0
        return StageProfile(times, all_reduce_s)


def bound_s(stages: StageProfile, config: Config, case: Case) -> float:
    """Return the seconds of a step of a placement by its bound."""
    data, settings = config.data, PlacementConfig(**case.settings)
    gpus = settings.simulate_gpus or max(named_gpus(settings), default=0) + 1
    speeds, rows = Speeds.of([1.0] * gpus), (data.batch_size,) * case.replicas
    candidate = Candidate(settings, plan_routes(settings, gpus), speeds, rows)
    mean_s = stages.times.mean_s(data.num_workers)
    all_reduce_s = stages.all_reduce_s if case.replicas > 1 else 0.0
    return case.replicas * candidate.bound(mean_s, data.num_workers, all_reduce_s).batch_s


def compare_replicas(scope: Scope, found: Findings) -> None:
    """Compare the weights of two replicas with those of a device that accumulates their batches."""
    if scope.gpus < 2:
        return
    if scope.left_s < LEAST_S and not scope.small:
        found.add_problem(f"weights of two replicas: {NO_TIME}")
        return
    flags = "--tasks tts --replicas 2 --accumulations 1"
    flags += f" --simulate-gpus {scope.gpus}" if scope.simulated else " --gpus --deterministic"
    flags += " --steps 2" if scope.small else ""
    flags = [*flags.split(), "--train-data", str(scope.corpus)]
    finished = run_program(scope, "replicas", flags, scope.left_s)
    row = next((line for line in finished.lines if line.startswith("| tts | 2 |")), None)
    if row is None:
        found.add_problem(f"weights of two replicas: {finished.reason or 'no result'}")
    else:
        found.replicas_difference = float(row.split("|")[5])


def result_of(scope: Scope, found: Findings) -> SectionResult:
    length, stages = found.length, found.stages
    lines = [
        f"Model size {length.model_size}, {length.steps} steps each; means over the steps after"
        f" the first {length.log_every}. `predicted` is the step by the bound of the stages in"
        " isolation, if no stage varied.",
        *table("placement | step | wait | predicted | error", map(row_of, found.cases)),
    ]
    if stages is not None:
        mean_s = stages.times.mean_s().items()
        times = ", ".join(f"{stage} {1e3 * seconds:.1f}" for stage, seconds in mean_s)
        unknown = np.isnan(stages.all_reduce_s)
        all_reduce = "of section 3" if unknown else f"all-reduce {1e3 * stages.all_reduce_s:.1f}"
        lines.append(f"Stages in isolation, in milliseconds: {times}, {all_reduce}.")
    if found.differences:
        values = found.differences.items()
        rows = [(name, f"{value:.1e}" if value else "equal bit for bit") for name, value in values]
        weights = "Weights with `--deterministic`" if scope.is_real else "Weights"
        weights += f" after {length.equal_steps} steps, compared with those of the first placement:"
        lines += [weights, *table(("placement", "largest difference"), rows)]
    if found.replicas_difference is not None:
        differ = f"weights differ by up to {found.replicas_difference:.1e}."
        lines.append(f"Two replicas and one device: {differ} {SUMMATION}")
    lines += [f"- {note}" for note in (*found.problems, *found.notes)]
    return SectionResult(TITLE, lines, figures_of(scope, found), data_of(found))


def row_of(case: Case) -> list[str]:
    if case.period_s is None:
        return [case.name, case.problem or "not run", "", "", ""]
    predicted = "" if case.predicted_s is None else f"{1e3 * case.predicted_s:.1f} ms"
    shares = case.wait, case.error
    wait, error = ("" if value is None else f"{100 * value:.1f} %" for value in shares)
    return [case.name, f"{1e3 * case.period_s:.1f} ms", wait, predicted, error]


def data_of(found: Findings) -> dict[str, Any]:
    stages = found.stages
    return {
        "cases": [case.to_json() for case in found.cases],
        "stages_s": stages and {**stages.times.mean_s(), "all_reduce": stages.all_reduce_s},
        "differences": found.differences,
        "replicas_difference": found.replicas_difference,
        "problems": found.problems,
        "notes": found.notes,
    }


def figures_of(scope: Scope, found: Findings) -> list[Figure]:
    return [*run_figures(found), *time_figures(scope, found), *weight_figures(scope, found)]


def run_figures(found: Findings) -> list[Figure]:
    """Return whether every placement trains that the machine allows, and comparisons succeed."""
    tried = [case for case in found.cases if case.period_s or not case.problem.startswith("needs")]
    with_problems = [of for of in tried if of.problem and NO_TIME not in of.problem]
    failed = [*(f"{case.name}: {case.problem}" for case in with_problems), *found.problems]
    trained = sum(case.period_s is not None for case in tried)
    here = "; ".join(failed) or f"{trained} of {len(tried)}"
    met = False if failed else None if trained < len(tried) else True
    return [Figure.of("every placement that the GPUs allow trains", here, "all", met)]


def time_figures(scope: Scope, found: Findings) -> list[Figure]:
    """Return the claims about time, which only real GPUs can show."""
    real = scope.is_real
    dual = [case for case in found.cases if case.is_dual and case.predicted_s and case.period_s]
    dual = [case for case in dual if case.wait is not None]
    mean_s = found.stages.times.mean_s() if found.stages else None
    fed = mean_s is not None and mean_s["produce"] < mean_s["step"]
    wait = max((case.wait for case in dual), default=None)
    ratio = max((case.period_s / case.predicted_s for case in dual), default=None)
    error = max((abs(case.error) for case in found.cases if case.error is not None), default=None)
    return [
        limit_figure(NO_WAIT, wait if fed else None, MAX_WAIT, real),
        limit_figure(AS_SLOWER, ratio, MAX_PERIOD_RATIO, real, "times it"),
        limit_figure(AS_PREDICTED, error, MAX_ERROR, real),
    ]


def limit_figure(
    claim: str, value: float | None, limit: float, real: bool, unit: str = "%"
) -> Figure:
    """Return the figure of a value that must not exceed a limit; only real GPUs show it."""

    def shown(number: float) -> str:
        return f"{100 * number:.1f} %" if unit == "%" else f"{number:.2f} {unit}"

    expected = f"at most {shown(limit)}"
    if value is None:
        return Figure.of(claim, "-", expected, None)
    return Figure.of(claim, shown(value), expected, value <= limit if real else None)


def weight_figures(scope: Scope, found: Findings) -> list[Figure]:
    """Return the claims about weights. They hold on any device, so simulated GPUs show them."""
    steps = found.length.equal_steps
    worst = max(found.differences.values(), default=None)
    count = len(found.differences) + 1
    claims = (
        f"weights after {steps} steps are equal in all placements of one replica",
        "two replicas train as one device with the same batches",
    )
    expected = (
        "bit for bit" if scope.simulated else "bit for bit, with --deterministic",
        f"at most {MAX_REPLICAS_DIFFERENCE:.0e}, by the order of sums",
    )
    one = two = "-", None
    if worst is not None:
        here = f"differ by up to {worst:.1e}" if worst else f"{count} placements equal"
        one = here, worst == 0.0
    if (difference := found.replicas_difference) is not None:
        here = f"weights differ by up to {difference:.1e}"
        two = here, difference <= MAX_REPLICAS_DIFFERENCE
    results = zip(claims, expected, (one, two), strict=True)
    return [Figure.of(claim, here, limit, met) for claim, limit, (here, met) in results]
