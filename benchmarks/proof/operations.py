"""Section 2: every operation once on the model device, without soft placement, against the CPU.

Both devices get the same inputs and weights. A GPU adds the terms of a sum in another order, so
results differ by rounding; how much is allowed follows from the number format:

- float32 with TF32 off: STRICT. A relative change of all weights by 1e-5, 170 times the rounding of
  float32, changes the losses of a step by 2e-7, its gradient by 3e-5 and its update by 2e-4. The
  limits are wider, since a change of one frame in the alignment moves the pitch loss by 1e-3.
- float32 with TF32, bfloat16 and float16: twice the error that the CPU makes in the same format
  against float32, but no less than FLOOR. For TF32 that is the error in float16, whose significand
  has as many bits. Updates are not compared: the first step of Adam is the sign of the gradient,
  and rounding turns many signs.
"""

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.proof import configs
from benchmarks.proof.networks import Networks, Voices, sizes
from benchmarks.proof.runs import NO_TIME
from benchmarks.proof.section import Scope, SectionResult, table
from fakes.copies import find_copies
from fakes.toy_models import toy_models
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import griffin_lim
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.config.schema import Config
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.producer import trace_produce
from myxtts.devicefeed.routes import Route
from myxtts.placement.replicas import make_replicas
from myxtts.run.schedule import ConstantRates
from myxtts.run.setup import RunCorpora, build_state, load_run_corpora, make_step, tune
from myxtts.run.start import Start
from myxtts.run.step import SKIPPED
from myxtts.tasks.asr.ctc import ctc_losses, greedy_decode
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts.network import TEXT_INPUTS
from myxtts.tasks.tts.task import synthesis_options
from myxtts.tasks.vocoder.network import build_vocoder
from myxtts.text.symbols import BLANK_ID
from myxtts.trial.preflight.kernels import audit

TITLE = "Every operation"
CPU = "/CPU:0"
LEARNING_RATE, EMA_DECAY = 1e-3, 0.9
# of mixed_float16; the initial 2^15 overflows at the first step, which then changes no weight
LOSS_SCALE = 256.0
SYMBOLS = 30  # of random logits
PRODUCER = "producer"  # the names of all producers begin with it
EVERY_DISTORTION = {
    **dict.fromkeys(("reverb_probability", "noise_probability", "equaliser_probability"), 1.0),
    **dict.fromkeys(("band_limit_probability", "codec_probability"), 1.0),
    **{"babble_fraction": 0.5, "speed_perturbation": 0.1},
}
LEAST_S = 20.0  # for one more operation

Outputs = dict[str, np.ndarray]
Ran = tuple[Outputs, Sequence]
"""Outputs on the host, and the concrete functions that computed them."""
Tolerances = dict[str, tuple[str, float]]  # output -> measure and limit

FLOOR: Tolerances = {"losses": ("each", 1e-2), "gradient": ("norm", 5e-2)}
STRICT: Tolerances = {
    **{"losses": ("each", 1e-3), "gradient": ("norm", 1e-2)},
    "update": ("norm", 5e-2),
}
STRETCHES: Tolerances = {
    **{"mel": ("absolute", 1e-4), "wave": ("absolute", 0.0)},
    **{"f0_hz": ("unequal", 5e-3), "pulse_phasor": ("norm", 5e-2)},
}
# Quantisation enlarges rounding errors. So does a path that passes a token a frame later, with
# nearly the same score.
DISTORTED: Tolerances = {"mel": ("norm", 2e-2), "frames": ("unequal", 0.0)}
TAUGHT: Tolerances = {"mel": ("norm", 5e-2), "path": ("unequal", 2e-2), "f0_hz": ("unequal", 5e-2)}
TAUGHT_STRETCHES: Tolerances = STRETCHES | {"mel": ("norm", 5e-2), "target_mel": ("absolute", 1e-4)}


@dataclass(frozen=True)
class Inputs:
    """Batches of the demo corpus on the CPU.

    Attributes:
        config: of the task.
        waves, features: of the same batch; its last row is empty.
    """

    config: Config
    corpora: RunCorpora
    waves: dict[str, np.ndarray]
    features: dict[str, np.ndarray]


