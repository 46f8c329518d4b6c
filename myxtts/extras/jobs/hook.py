"""The hook of a run that averages its weights with those of other jobs."""

from myxtts.base.progress import Observation, without
from myxtts.extras.jobs.sync import WeightSync
from myxtts.run.hooks import StepEnd
from myxtts.run.saving import Checkpoints
from myxtts.run.schedule import due_parts, periods_of
from myxtts.run.setup import TrainingSetup
from myxtts.run.stop_request import StopRequest, stop_on_signals


class SyncWeights:
    """Averages the weights with those of other jobs (local SGD) and asks for a checkpoint of the
    result.
    """

    pause_kind = "syncs"

    def __init__(self, weight_sync: WeightSync, checkpoints: Checkpoints):
        self._weight_sync, self._checkpoints = weight_sync, checkpoints

    def is_due(self, end: StepEnd) -> bool:
        return self._weight_sync.is_due(end.state)

    def __call__(self, end: StepEnd) -> None:
        # A sync removes the previous contributions, which a job needs that is killed and resumes
        # from a previous checkpoint.
        self._checkpoints.wait()
        end.owes_sync = not self._weight_sync.sync(end.state, end.stop.due)
        end.save |= not end.owes_sync


def make(
    setup: TrainingSetup, checkpoints: Checkpoints, request: StopRequest
) -> SyncWeights | None:
    """Return the hook of a run with --sync-every, after the sync that it may owe; else None."""
    start, schedule = setup.run.start, setup.schedule
    if not setup.config.local_sgd.sync_every:
        return None
    weight_sync = WeightSync(setup.record, schedule.total_steps)
    resumes = setup.config.run.resume
    weight_sync.prepare(setup.state, new_run=start.resumed is None, resumes=resumes)
    finish_pending_sync(weight_sync, setup, checkpoints, request)
    return SyncWeights(weight_sync, checkpoints)


# A run that was stopped within a sync has saved its checkpoint before it. The sync is done now,
# before the first step. If it loads the average, the step's observations are of that average, and a
# checkpoint is saved at once, so that the sync is never repeated.
def finish_pending_sync(
    weight_sync: WeightSync, setup: TrainingSetup, checkpoints: Checkpoints, request: StopRequest
) -> None:
    """Do the sync that a stopped run owes, if it owes one; the average is then observed."""
    state, owed_step = setup.state, setup.state.step
    with stop_on_signals(request):
        if not weight_sync.is_due(state) or not weight_sync.sync(state, request.due):
            return
    is_last = state.step >= setup.schedule.total_steps
    state.pending_observations = without(state.pending_observations, owed_step)
    if parts := due_parts(periods_of(setup.config.run), owed_step, is_last):
        state.pending_observations += (Observation(state.step, parts),)
    checkpoints.save(state)
    checkpoints.wait()
