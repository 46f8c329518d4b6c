"""Several workers as one `tf.distribute` strategy: how they start, how they end, and who died.

TensorFlow's coordination service, which worker 0 hosts, hears a heartbeat of each worker and breaks the collectives
of all others when one is missing; a closed connection breaks them at once.
"""

import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import tensorflow as tf

from myxtts import tf_internals
from myxtts.distributed.cluster import Cluster
from myxtts.distributed.rendezvous import START_TIMEOUT_S, rendezvous
from myxtts.errors import PlacementError, TrainingError, UserError

HEARTBEAT_TIMEOUT_S = 20  # a worker that says nothing for so long is dead
REGISTER_TIMEOUT_S = 60  # all have met before, so that this is the time to start CUDA and TensorFlow's server
END = "end"
END_TIMEOUT_S = 600  # the chief may still be writing

_BROKEN = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)
_SAID = re.compile(r"<<(worker \d+ .*?)>>")  # by `_report`, however many passed it on
_TASKS = r"((?:/job:worker/replica:0/task:\d+\s*)+)"
_SILENT = re.compile(rf"stopped sending heartbeats\):\s*{_TASKS}|Task {_TASKS}heartbeat timeout")
_LATE = re.compile(r"Barrier timed out\. Id: (\S*?)::.*timed out task names:\s*" + _TASKS, re.DOTALL)
_REMOTE = re.compile(r"remote target (/job:worker/replica:0/task:\d+)")
_TO_LEADER = re.compile(r"RPC: /tensorflow\.CoordinationService/|Failed to send RPC to coordination service")


class WorkerLost(TrainingError):
    """Another worker died or gave up, so that this one cannot go on."""


@contextmanager
def worker_group(
    cluster: Cluster, gpus: int, metadata: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> Iterator[tf.distribute.MultiWorkerMirroredStrategy]:
    """The strategy over all workers, for as long as they train together.

    Waits for the others at its beginning and at its end. An error in between, of this worker, is told to the others,
    which end with it as the reason; a collective that fails because another worker died is raised as `WorkerLost`.

    Args:
        cluster: as `find_cluster` gives it.
        gpus: of this worker that take part, each a replica; 0 makes its CPU one replica. The same on all workers.
        about: what else has to be the same on all workers, by its name in messages.
        timeout_s: the most to wait for the others to start.

    Raises:
        PlacementError: a worker did not come, or differs; TensorFlow has already started.
        WorkerLost: naming the worker that died, or that gave up and why.
    """
    rendezvous(cluster, {"GPUs": str(gpus), "TensorFlow": tf.__version__, **(metadata or {})}, timeout_s)
    try:
        strategy = worker_strategy(cluster, gpus)
        yield strategy
        tf_internals.wait_at_barrier(END, END_TIMEOUT_S)
    except BaseException as error:
        lost = lost_worker(error, cluster) if isinstance(error, _BROKEN) else None
        if lost is None:
            _report(cluster, error)
            raise
        told = WorkerLost(lost)
        _report(cluster, told)
        raise told from error


def worker_strategy(cluster: Cluster, gpus: int) -> tf.distribute.MultiWorkerMirroredStrategy:
    """The strategy over all workers, which have met; every one of them has to call this.

    All-reduces by a ring over gRPC on CPUs, by NCCL on GPUs.

    Args:
        gpus: as in `joined`.

    Raises:
        PlacementError: TensorFlow has already started.
        tf.errors.OpError: a worker was not there in time.
    """
    if tf_internals.has_started():
        raise PlacementError(
            f"{cluster.name()} was to join the others, but TensorFlow had already started. "
            "Make the strategy before the first tensor; restart the process or notebook kernel."
        )
    tf_internals.configure_coordination_service(cluster.count, REGISTER_TIMEOUT_S, HEARTBEAT_TIMEOUT_S)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if gpus else kinds.RING)
    before = signal.getsignal(signal.SIGTERM)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # TensorFlow has put its own in place, which does nothing with it
    return strategy


def lost_worker(error: tf.errors.OpError, cluster: Cluster) -> str | None:
    """Which worker is to blame for an error of TensorFlow, as a message; None if it is this one's own."""
    text = error.message
    if said := _SAID.search(text):
        return said[1]
    if silent := _SILENT.search(text):
        return _lost(cluster, silent[1] or silent[2], f"sent no sign of life for {HEARTBEAT_TIMEOUT_S} s")
    if late := _LATE.search(text):
        within = f"come to the end within {END_TIMEOUT_S}" if late[1] == END else f"start within {REGISTER_TIMEOUT_S}"
        return _lost(cluster, late[2], f"did not {within} s of the others")
    if remote := _REMOTE.search(text):  # the first is the innermost; those after it only passed it on
        return _lost(cluster, remote[1], "is gone: its connection broke")
    if _TO_LEADER.search(text):  # worker 0 hosts the service
        return _lost(cluster, "task:0", f"sent no sign of life for {HEARTBEAT_TIMEOUT_S} s")
    return None


def _lost(cluster: Cluster, tasks: str, what: str) -> str:
    names = " and ".join(cluster.name(int(index)) for index in re.findall(r"task:(\d+)", tasks))
    return (
        f"{names} {what}. All workers train together, so none can go on. Look at the log of the lost one; "
        "then start all of them again with --resume."
    )


def _report(cluster: Cluster, error: BaseException) -> None:
    """Tell the others why this worker ends, so that they end now and say so."""
    # Who was in no collective would blame this worker, where it only noticed that another is lost.
    reason = str(error) if isinstance(error, WorkerLost) else f"{cluster.name()} gave up: {_in_short(error)}"
    with suppress(tf.errors.OpError, ValueError):  # nobody is left to hear it, or nothing has started
        tf_internals.report_error_to_cluster(f"<<{reason}>>")


def _in_short(error: BaseException) -> str:
    """An error in one line of at most 1000 characters."""
    text = str(error)
    if isinstance(error, tf.errors.OpError):  # after the paragraphs that say where it was in the program
        text = error.message.rpartition("\n\n")[2].partition("\n")[0]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    return ": ".join(filter(None, (kind, " ".join(text.split()))))[:1000]
