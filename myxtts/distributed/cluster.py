"""The workers that train together, which of them this process is, and addresses. No TensorFlow.

A worker is a process with its own devices. The workers of a cluster take every step together. The
chief is worker 0; only the chief writes checkpoints, pictures and metrics.
"""

import json
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from myxtts.base.errors import ConfigError
from myxtts.base.files import table_beside
from myxtts.devicefeed.errors import PlacementError

# Ports end below 32,768, where Linux begins to assign ports to outgoing connections.
FIRST_PORT = 15_000
PORTS = 16_000
# Fibonacci hashing: nearby job numbers get ports that are far apart (Knuth, 6.4).
GOLDEN = 0.618_034

# Labels of host names as in RFC 1035, section 2.3.4; IPv4 addresses have the same form.
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True)
class Cluster:
    """Addresses host:port of the workers that train together, two or more, and this one's index."""

    # Before the rendezvous, only the chief's address may be known; the others are then empty.
    workers: tuple[str, ...]
    index: int
    # This worker's rank on its host and the number of workers there; 0 if the launcher did not
    # tell it.
    local_rank: int = 0
    local_count: int = 0

    @property
    def count(self) -> int:
        return len(self.workers)

    @property
    def place_on_host(self) -> tuple[int, int]:
        """This worker's rank among the workers on its host, and how many these are: by the
        launcher, or else by their addresses.
        """
        if self.local_count or not self.address:
            return self.local_rank, self.local_count or 1
        hosts = [worker.rpartition(":")[0] for worker in self.workers]
        own = hosts[self.index]
        return hosts[: self.index].count(own), hosts.count(own)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def address(self) -> str:
        return self.workers[self.index]

    def name(self, index: int | None = None) -> str:
        """Return the name of a worker for messages; by default of this one."""
        if index is None:
            index = self.index
        address = self.workers[index]
        if not address:
            return f"worker {index}"
        return f"worker {index} ({address})"

    def tf_config(self) -> str:
        """Return the cluster as a value of TF_CONFIG."""
        return json.dumps(
            {"cluster": {"worker": self.workers}, "task": {"type": "worker", "index": self.index}}
        )


class _Launcher(NamedTuple):
    """Variables by which a launcher tells a process its rank, and the host of rank 0.

    launchers.yaml has those of the launchers that are known.
    """

    rank: str
    size: str
    host: str = "MASTER_ADDR"
    port: str = "MASTER_PORT"
    local_rank: str = ""
    local_size: str = ""


_LAUNCHERS = [_Launcher(**variables) for variables in table_beside(__file__, "launchers.yaml")]


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Read the cluster from TF_CONFIG, a launcher's rank and size, or a Slurm step.

    Returns None if this process trains alone: there is none of them, or only one worker. Raises
    UserError if the environment contradicts itself, or requests something unsupported.
    """
    if environ.get("TF_CONFIG", "").strip():
        cluster = _from_tf_config(environ["TF_CONFIG"])
        if cluster is None or cluster.count < 2:
            return None
        return cluster
    faults: dict[int, str] = {}
    # Before Slurm: inside a step, another launcher may start several processes for each task.
    for launcher in _LAUNCHERS:
        size = environ.get(launcher.size, "")
        if size not in ("", "0", "1"):
            try:
                return _from_launcher(launcher, environ)
            except PlacementError as error:
                faults.setdefault(int(size) if size.isdecimal() else 0, str(error))
    # srun sets this variable; a batch script or shell without srun is one process.
    cluster = _from_slurm(environ) if "SLURM_STEP_NODELIST" in environ else None
    count = cluster.count if cluster else 1
    for announced, fault in faults.items():
        if announced != count:
            raise PlacementError(fault)
    if count < 2:
        return None
    return cluster


# A launcher says how many processes there are and which one this is; all else may have to be
# completed. Host and port of rank 0 come from the launcher or MASTER_ADDR, or are this host if all
# processes are on it. A port that nobody gave follows from the job's name. The addresses of the
# other workers stay empty until the rendezvous. Contradictions are collected into one message.
def _from_launcher(launcher: _Launcher, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster of a launcher that says that there are several processes."""
    size, rank = environ[launcher.size], environ.get(launcher.rank, "")
    local_size = environ.get(launcher.local_size, "")
    # A script of a Slurm step may set the rank of torchrun alone.
    local_rank = environ.get(launcher.local_rank) or environ.get("SLURM_LOCALID") or "0"
    hosts = (environ.get(launcher.host) or environ.get("MASTER_ADDR", "")).split()
    if not hosts and local_size == size:
        hosts = ["localhost"]
    fault = ""
    if not re.fullmatch("[0-9]{1,4}", size):
        fault = "that is not a number of processes"
    elif not re.fullmatch("[0-9]{0,4}", local_size):
        fault = f"{launcher.local_size} is {local_size[:80]!r}"
    elif not rank.isdecimal() or int(rank) >= int(size):
        fault = f"{launcher.rank} is {rank[:80]!r}"
    elif not local_rank.isdecimal() or int(local_rank) >= int(local_size or size):
        fault = f"{launcher.local_rank} is {local_rank[:80]!r} of {local_size[:80] or size}"
    elif not hosts:
        fault = f"{launcher.host} is missing"
    if fault:
        raise PlacementError(
            f"{launcher.size} is {size[:80]!r}, so this is one of several processes, but {fault}."
            f" Give all of them MASTER_ADDR, the host of rank 0, and each its {launcher.rank}; or"
            " TF_CONFIG, which is {} for a process that trains alone."
        )
    host, given = hosts[0], ""
    # An IPv6 address has no brackets where no port follows it.
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    elif not host.endswith("]"):
        host, _, given = host.rpartition(":") if ":" in host else (host, "", "")
    # All processes of one mpirun share this name, so they find the same port; another mpirun has
    # another name.
    default = FIRST_PORT + crc32(environ.get("PMIX_NAMESPACE", "").encode()) % PORTS
    address = f"{host}:{given or environ.get(launcher.port) or default}"
    host, port = host_and_port(address, f"rank 0 in {launcher.host} and {launcher.port}")
    # torchrun itself listens on its port.
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = FIRST_PORT + port % PORTS
    # Without a local size, a loopback address or a local rank shows that processes share the host.
    if not local_size and is_loopback(host):
        local_rank, local_size = rank, size
    elif not local_size and local_rank != "0":
        local_size = size
    workers = (f"{host}:{port}", *[""] * (int(size) - 1))
    return Cluster(workers, int(rank), int(local_rank), int(local_size or 0))