class Operation(NamedTuple):
    """Something that both devices compute.

    Attributes:
        run: (device) -> outputs and functions.
        tolerances: measure and limit of each output that is compared.
        reference: outputs to compare with instead of those of the same operation on the CPU.
        tf32: whether TensorFloat-32 is on.
    """

    name: str
    run: Callable[[str], Ran]
    tolerances: Tolerances
    reference: Outputs | None = None
    tf32: bool = False


@dataclass(frozen=True)
class Comparison:
    """What an operation did on the model device.

    Attributes:
        errors: by output; `measure` of the operation's tolerance.
        error: why it did not run; "" if it ran.
        operations, host_only: the static audit, of the CPU's functions if the device failed; None
            if it is unknown.
        to_host: the lines of the functions that copy values to the host.
    """

    name: str
    errors: dict[str, float]
    limits: dict[str, float]
    error: str
    operations: int | None
    host_only: list[str]
    to_host: list[str] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return not self.error and all(
            self.errors[name] <= limit for name, limit in self.limits.items()
        )

    @property
    def here(self) -> str:
        return self.error or ", ".join(f"{name} {error:.1e}" for name, error in self.errors.items())

    @property
    def expected(self) -> str:
        limits = (f"{name} ≤ {limit:.1e}" for name, limit in self.limits.items())
        return ", ".join(limits) or "runs on the device"

    @property
    def audited(self) -> str:
        if self.operations is None:
            return "unknown"
        missing = ", ".join(sorted(set(self.host_only)))
        kernels = f"; on the host: {missing}" if missing else ", all on the GPU"
        return f"{self.operations:,} operations{kernels}; {len(self.to_host)} copies to the host"


def run(scope: Scope) -> SectionResult:
    device = configs.configure(scope).routes[0].model
    with toy_models() if scope.small else nullcontext():
        comparisons = compare_all(scope, device)
    return result_of(scope, device, comparisons)


def compare_all(scope: Scope, device: str) -> list[Comparison]:
    """Compare operation after operation, recording the result after each, while time is left."""
    comparisons: list[Comparison] = []
    for operation in operations(scope):
        if scope.left_s < LEAST_S and comparisons:
            comparisons.append(Comparison(operation.name, {}, {}, NO_TIME, None, []))
            continue
        comparisons.append(compare(operation, device))
        scope.record(result_of(scope, device, comparisons))
    return comparisons


def result_of(scope: Scope, device: str, comparisons: Sequence[Comparison]) -> SectionResult:
    rows = [(item.name, item.here, item.expected, item.audited) for item in comparisons]
    lines = [
        f"Each operation ran on {device} without soft placement, and on {CPU} with the same inputs"
        " and weights. Errors of losses, gradients and updates are relative. The gradient is the"
        " optimizer's first moment.",
        *table("operation | error here | limit | static audit", rows),
    ]
    operations = [vars(item) | {"met": item.met} for item in comparisons]
    result = SectionResult(TITLE, lines, data={"device": device, "operations": operations})
    for item in comparisons:
        shown = item.error != NO_TIME and not (scope.simulated and item.met)
        met = item.met if shown else None
        result.add(f"{item.name}: as on the CPU", item.here, item.expected, met)
    audited = [item for item in comparisons if item.operations is not None]
    agreeing = [item for item in audited if bool(item.error) == bool(item.host_only)]
    result.add(
        "operations run on a GPU without soft placement, as the static audit finds",
        f"{len(agreeing)} of {len(audited)}",
        "all",
        None if scope.simulated or not audited else len(agreeing) == len(audited),
    )
    producers = [item for item in audited if item.name.startswith(PRODUCER)]
    copied = {item.name: sorted(set(item.to_host)) for item in producers if item.to_host}
    waiting = [f"{name} ({', '.join(sources)})" for name, sources in copied.items()]
    result.add(
        "no producer waits for its device to copy a value to the host",
        ", ".join(waiting) or f"{len(producers)} producers without such a copy, by their graphs",
        "none copies",
        False if waiting else None if scope.simulated or not producers else True,
    )
    return result


