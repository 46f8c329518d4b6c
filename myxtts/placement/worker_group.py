"""Several workers as one `tf.distribute` strategy, and the diagnosis of a lost worker.

Worker 0 hosts TensorFlow's coordination service, which receives a heartbeat from each worker. A
missing heartbeat or a closed connection breaks the collectives of all other workers.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import tensorflow as tf

from myxtts.base import tf_internals
from myxtts.base.errors import PeerLost, TrainingError
from myxtts.base.processes import StopSignals
from myxtts.config.schema import WorkersConfig
from myxtts.devicefeed import internals
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed.cluster import Cluster, bind_to_loopback, is_loopback, split_address
from myxtts.distributed.rendezvous import rendezvous

# The chief may still observe the last step; a missing heartbeat shows earlier that it died.
END_BARRIER = "end"
END_TIMEOUT_S = 86_400
TIMEOUTS = WorkersConfig()

log = logging.getLogger(__name__)

# TensorFlow names a lost worker in messages alone. Between these marks is what `worker_group`
# reported, whichever workers passed it on.
_REPORTED = re.compile(r"<<(worker \d+ .*?)>>")
_MISTAKE = re.compile(r"worker \d+ \(\S+\) gave up: ")
_TASKS = r"((?:/job:worker/replica:0/task:\d+\s*)+)"
_NO_HEARTBEAT = "sent no heartbeat within --heartbeat-timeout"
_LATE = rf".*timed out task names:\s*{_TASKS}"
# The most reliable ones first. Worker 0 hosts the coordination service.
_SIGNS = {
    re.compile(pattern, re.DOTALL): what
    for pattern, what in (
        (rf"stopped sending heartbeats\):\s*{_TASKS}", _NO_HEARTBEAT),
        (rf"Task {_TASKS}heartbeat timeout", _NO_HEARTBEAT),
        (rf"timed out\. Id: {END_BARRIER}::{_LATE}", f"did not finish within {END_TIMEOUT_S} s"),
        (rf"timed out\. Id: {_LATE}", "did not start within --register-timeout"),
        # The first one is the innermost; the later ones only passed it on.
        (rf"remote target {_TASKS}", "is gone: its connection was lost"),
        (r"RPC: /tensorflow\.CoordinationService/", _NO_HEARTBEAT),
        (r"Failed to send RPC to coordination service", _NO_HEARTBEAT),
    )
}


# On entry all workers meet (`rendezvous`), check their settings, and start TensorFlow's servers. On
# a regular exit all wait at a barrier, since the chief may still observe. On an error, its cause is
# looked for: another worker's loss leaves signs in TensorFlow's message, and everything else is
# this worker's own error. The reason is reported to the others, which then end with it.
@contextmanager
def worker_group(
    cluster: Cluster,
    gpus: int,
    settings: Mapping[str, str] | None = None,
    workers: WorkersConfig = TIMEOUTS,
    gpu_names: Sequence[str] = (),
) -> Iterator[tf.distribute.MultiWorkerMirroredStrategy]:
    """Yield the strategy over all workers; wait for the others on entry and on exit.

    A collective that fails because another worker died raises `PeerLost`, or, if that worker met
    something that the user has to fix, `TrainingError`.

    All workers have the same number of GPUs, each with a replica, or of 0 a replica on the CPU; and
    the same further `settings`, which have their names in messages. No two use the same of the GPUs
    that `gpu_names` of `placement.devices` returns.
    """
    compared = {"GPUs": str(gpus), "TensorFlow": tf.__version__, **(settings or {})}
    cluster = rendezvous(cluster, compared, workers.start_timeout, gpu_names)
    try:
        strategy = worker_strategy(cluster, gpus, workers)
        _restrict_to_machine(cluster)
        yield strategy
        # There is nothing left to save, and only the chief can end its last observation sooner.
        with StopSignals():
            tf_internals.wait_at_barrier(END_BARRIER, END_TIMEOUT_S)
    except BaseException as error:
        diagnosis = diagnose_lost_worker(error, cluster)
        # A worker that was in no collective would otherwise blame this worker for the loss of
        # another. It is an error where no worker is left, or the service has not started.
        with suppress(tf.errors.OpError, ValueError):
            is_mistake = isinstance(error, UserError) and not isinstance(error, PeerLost)
            verb = "gave up" if is_mistake else "failed"
            reason = diagnosis or f"{cluster.name()} {verb}: {_in_one_line(error)}"
            tf_internals.report_error_to_cluster(f"<<{reason}>>")
        if diagnosis is None:
            raise
        # What starts workers may see one exit code for all of them, and must not restart a mistake.
        kind = TrainingError if _MISTAKE.match(diagnosis) else PeerLost
        raise kind(diagnosis) from error


def worker_strategy(
    cluster: Cluster, gpus: int, workers: WorkersConfig
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy: all-reduce is NCCL on GPUs that have it, else a ring over gRPC."""
    if internals.has_started():
        raise PlacementError(
            f"{cluster.name()} cannot join the other workers: TensorFlow has already started. "
            "Restart the process or notebook kernel."
        )
    tf_internals.configure_coordination_service(
        cluster.count, workers.register_timeout, workers.heartbeat_timeout
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    implementations = tf.distribute.experimental.CommunicationImplementation
    has_nccl = gpus and tf_internals.has_cuda_gpus()
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if has_nccl else implementations.RING
    )
    # TensorFlow replaces the handler by one that ignores the signal.
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, sigterm_handler)
    return strategy


def _restrict_to_machine(cluster: Cluster) -> None:
    """Let no other machine reach TensorFlow's server if the addresses of all workers are local."""
    is_local = all(is_loopback(split_address(worker)[0]) for worker in cluster.workers)
    port = split_address(cluster.address)[1]
    if is_local and not bind_to_loopback(port):
        found = f"other machines can reach port {port} of {cluster.name()} without a password"
        log.warning("workers        %s, and run operations as this user. Close the port.", found)


def diagnose_lost_worker(error: BaseException, cluster: Cluster) -> str | None:
    """Return a message that names the lost worker; None if it is this worker's own error."""
    # The class of the error says nothing, since a connection may break with any status of gRPC. A
    # message with bytes of another program is a UnicodeDecodeError of TensorFlow.
    if isinstance(error, tf.errors.OpError):
        text = error.message
    elif isinstance(error, UnicodeDecodeError):
        text = error.object.decode(errors="replace")
    else:
        return None
    if match := _REPORTED.search(text):
        return match[1]
    matches = ((pattern.search(text), what) for pattern, what in _SIGNS.items())
    match, what = next((found for found in matches if found[0]), (None, ""))
    if match is None:
        return None
    indices = re.findall(r"task:(\d+)", " ".join(match.groups())) or ["0"]
    names = " and ".join(cluster.name(int(index)) for index in indices)
    return (
        f"{names} {what}. All workers train together, so none can continue. Look at the log of the"
        " lost worker; then start all workers again with --resume."
    )


def _in_one_line(error: BaseException) -> str:
    """Return an error as one line of at most 1000 characters."""
    text = str(error)
    # The paragraphs before the last describe the place in the program.
    if isinstance(error, tf.errors.OpError):
        text = error.message.rpartition("\n\n")[2].partition("\n")[0]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    return ": ".join(filter(None, (kind, " ".join(text.split()))))[:1000]
