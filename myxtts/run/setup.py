"""Open a run: where it starts from, its devices, its corpora and its state.

    with open_run(resolve_start(config, folder)) as run:
        setup = run.set_up(run.read_corpora())
        step = setup.make_step()

What comes in are settings and the place to start from (`run.start`). On the main thread, in this
order: TensorFlow's devices are configured, which works once for each process, and the workers meet
(`open_run`). The corpora are read (`read_corpora`). The state is built and gets its first weights
(`set_up`). What goes out is a TrainingSetup, which makes the step, the schedule and the pipelines.
Training, the profiler and the preflight open a run in this way. Each stage needs the previous one.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import audio_format, frame_count, sample_rate_hz
from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.batches.corpora import Corpus, load_corpora
from myxtts.batches.pipeline import Pipeline, held_out_pipeline
from myxtts.batches.plan import Plan, steps_left
from myxtts.checkpoints.files import MODEL, Record, digest_of
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import check_same_corpus
from myxtts.config.checks import check_shares, check_xla
from myxtts.config.flags import SETTINGS, marked
from myxtts.config.schema import IN_SCORES, PER_MACHINE, Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.devicefeed.routes import Placement, Route
from myxtts.distributed.cluster import Cluster
from myxtts.placement import devices
from myxtts.placement.devices import xla_failure
from myxtts.placement.replicas import Replicas, open_replicas
from myxtts.placement.settings import named_gpus, plan_routes
from myxtts.report.metrics import FIGURES
from myxtts.run import schedule
from myxtts.run.memory import MemoryForecast, check_memory, forecast_memory
from myxtts.run.optimizer import make_optimizer
from myxtts.run.saving import restore
from myxtts.run.schedule import Schedule
from myxtts.run.start import NO_TEXTS, Start, first_shares
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.run.warm_start import Pretrained, load_pretrained
from myxtts.tasks.base import Task
from myxtts.tasks.layers import parameter_count
from myxtts.tasks.registry import length_rule_of, task_of
from myxtts.tasks.tts.teacher import teacher_loader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunCorpora:
    """The corpora of a run, and the folder of this worker for caches and rejected.csv."""

    training: Corpus
    held_out: Corpus | None
    vocabulary: Vocabulary
    folder: Path


@dataclass(frozen=True)
class OpenRun:
    """A run whose devices are configured; its replicas are in one group with all workers'."""

    start: Start
    placement: Placement
    replicas: Replicas

    @property
    def config(self) -> Config:
        return self.start.config

    @property
    def folder(self) -> RunFolder:
        """The folder for caches, log and metrics of this process; the chief's is the run's."""
        process, folder = self.replicas.process, self.start.folder
        if not process:
            return folder
        return RunFolder(folder.path / f"worker-{process}")

    def read_corpora(self) -> RunCorpora:
        """Read the corpora; raise DataError, also if the workers do not have the same."""
        start, count = self.start, self.replicas.count
        corpora = load_run_corpora(start, self.folder.path, count, first_shares(start, count))
        texts = corpora.training.teacher_rows
        digests = {"corpus": corpora.training.manifest.fingerprint, "--texts": NO_TEXTS}
        if texts:
            digests["--texts"] = texts.fingerprint
        for name, digest in digests.items():
            if not self.replicas.all_equal(digest):
                raise DataError(
                    f"all workers must read the same {name}, but it differs between them. Give"
                    " every host the same files, and compare the rejected.csv of each worker."
                )
        return corpora

    # First XLA is tried, before the long work. Then the network is built with weights of the seed
    # or of a pretrained run, and implementations are chosen for the device by the size of its
    # batches. The forecast of memory and the teacher come next: they may end the run, and nothing
    # is written yet. The record is what every checkpoint will say of the run; its `start` is the
    # digest of the very first weights. Then a resumed run restores its checkpoint. Last, the
    # workers compare their weights: if they are equal now, they stay equal.
    def set_up(self, corpora: RunCorpora) -> "TrainingSetup":
        """Build the state of the run and give it its first weights.

        Raises CheckpointError if weights of a file do not fit, or those of the workers differ;
        ConfigError if the host has too little memory, or XLA does not work.
        """
        config, start, replicas = self.config, self.start, self.replicas
        resumed, teacher = start.resumed, start.teacher
        is_xla = config.training.compile == "xla"
        if is_xla and (reason := xla_failure(replicas.devices[0], whole_step=True)):
            raise ConfigError(
                f"--compile xla was given, but XLA does not work on {replicas.devices[0]}"
                f" ({reason}). Leave out --compile."
            )
        given = [*resumed.weights()] if resumed else ()
        state = build_state(config, corpora.vocabulary, replicas, start.pretrained, given)
        plan = corpora.training.plan
        state.batch_shares = plan.shares
        notes = tune(config, state, plan)
        load_teacher = teacher_loader(teacher, config, typical_sizes(plan))

        # Lack of memory is reported before the run folder is written: on the host by a forecast,
        # and on the device of a teacher by loading it.
        teacher_parameters = 0
        if teacher:
            teacher_parameters = sum(array.size for array in teacher.weights().values())
        memory = forecast_memory(
            config,
            plan,
            replicas.routes,
            parameter_count(state.model),
            task_of(config).extractor(config, training=True, load_teacher=load_teacher),
            teacher_parameters,
            replicas.observer if config.run.uses_held_out else "",
        )
        check_memory(memory)
        if load_teacher is not None:
            load_teacher(replicas.routes[0].data)

        record = self._record_of(corpora, state)
        if resumed is not None:
            corpus = corpora.training.manifest
            check_same_corpus(resumed.checkpoint, corpora.vocabulary, corpus, record.texts)
            restore(resumed.checkpoint, state)
        if replicas.is_distributed and not replicas.all_equal(digest_of(dict(state.arrays(MODEL)))):
            raise CheckpointError(
                "all workers must start from the same weights, but theirs differ. Give all of them"
                " the same run folder, or the same --init-from."
            )
        return TrainingSetup(self, corpora, state, record, memory, notes, load_teacher)

    def _record_of(self, corpora: RunCorpora, state: TrainingState) -> Record:
        """Return the record of the run, before a checkpoint is restored into its state."""
        start, held_out = self.start, corpora.held_out
        if start.resumed:
            first_weights = start.resumed.record.start
        else:
            first_weights = digest_of(dict(state.arrays(MODEL)))
        return run_record(
            self.config,
            corpora.training,
            corpora.vocabulary,
            start=first_weights,
            held_out=held_out.manifest.fingerprint if held_out else None,
            ancestor=start.ancestor,
            teacher=start.teacher.source if start.teacher else None,
            lexicon=dict(start.frontend.lexicon),
            frontend_version=start.frontend_version,
        )


