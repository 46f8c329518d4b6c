"""The hooks of the process that writes the run folder."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts.data.hand_over import compile_hand_over
from myxtts.data.plan_iterator import Position
from myxtts.observe.advice import LongWait
from myxtts.observe.report import Reporter
from myxtts.tasks.base import Examples
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint import Checkpoints
from myxtts.training.hooks import Hook, Report, SyncWeights, Validate, WeightSyncProtocol, WriteSamples
from myxtts.training.load_vocoder import load_vocoder
from myxtts.training.run_folder import RunFolder
from myxtts.training.select_vocoder import select_vocoder
from myxtts.training.setup import TrainingSetup
from myxtts.training.validation import Validation


@contextmanager
def chief_hooks(
    setup: TrainingSetup, folder: RunFolder, checkpoints: Checkpoints, weight_sync: WeightSyncProtocol | None
) -> Iterator[list[Hook]]:
    """Open the reporter of a run; the value is its hooks in the order in which the loop calls them."""
    config, state = setup.config, setup.state
    routes = setup.replicas.routes
    devices = setup.gpu_count if len(routes) == 1 else 1  # advice is for one replica: replicas use their GPUs
    producers = len(routes[0].data_devices)
    long_wait = LongWait(state.step, config.data, not setup.between_devices, devices, producers)
    with Reporter(folder.metrics, folder.tensorboard, state.step, setup.schedule.total_steps) as reporter:
        sync = [] if weight_sync is None else [SyncWeights(weight_sync, checkpoints.wait)]
        validate, sample = validation_hooks(setup, folder, checkpoints, reporter)
        yield [*sync, *validate, Report(reporter, long_wait), *sample]


def validation_hooks(
    setup: TrainingSetup, folder: RunFolder, checkpoints: Checkpoints, reporter: Reporter
) -> tuple[list[Hook], list[Hook]]:
    """Return what is done with held-out utterances before and after a report: validation, and samples."""
    config, held_out, vocabulary = setup.config, setup.corpora.held_out, setup.corpora.vocabulary
    run = config.run
    if held_out is None or not (run.validate_every or run.sample_every):
        return [], []
    task, pipeline, state = task_of(config), setup.validation_pipeline(), setup.state
    validation = Validation(
        state.model,
        state.device,
        lambda: pipeline.open_feed(Position(), epochs=1, mean_over="epoch"),
        task.metric(vocabulary),
    )
    validate: list[Hook] = [Validate(run.validate_every, validation, checkpoints.improves)]
    if not run.sample_every:
        return validate, []
    with (setup.sample_pipeline() or pipeline).open_feed(Position(), epochs=1) as feed:
        (first,) = next(feed)
    (batch,) = compile_hand_over(state.model.BATCH_FIELDS, [state.device])([first.features])
    rows, manifest = first.planned.rows, held_out.manifest
    columns = ([column[row] for row in rows] for column in (manifest.ids, manifest.texts, manifest.paths))
    examples = Examples(batch, *columns)
    with tf.device(state.device):
        sampler = task.sampler(
            config,
            vocabulary,
            state.model,
            examples,
            folder.samples,
            reporter.tensorboard,
            lambda: load_vocoder(select_vocoder(folder.path, setup.metadata), state.device),
        )
    return validate, [WriteSamples(run.sample_every, sampler, folder.path)]