def compare(operation: Operation, device: str) -> Comparison:
    """Run an operation on both devices; an error is part of the result."""
    limits = {name: limit for name, (_, limit) in operation.tolerances.items()}
    where, functions, errors, error = CPU, [], {}, ""
    try:
        reference = operation.reference
        if not reference:
            reference, functions = operation.run(CPU)
        where = device
        with tf32(operation.tf32):
            outputs, functions = operation.run(device)
        errors = {
            name: MEASURES[kind](outputs[name], reference[name])
            for name, (kind, _) in operation.tolerances.items()
        }
    except Exception as failure:  # the other operations still run
        traceback.print_exc()
        first_line = (str(failure).strip().splitlines() or [""])[0]
        error = f"on {where}: {type(failure).__name__}: {first_line}"
    if not functions:
        return Comparison(operation.name, errors, limits, error, None, [])
    audits = [audit(function) for function in functions]
    host_only = [missing.type for item in audits for missing in item.host_only]
    copies = itertools.chain(*map(find_copies, functions))
    to_host = [copy.source or copy.tensor for copy in copies if copy.to_host]
    counted = sum(item.operations for item in audits)
    return Comparison(operation.name, errors, limits, error, counted, host_only, to_host)


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Set whether float32 products on Ampere GPUs and later may round factors to TensorFloat-32."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(enabled)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def norm_error(here: np.ndarray, reference: np.ndarray) -> float:
    """Return |here - reference| / |reference|; infinite if a value is not finite."""
    difference = np.linalg.norm((here - reference).astype(np.float64))
    scale = np.linalg.norm(reference.astype(np.float64))
    return _finite(difference / scale if scale else difference)


def each_error(here: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest relative error of a value."""
    scale = np.maximum(np.abs(reference.astype(np.float64)), 1e-6)
    return _finite(np.max(np.abs(here.astype(np.float64) - reference) / scale, initial=0.0))


def absolute_error(here: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference of two values."""
    return _finite(np.max(np.abs(here.astype(np.float64) - reference), initial=0.0))


def unequal_fraction(here: np.ndarray, reference: np.ndarray) -> float:
    """Return the fraction of values that differ by more than 1 in 1,000; 1 if the shapes differ."""
    if here.shape != reference.shape:
        return 1.0
    return float(np.mean(~np.isclose(here, reference, rtol=1e-3, atol=1e-6))) if here.size else 0.0


def _finite(error: float) -> float:
    return float(error) if np.isfinite(error) else float("inf")


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "norm": norm_error,
    "each": each_error,
    "absolute": absolute_error,
    "unequal": unequal_fraction,
}


class AllInputs(NamedTuple):
    """The inputs of all operations; `voices` has the network that synthesizes and teaches."""

    speech: Inputs
    recogniser: Inputs
    segments: Inputs
    voices: Voices

    @classmethod
    def read(cls, scope: Scope) -> "AllInputs":
        tasks = "tts", "asr", "vocoder"
        speech, recogniser, segments = (inputs_of(scope, task) for task in tasks)
        voices = Voices(scope, speech.config, speech.corpora.vocabulary, speech.features)
        return cls(speech, recogniser, segments, voices)


def operations(scope: Scope) -> Iterator[Operation]:
    """Yield all operations. A later one may depend on what an earlier one computed on the CPU."""
    inputs = AllInputs.read(scope)
    speech, recogniser, segments, _ = inputs
    mel: Tolerances = {"mel": ("absolute", 1e-4)}
    pitch: Tolerances = {"f0_hz": ("unequal", 5e-3)}
    yield producer("producer of speech with VTLP", speech, mel | pitch)
    yield producer("producer of the recogniser with SpecAugment", recogniser, mel)
    yield augmented(scope, recogniser)
    yield producer("producer of the vocoder", segments, STRETCHES)
    if not scope.small:
        yield from voice_operations(scope, inputs)
    yield from steps(scope, speech, "step of speech")
    yield griffin_lim_operation(speech)
    if not scope.small:
        yield from longest_operations(scope, inputs)
    yield decoding()
    yield ctc("CTC of padded rows, and rows without labels", [60, 41, 30, 17, 0], [20, 9, 12, 0, 0])
    yield ctc("CTC of a row of 300 labels", [700, 50], [300, 20])