@contextmanager
def open_run(start: Start, cluster: Cluster | None = None) -> Iterator[OpenRun]:
    """Configure the devices of a run; open its replicas for as long as the scope lasts.

    Call it before the first tensor is made: TensorFlow configures devices once for each process.
    Raises PlacementError if the devices do not fit or the rendezvous of the workers failed,
    ConfigError if XLA cannot compile the step, and PeerLost.
    """
    placement = configure_devices(start.config, cluster)
    settings, workers = shared_settings(start), start.config.workers
    with open_replicas(placement, cluster, settings, workers) as replicas:
        yield OpenRun(start, placement, replicas)


def configure_devices(config: Config, cluster: Cluster | None = None) -> Placement:
    """Plan the routes and set up TensorFlow's devices; raises as `open_run`."""
    settings, gpu_count = config.placement, devices.gpu_count()
    rank, workers = 0, 1
    if cluster:
        rank, workers = cluster.place_on_host
    placement = plan_routes(settings, gpu_count, rank, workers)
    replicas = len(placement.routes)
    if cluster is not None:
        replicas *= cluster.count
    check_shares(config, replicas, cluster is not None)
    task = task_of(config)
    check_xla(config, replicas, placement.name, task.supports_xla)
    is_small = task.has_small_operations(config)
    devices.configure(placement, small_operations=is_small, processes=workers)
    # A run without a choice of GPUs uses one of several. This is no mistake, since others may use
    # the machine, but the user should know it.
    seen = settings.simulate_gpus or gpu_count
    if seen > 1 and not named_gpus(settings):
        by, more = "", "; --placement auto measures more"
        if cluster:
            by, more = f" by worker {cluster.index}", "; --model-gpus 0 1 uses more"
        if seen <= workers:
            more = ""
        log.info("GPUs           1 of %d is used%s%s", seen, by, more)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(config.training.tf32)
    return placement