def is_host(text: str) -> bool:
    """Return whether a text can be a host name, an IPv4 address or an IPv6 address in brackets."""
    if text.startswith("[") and text.endswith("]"):
        with suppress(OSError, ValueError):
            return bool(socket.inet_pton(socket.AF_INET6, text[1:-1]))
    return bool(_HOST.fullmatch(text))


def host_and_port(text: str, name: str) -> tuple[str, int]:
    """Split `HOST:PORT`; an IPv6 address keeps its brackets.

    Raises ConfigError, with the name of the flag or setting, for a text of another form.
    """
    host, _, port = text.rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535
    if not is_host(host) or not is_port:
        raise ConfigError(
            f"{name} is {text[:80]!r}, but must be HOST:PORT, such as 127.0.0.1:5050 or"
            " [::1]:5050, with a port from 1 to 65535."
        )
    return host, int(port)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address that `check_addresses` has accepted, without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_addresses(addresses: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the addresses in TF_CONFIG, --nodes or another source.

    Raises UserError if one is invalid or repeated, or there is none.
    """
    for address in addresses:
        host_and_port(address, f"a worker in {source}")
    if not addresses or len(set(addresses)) < len(addresses):
        raise PlacementError(
            f"{source} names the workers {', '.join(addresses)[:200] or 'none'}. Give each worker"
            " one address of its own, the chief's first; workers on one host differ by their port."
        )
    return tuple(addresses)


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address, also one such as `127.1`."""
    try:
        address = socket.inet_aton(host)
    except OSError:
        return host in ("localhost", "::1", "[::1]")
    # inet_aton ignores what follows a space.
    return address[0] == 127 and host.split() == [host]


def bind_to_loopback(port: int) -> bool:
    """Restrict the sockets by which this process listens on a port to the loopback interface.

    TensorFlow's servers listen on all interfaces, so it is done from outside. Returns whether this
    was possible; it needs Linux 5.7.
    """
    bound = False
    for listening in listening_sockets(port):
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        except PermissionError:
            return False
        bound = True
    return bound


def listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yield copies of the sockets by which this process listens on a port; each is then closed."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            opened = socket.socket(fileno=os.dup(int(name)))
        # It was closed since the listing, or is the listing itself.
        except OSError:
            continue
        with opened:
            if (
                opened.family in (socket.AF_INET, socket.AF_INET6)
                and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and opened.getsockname()[1] == port
            ):
                yield opened


class _Jobs(BaseModel):
    # All processes are workers: parameter servers and evaluators do not take each step.
    model_config = ConfigDict(extra="forbid")

    chief: list[str] = Field([], max_length=1)
    worker: list[str] = []


class _Task(BaseModel):
    type: Literal["chief", "worker"]
    index: StrictInt = Field(ge=0)


class _TfConfig(BaseModel):
    """TensorFlow's format. Some launchers write {} for a job of one process."""

    cluster: _Jobs | None = None
    sparseCluster: Any = None
    task: _Task | None = None


def _from_tf_config(text: str) -> Cluster | None:
    try:
        config = _TfConfig.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        raise _tf_config_error(fault["loc"], fault["msg"]) from error
    if config.sparseCluster is not None:
        raise _tf_config_error(("sparseCluster",), "it lacks the addresses of other workers")
    if config.cluster is None:
        return None
    jobs, task = config.cluster, config.task
    addresses = check_addresses(jobs.chief + jobs.worker, "TF_CONFIG")
    if task is None or task.index >= len(getattr(jobs, task.type)):
        raise _tf_config_error(("task",), "it is not in the cluster")
    index = task.index
    if task.type == "worker":
        index += len(jobs.chief)
    return Cluster(addresses, index)


def _tf_config_error(place: Sequence[str | int], fault: str) -> PlacementError:
    return PlacementError(
        f"{'.'.join(map(str, ('TF_CONFIG', *place)))}: {fault}. The format of TF_CONFIG is"
        ' {"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}; one'
        " worker may be a chief, and there are no other jobs."
    )


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    """Make each task of a Slurm step a worker; tasks on the same node have different ports."""
    # TensorFlow's SlurmClusterResolver is not used: with 0 GPUs per task it fails (`range` with a
    # step of 0, and `nvidia-smi` not found), it sorts hosts as text (n10 before n2) so that tasks
    # get each other's addresses, it rejects several ranges in a name, and it uses the same ports
    # for every job.
    hosts = expand_hosts(environ["SLURM_STEP_NODELIST"])
    node_tasks = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = _slurm_number(environ, "SLURM_STEP_NUM_TASKS")
    # SLURM_PROCID would count in another order under --distribution=cyclic.
    node = _slurm_number(environ, "SLURM_NODEID")
    local_id = _slurm_number(environ, "SLURM_LOCALID")
    is_whole = len(hosts) == len(node_tasks) and sum(node_tasks) == tasks
    if not is_whole or node >= len(hosts) or local_id >= node_tasks[node]:
        raise _slurm_error(
            f"this is task {local_id} of node {node}, and there are {tasks} tasks on the nodes"
            f" {environ['SLURM_STEP_NODELIST']}, {environ['SLURM_STEP_TASKS_PER_NODE']} on each"
        )
    ports = _slurm_ports(environ, max(node_tasks))
    addresses: list[str] = []
    for host, count in zip(hosts, node_tasks, strict=True):
        addresses += (f"{host}:{port}" for port in ports[:count])
    return Cluster(check_addresses(addresses, "Slurm"), sum(node_tasks[:node]) + local_id)


def _slurm_ports(environ: Mapping[str, str], count: int) -> list[str]:
    """Return ports that no other step, and no job with a number nearby, has on the node."""
    if reserved := environ.get("SLURM_STEP_RESV_PORTS"):
        ports = _expand_ranges(reserved)
        if len(ports) < count:
            found = f"SLURM_STEP_RESV_PORTS has {len(ports)} ports for {count} tasks on a node"
            raise _slurm_error(f"{found}; give srun --resv-ports={count}")
        return ports
    places = PORTS // count
    step = _slurm_number(environ, "SLURM_STEP_ID")
    place = (_slurm_number(environ, "SLURM_JOB_ID") + step * int(places * GOLDEN)) % places
    return [str(FIRST_PORT + place * count + task) for task in range(count)]


def _slurm_number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]+", text):
        raise _slurm_error(f"{name} is {text!r}, not a number")
    return int(text)


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's list of nodes in its order: `n[08-10,12],gpu` is n08, n09, n10, n12, gpu."""
    patterns = re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", text)
    if not patterns or ",".join(patterns) != text:
        raise _slurm_error(f"'{text}' is no list of nodes")
    hosts: list[str] = []
    for pattern in patterns:
        # Text and ranges by turns, since a pattern may have several: r[1-2]n[08-09]-ib.
        pieces = re.split(r"\[(.*?)\]", pattern)
        choices = [[piece] for piece in pieces]
        choices[1::2] = map(_expand_ranges, pieces[1::2])
        hosts += map("".join, product(*choices))
    return hosts


def _expand_ranges(text: str) -> list[str]:
    """Expand the ranges of a name: `08-10,12` is 08, 09, 10, 12."""
    numbers: list[str] = []
    for span in text.split(","):
        bounds = re.fullmatch("([0-9]+)(?:-([0-9]+))?", span)
        if bounds is None or int(bounds[2] or bounds[1]) < int(bounds[1]):
            raise _slurm_error(f"'{text}' are no ranges of nodes")
        last = int(bounds[2] or bounds[1])
        numbers += (str(n).zfill(len(bounds[1])) for n in range(int(bounds[1]), last + 1))
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's number of tasks on each node: `2(x3),1` is 2, 2, 2, 1."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", item)
        if match is None:
            raise _slurm_error(f"'{text}' are no tasks per node")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _slurm_error(found: str) -> PlacementError:
    return PlacementError(
        f"this is a Slurm step, but {found}. Start the workers with srun, all in one step, or set"
        " TF_CONFIG."
    )