def voice_operations(scope: Scope, inputs: AllInputs) -> Iterator[Operation]:
    """Yield those of a whole voice, which the smallest proof leaves out."""
    yield taught(scope, "tts", inputs.speech, inputs.voices, TAUGHT)
    yield synthesis(inputs.speech, inputs.voices)


def longest_operations(scope: Scope, inputs: AllInputs) -> Iterator[Operation]:
    """Yield those that take longest to trace, which the smallest proof leaves out."""
    yield taught(scope, "vocoder", inputs.speech, inputs.voices, TAUGHT_STRETCHES)
    yield from steps(scope, inputs.recogniser, "step of the recogniser")
    yield from steps(scope, inputs.segments, "step of the vocoder")
    yield vocoding(scope, inputs.speech)


def inputs_of(scope: Scope, task: str) -> Inputs:
    """Read the first batch of the plan; compute its features on the CPU; the last row is empty."""
    changes: dict[str, Any] = {"data": {"vtlp": 0.1}} if task == "tts" else {}
    config = configs.config_of(scope, task, **changes)
    route = Route(CPU, CPU)
    corpora = load_run_corpora(Start(config, RunFolder(scope.out)), scope.out, replicas=1)
    extractor = task_of(config).extractor(config, training=True)
    reading = {"seed": 0, "cache_folder": scope.out}
    pipeline = Pipeline(corpora.training, [route], extractor, config.data, **reading)
    with closing(pipeline.producers[0].read(Pass())) as read:
        waves = {name: np.array(value) for name, value in next(iter(read))[1].items()}
    for name in waves:
        if name not in ("seed", "step_frames", "step_tokens"):
            waves[name][-1:] = 0
    produced, _ = pipeline.producers[0].produce(on_device(waves, CPU))
    features = {name: value.numpy() for name, value in produced.items()}
    return Inputs(config, corpora, waves, features)


def on_device(batch: dict[str, np.ndarray], device: str) -> dict[str, tf.Tensor]:
    with tf.device(device):
        return {name: tf.identity(value) for name, value in batch.items()}


def producer(name: str, inputs: Inputs, tolerances: Tolerances) -> Operation:
    """Return the producer's function: waves -> features."""
    extractor = task_of(inputs.config).extractor(inputs.config, training=True)
    run_on = producing(extractor, inputs.waves)
    # Features do not depend on TF32.
    return Operation(name, run_on, tolerances, inputs.features, tf32=True)


def producing(extractor: FeatureExtractor, waves: dict[str, np.ndarray]) -> Callable[[str], Ran]:
    """Return what computes the features of waves on a device."""

    def run_on(device: str) -> Ran:
        function = trace_produce(device, extractor)
        features, _ = function(on_device(waves, device))
        return {name: value.numpy() for name, value in features.items()}, [function]

    return run_on


def augmented(scope: Scope, inputs: Inputs) -> Operation:
    """Return the producer of the recogniser, which distorts each utterance in every way."""
    config = configs.config_of(scope, "asr", augmentation=EVERY_DISTORTION)
    extractor = task_of(config).extractor(config, training=True)
    run_on = producing(extractor, inputs.waves)
    return Operation(f"{PRODUCER} of the recogniser with augmentation", run_on, DISTORTED)


def taught(
    scope: Scope, task: str, inputs: Inputs, voices: Voices, tolerances: Tolerances
) -> Operation:
    """Return a producer with a frozen voice: it speaks for `tts`, and makes mels for `vocoder`."""
    counts = {"utterance_tokens": inputs.waves["token_count"]}
    waves = inputs.waves | counts | {"frames": inputs.features["frames"]}
    config = configs.config_of(scope, task)
    extractor = task_of(config).extractor(config, training=True, load_teacher=voices.frozen)
    run_on = producing(extractor, {name: waves[name] for name in extractor.inputs})
    return Operation(f"{PRODUCER} with a teacher, for {task}", run_on, tolerances)