def shared_settings(start: Start) -> dict[str, str]:
    """Return the settings and the start that all workers must have in common."""
    values = start.config.model_dump(mode="json")
    shared = {
        f"{setting.section}.{setting.name}": str(values[setting.section][setting.name])
        for setting in SETTINGS.values()
        if PER_MACHINE not in setting.marks
    }
    shared |= {"checkpoint": "none", "teacher": "none"}
    if start.resumed:
        shared["checkpoint"] = start.resumed.checkpoint.path.name
    if start.teacher:
        shared["teacher"] = start.teacher.checkpoint.weights_digest
    return shared


def load_run_corpora(
    start: Start, folder: Path, replicas: int, shares: Sequence[float] = ()
) -> RunCorpora:
    """Read the corpora of a run on one machine, without its devices.

    Raises DataError if a corpus cannot be used, and ConfigError if validation, samples or
    evaluations are due but nothing is held out. The folder gets caches and rejected.csv.
    """
    config = start.config
    training, held_out, vocabulary = load_corpora(
        config,
        folder,
        length_rule_of(config),
        start.vocabulary,
        replicas,
        frontend=start.frontend,
        shares=shares,
    )
    if held_out is None and config.run.uses_held_out:
        raise ConfigError(
            "validation, samples or evaluations were requested, but none of the"
            f" {len(training.manifest)} utterances is held out. Give --val-data or a larger"
            " --validation-fraction, or --validate-every 0 --sample-every 0 --evaluate-every 0."
        )
    return RunCorpora(training, held_out, vocabulary, folder)


@dataclass(frozen=True)
class TrainingSetup:
    """A run before its first step.

        setup = run.set_up(run.read_corpora())
        step, schedule = setup.make_step(), setup.schedule
        with setup.training_pipeline(synchronize=False).open_feed(Pass()) as feed:

    Attributes:
        implementation_notes: lines of the log on what the task chose for the model device, by name.
        load_teacher: loads the teacher on a device; None without one.
    """

    run: OpenRun
    corpora: RunCorpora
    state: TrainingState
    record: Record
    memory: MemoryForecast
    implementation_notes: dict[str, str]
    load_teacher: LoadFrozen | None

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def task(self) -> Task:
        return task_of(self.config)

    @property
    def replicas(self) -> Replicas:
        return self.run.replicas

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule; take it before the first step: epochs count from the position."""
        return make_schedule(self.config, self.corpora.training, self.state)

    @property
    def between_devices(self) -> bool:
        """Whether batches travel from one device to another."""
        return any(route.is_between_devices for route in self.replicas.routes)

    @property
    def gpu_count(self) -> int:
        """Number of GPUs, real or simulated, that a placement may use."""
        return self.config.placement.simulate_gpus or devices.gpu_count()

    @property
    def observer(self) -> str:
        """The device that observes: a further one, or else the first replica's."""
        return self.replicas.observer or self.replicas.device

    def make_step(self) -> Step:
        return make_step(self.config, self.state)

    def training_pipeline(self, synchronize: bool, **data_settings: Any) -> Pipeline:
        """Make the pipeline of this process' training batches; `data_settings` replace settings.

        With `synchronize` it waits for the data device after each batch, so that the times are true
        on a GPU.
        """
        config, replicas = self.config, self.replicas
        return Pipeline(
            self.corpora.training,
            replicas.routes,
            self.task.extractor(config, training=True, load_teacher=self.load_teacher),
            config.data.model_copy(update=data_settings),
            seed=config.training.seed,
            cache_folder=self.corpora.folder,
            synchronize=synchronize,
            first_replica=replicas.first,
        )

    def validation_pipeline(self, extractor: FeatureExtractor | None = None) -> Pipeline:
        """Make a pipeline of held-out batches for the observer, or else for the first replica.

        Its features are those of validation, or what another extractor makes.
        """
        if extractor is None:
            extractor = self.task.extractor(self.config, False, self.load_teacher)
        held_out, observer = self.corpora.held_out, self.replicas.observer
        assert held_out is not None
        route = Route(observer, observer) if observer else self.replicas.routes[0]
        return held_out_pipeline(held_out, route, extractor, self.config, self.corpora.folder)