def steps(scope: Scope, inputs: Inputs, name: str) -> Iterator[Operation]:
    """Yield a training step in each number format, and in each way of computing it."""
    strict = step(scope, f"{name}, float32, TF32 off", inputs, STRICT)
    yield strict
    exact, _ = strict.run(CPU)
    half = yield from calibrated(scope, name, inputs, "mixed_float16", exact)
    yield Operation(f"{name}, float32 with TF32", strict.run, twice(half, exact), exact, tf32=True)
    accumulating = {"gradient_accumulation": 2}
    yield step(scope, f"{name}, accumulation of 2", inputs, STRICT, training=accumulating)
    if scope.small:
        return
    yield from calibrated(scope, name, inputs, "mixed_bfloat16", exact)
    if inputs.config.model.task != "asr":
        checkpointing = {"model": {"gradient_checkpointing": True}}
        yield step(scope, f"{name}, gradient checkpointing", inputs, STRICT, **checkpointing)
    else:
        yield step(scope, f"{name}, encoder gru", inputs, STRICT, asr={"encoder": "gru"})


def calibrated(scope: Scope, name: str, inputs: Inputs, precision: str, exact: Outputs):
    """Yield the step in a number format, limited by the CPU's error in it; return its outputs."""
    training = {"precision": precision}
    operation = step(scope, f"{name}, {precision}", inputs, FLOOR, training=training)
    on_cpu, _ = operation.run(CPU)
    yield operation._replace(tolerances=twice(on_cpu, exact), reference=exact)
    return on_cpu


def twice(outputs: Outputs, exact: Outputs) -> Tolerances:
    """Return twice the errors of outputs, at least FLOOR."""
    return {
        name: (kind, max(floor, 2.0 * MEASURES[kind](outputs[name], exact[name])))
        for name, (kind, floor) in FLOOR.items()
    }


def step(
    scope: Scope, name: str, inputs: Inputs, tolerances: Tolerances, **changes: dict[str, Any]
) -> Operation:
    """Return one training step from the initial weights; its outputs are losses, gradient and
    change of the weights.

    Args:
        changes: of the settings, see `configs.config_of`.
    """
    config = configs.config_of(scope, inputs.config.model.task, **changes)
    # (device, whether TF32 is on, which a trace contains) -> state, step, initial values.
    built: dict[tuple, tuple] = {}

    def run_on(device: str) -> Ran:
        key = device, device != CPU and tf.config.experimental.tensor_float_32_execution_enabled()
        if key not in built:
            replicas = make_replicas((Route(device, device),))
            with sizes(scope):
                state = build_state(config, inputs.corpora.vocabulary, replicas)
            tune(config, state, inputs.corpora.training.plan)
            built[key] = state, make_step(config, state), first_values(state, built)
        state, train_step, values = built[key]
        for variable, value in zip(variables(state), values, strict=True):
            variable.assign(value)
        if config.training.precision == "mixed_float16":
            state.optimizer.dynamic_scale.assign(LOSS_SCALE)
        before = [variable.numpy() for variable in state.trained]
        batch = [on_device(inputs.features, device)]
        microbatches = [batch] * config.training.gradient_accumulation
        outcome = train_step(microbatches, 1, ConstantRates(LEARNING_RATE, EMA_DECAY))
        losses = {
            name: value for name, value in train_step.read(outcome).items() if name != SKIPPED
        }
        moments = [v.numpy() for v in state.optimizer.variables if v.path.endswith("_momentum")]
        changes = [v.numpy() - old for v, old in zip(state.trained, before, strict=True)]
        outputs = {"gradient": flat(moments), "update": flat(changes)}
        return outputs | {"losses": np.array([*losses.values()])}, train_step.functions(batch)

    return Operation(name, run_on, tolerances)


def variables(state) -> list:
    return [*state.model.variables, *state.optimizer.variables]


def first_values(state, built: dict[tuple, tuple]) -> list[np.ndarray]:
    """Return the values that a step begins with on all devices: those of the first device."""
    return next(iter(built.values()))[2] if built else [v.numpy() for v in variables(state)]


def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def synthesis(inputs: Inputs, voices: Voices) -> Operation:
    """Return the synthesis of the batch's texts: mel and frames."""

    def run_on(device: str) -> Ran:
        network, batch = voices.on(device), on_device(inputs.features, device)
        with tf.device(device):
            texts = (batch[name] for name in TEXT_INPUTS)
            mel, frames, _ = network.synthesize(*texts, synthesis_options(inputs.config.model))
            functions = [network.synthesize_mel.get_concrete_function()]
        return {"mel": mel.numpy(), "frames": frames.numpy()}, functions

    return Operation("synthesis", run_on, {"frames": ("unequal", 0.0), "mel": ("absolute", 1e-2)})


def vocoding(scope: Scope, inputs: Inputs) -> Operation:
    """Return the waves that a vocoder with random weights computes of the batch's mels."""
    networks, mel = Networks(scope, lambda: build_vocoder("tiny")), inputs.features["mel"]

    def run_on(device: str) -> Ran:
        network = networks.on(device)
        with tf.device(device):
            wave = network.synthesize(tf.identity(mel), tf.constant([0, 0]))
            functions = [network.synthesize.get_concrete_function()]
        return {"wave": wave.numpy()}, functions

    return Operation("waves of the vocoder", run_on, {"wave": ("norm", 1e-2)})


def griffin_lim_operation(inputs: Inputs) -> Operation:
    """Return the log-mel of Griffin-Lim's first row, since the wave depends on the phases."""
    frames = int(inputs.features["frames"][0])
    mel = inputs.features["mel"][:1, :frames]

    def run_on(device: str) -> Ran:
        with tf.device(device):
            arguments = tf.identity(mel), tf.constant(10), tf.constant([0, 0])
            function = tf.function(inspect.unwrap(griffin_lim)).get_concrete_function(*arguments)
            wave = function(*arguments)
        with tf.device(CPU):
            return {"log-mel": log_mel(tf.identity(wave)).numpy()}, [function]

    return Operation("Griffin-Lim", run_on, {"log-mel": ("norm", 1e-2)})


def decoding() -> Operation:
    """Return greedy decoding of random logits."""
    logits = np.random.default_rng(0).normal(size=(4, 50, 30)).astype(np.float32)
    frames = np.array([50, 31, 1, 0], np.int32)

    def run_on(device: str) -> Ran:
        with tf.device(device):
            arguments = tf.identity(logits), tf.identity(frames)
            function = tf.function(greedy_decode).get_concrete_function(*arguments)
            ids, counts = function(*arguments)
        return {"ids": ids.numpy(), "counts": counts.numpy()}, [function]

    equal: Tolerances = dict.fromkeys(("ids", "counts"), ("unequal", 0.0))
    return Operation("greedy decoding", run_on, equal)


def ctc(name: str, frames: Sequence[int], count: Sequence[int]) -> Operation:
    """Return CTC loss and gradient of random rows.

    The gradient behind a row's end is compared on its own: cuDNN's kernel does not write it.

    Args:
        frames, count: frames and labels of each row.
    """
    random = np.random.default_rng(0)
    rows, padded, most = len(frames), max(frames), max(count)
    logits = random.normal(size=(rows, padded, SYMBOLS)).astype(np.float32)
    drawn = random.integers(1, SYMBOLS, (rows, most))
    labels = np.where(np.arange(most) < np.array(count)[:, None], drawn, BLANK_ID)
    arrays = logits, np.array(frames, np.int32), labels.astype(np.int32), np.array(count, np.int32)
    behind = np.arange(padded) >= np.where(np.array(count) > 0, frames, 0)[:, None]

    def loss_and_gradient(logits, frames, labels, count):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = ctc_losses(logits, frames, labels, count)
            total = tf.reduce_sum(losses)
        return losses, tape.gradient(total, logits)

    def run_on(device: str) -> Ran:
        with tf.device(device):
            arguments = [tf.identity(array) for array in arrays]
            # Another for each device.
            function = tf.function(loss_and_gradient).get_concrete_function(*arguments)
            for _ in range(3):  # memory that was used before holds other values
                losses, gradient = function(*arguments)
        gradient = gradient.numpy()
        outputs = {"gradient": gradient[~behind], "behind the end": gradient[behind]}
        return outputs | {"losses": losses.numpy()}, [function]

    limits: Tolerances = {"losses": ("each", 1e-4), "gradient": ("norm", 1e-3)}
    return Operation(name, run_on, limits | {"behind the end": ("absolute", 0.0)})