def tune(config: Config, state: TrainingState, plan: Plan) -> dict[str, str]:
    """Choose implementations for the model device; return log lines, or raise ConfigError."""
    return task_of(config).tune(config, state.model, state.device, typical_sizes(plan))


def typical_sizes(plan: Plan) -> dict[str, int]:
    """Return the dimensions of batches of medium length, to choose implementations by."""
    rows, samples, tokens = plan.shape(len(plan.bounds) // 2)
    return {"batch": rows, "frames": frame_count(samples), "tokens": tokens}


def build_state(
    config: Config,
    vocabulary: Vocabulary,
    replicas: Replicas,
    pretrained: Pretrained | None = None,
    weights: Collection[str] = (),
) -> TrainingState:
    """Build the model, with the weights of a pretrained run if there is one, and its optimizer.

    Without one, `weights` are the paths of those that it will be given, see `Task.build`.
    """
    training = config.training
    keras.utils.set_random_seed(training.seed)
    with replicas.scope():
        if pretrained is not None:
            weights = pretrained.weights
        network = task_of(config).build(config, vocabulary, weights=weights)
        if pretrained is not None:
            load_pretrained(pretrained, network, vocabulary, training.freeze)
        optimizer = make_optimizer(training.weight_decay, training.precision)
        is_averaged = training.ema_decay > 0
        return TrainingState(network, optimizer, is_averaged, replicas, training.freeze)


def make_step(config: Config, state: TrainingState) -> Step:
    """Make the training step of a state; it is traced at its first call."""
    training = config.training
    return Step(
        state,
        training.gradient_clip,
        training.gradient_accumulation,
        config.data.enable_static_shapes,
        compile_xla=training.compile == "xla",
        can_measure_idle=config.data.batch_shares == "auto",
    )


def run_record(config: Config, corpus: Corpus, vocabulary: Vocabulary, **more: Any) -> Record:
    """Return the record of a run that trains on a corpus, with `more` values."""
    spoken = np.unique(corpus.manifest.language)
    return Record(
        settings=config,
        symbols=vocabulary.symbols.symbols,
        languages=vocabulary.languages,
        language=vocabulary.languages[spoken[0]] if len(spoken) == 1 else None,
        speakers=vocabulary.speakers,
        audio_format=audio_format(sample_rate_hz()),
        corpus=corpus.manifest.fingerprint,
        texts=corpus.teacher_rows.fingerprint if corpus.teacher_rows else None,
        selected_by=selection_of(config),
        **more,
    )


def selection_of(config: Config) -> str:
    """Name the figure that chooses the best checkpoint, with all settings that change it."""
    select_by = config.run.select_by
    if select_by == "loss":
        return select_by
    settings = (f"{setting.flag} {setting.of(config)}" for setting in marked(IN_SCORES))
    return " ".join([FIGURES[select_by].metric, *settings])


def make_schedule(config: Config, corpus: Corpus, state: TrainingState) -> Schedule:
    """Return the schedule of a run, whose length may be given in steps or epochs."""
    training = config.training
    last_by_epochs = 0
    if training.epochs:
        last_by_epochs = state.step + steps_left(corpus.plan, state.position, training.epochs)
    total = schedule.run_length(training.max_steps, last_by_epochs)
    peak = training.learning_rate
    if training.scale_learning_rate:
        peak *= state.replicas.count
    end = total
    if training.stop_at_step is not None:
        end = min(total, training.stop_at_step)
    return Schedule(
        total_steps=end,
        log_every=config.run.log_every,
        checkpoint_every=config.run.checkpoint_every,
        # The rate falls over the whole length, even if stop_at_step ends the run before: jobs that
        # start from its checkpoint continue the fall.
        learning_rate=lambda step: schedule.learning_rate(
            step, total, peak, training.warmup_steps, training.final_lr_ratio
        ),
        ema_decay=lambda step: schedule.ema_decay(step, training.ema_decay),
    )
