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
from dataclasses import dataclass
from itertools import product
from typing import Any

from myxtts.errors import ConfigError, PlacementError

# Ports end below 32,768, where Linux begins to assign ports to outgoing connections.
FIRST_SLURM_PORT = 15_000
SLURM_PORTS = 16_000
_FORMAT = (
    'Its format is {"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index":'
    " 0}}."
)

# Labels of host names as in RFC 1035, section 2.3.4; IPv4 addresses have the same form.
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Cluster:
    """The workers that train together, two or more.

    Attributes:
        workers: address host:port of each worker, the chief's first.
        index: index of this process.
    """

    workers: tuple[str, ...]
    index: int

    @property
    def count(self) -> int:
        return len(self.workers)

    @property
    def workers_on_this_host(self) -> int:
        """How many workers have this worker's host in their addresses."""
        hosts = [split_address(worker)[0] for worker in self.workers]
        return hosts.count(hosts[self.index])

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def address(self) -> str:
        return self.workers[self.index]

    def name(self, index: int | None = None) -> str:
        """Return the name of a worker for messages; by default of this one."""
        index = self.index if index is None else index
        return f"worker {index} ({self.workers[index]})"

    def tf_config(self) -> str:
        """Return the cluster as a value of TF_CONFIG."""
        return json.dumps(
            {"cluster": {"worker": self.workers}, "task": {"type": "worker", "index": self.index}}
        )


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Read the cluster from TF_CONFIG, or else from the variables of a Slurm step.

    Args:
        environ: such as `os.environ`.

    Returns:
        None if this process trains alone: there is neither of the two, or only one worker.

    Raises:
        PlacementError: the environment contradicts itself, or requests something unsupported.
        ConfigError: the environment has a job token of an earlier version.
    """
    # Who sets a secret relies on it, so it is not ignored in silence.
    if "MYXTTS_JOB_TOKEN" in environ:
        raise ConfigError(
            "MYXTTS_JOB_TOKEN is set, but there is no job token any more: it protected only the"
            " rendezvous. Unset it, and let only the workers reach their ports (private network,"
            " firewall)."
        )
    cluster = None
    if environ.get("TF_CONFIG", "").strip():
        cluster = _from_tf_config(environ["TF_CONFIG"])
    # srun sets this variable; a batch script or shell without srun is one process.
    elif "SLURM_STEP_NODELIST" in environ:
        cluster = _from_slurm(environ)
    return cluster if cluster is not None and cluster.count > 1 else None


def is_host(text: str) -> bool:
    """Return whether a text can be a host name or an IPv4 address."""
    return bool(_HOST.fullmatch(text))


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port of `HOST:PORT`; None for any other text."""
    host, _, port = text.rpartition(":")
    if not is_host(host) or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        return None
    return host, int(port)


def host_and_port(text: str, name: str, scheme: str = "") -> tuple[str, int]:
    """Split `HOST:PORT`; the host is a name or an IPv4 address.

    Args:
        name: the flag or setting, for the message.
        scheme: prefix before the host, such as grpc://.

    Raises:
        ConfigError: the text has another form.
    """
    address = parse_address(text.removeprefix(scheme)) if text.startswith(scheme) else None
    if address is None:
        raise ConfigError(
            f"{name} is {text[:80]!r}, but must be {scheme}HOST:PORT, such as"
            f" {scheme}127.0.0.1:5050, with a host name or IPv4 address and a port from 1 to 65535."
        )
    return address


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address that `check_addresses` has accepted."""
    host_and_port = parse_address(address)
    assert host_and_port is not None
    return host_and_port


def check_addresses(addresses: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the addresses of a cluster if they are valid.

    Args:
        source: where the addresses come from, for the message: `TF_CONFIG`, `--nodes`.

    Raises:
        PlacementError: there is no address, one is not host:port, or one appears twice.
    """
    if not addresses:
        raise PlacementError(
            f"{source} names no worker. List the address host:port of each worker, the chief's"
            " first."
        )
    for address in addresses:
        if parse_address(address) is None:
            raise PlacementError(
                f"{source} names the worker '{address}', which is not host:port. Give a host name"
                " or IPv4 address and a port from 1 to 65535, such as node1:2222."
            )
        if addresses.count(address) > 1:
            raise PlacementError(
                f"{source} names '{address}' {addresses.count(address)} times. Each worker needs"
                " its own address; workers on one host differ by their port."
            )
    return tuple(addresses)


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback IPv4 address, also one such as `127.1`.

    No name is resolved.
    """
    try:
        address = socket.inet_aton(host)
    except OSError:
        return host == "localhost"
    # inet_aton ignores what follows a space.
    return address[0] == 127 and host.split() == [host]


def bind_to_loopback(port: int) -> bool:
    """Restrict the sockets by which this process listens on a port to the loopback interface.

    TensorFlow's servers listen on all interfaces, so it is done from outside.

    Returns:
        whether this was possible; it needs Linux 5.7.
    """
    if not hasattr(socket, "SO_BINDTODEVICE"):
        return False
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


def _from_tf_config(text: str) -> Cluster | None:
    """Parse TensorFlow's format, `_FORMAT`; None if it describes a job of one process."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise PlacementError(
            f"TF_CONFIG is not JSON ({error}): {text[:80]!r}. {_FORMAT}"
        ) from error
    if not isinstance(config, dict):
        raise PlacementError(f"TF_CONFIG is {_quote(config)}. {_FORMAT}")
    # Some launchers write {} for a job of one process.
    if "cluster" not in config:
        return None
    jobs = _expect(config, "cluster", dict)
    for job in jobs:
        if job not in ("chief", "worker"):
            raise PlacementError(
                f"TF_CONFIG has a job '{job}', but all processes must be workers, which take each"
                " step together. Leave the job out of the cluster."
            )
        for address in _expect(jobs, job, list):
            if not isinstance(address, str):
                raise PlacementError(
                    f"TF_CONFIG has {_quote(address)} as the address of a {job}. {_FORMAT}"
                )
    chiefs = jobs.get("chief", [])
    workers = jobs.get("worker", [])
    if len(chiefs) > 1:
        raise PlacementError(
            f"TF_CONFIG has {len(chiefs)} chiefs. List one chief, and the others as workers."
        )
    addresses = check_addresses(chiefs + workers, "TF_CONFIG")
    task = _expect(config, "task", dict)
    kind = _expect(task, "type", str)
    index = _expect(task, "index", int)
    if kind not in ("chief", "worker"):
        raise PlacementError(
            f"TF_CONFIG makes this process a '{kind}'. Make it a worker, or do not start it."
        )
    peers = chiefs if kind == "chief" else workers
    if not 0 <= index < len(peers):
        raise PlacementError(
            f"TF_CONFIG makes this process {kind} {index}, but lists {len(peers)} of that job. "
            "Number them from 0, in the order of their addresses."
        )
    return Cluster(addresses, index if kind == "chief" else len(chiefs) + index)


def _expect(mapping: dict, key: str, kind: type) -> Any:
    """Return a value of this type; JSON's true is not a number."""
    if key not in mapping:
        raise PlacementError(f"TF_CONFIG lacks '{key}'. {_FORMAT}")
    value = mapping[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PlacementError(f"TF_CONFIG has {_quote(value)} as '{key}'. {_FORMAT}")
    return value


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    """Make each task of a Slurm step a worker; tasks on the same node have consecutive ports."""
    # TensorFlow's SlurmClusterResolver is not used: with 0 GPUs per task it fails (`range` with a
    # step of 0, and `nvidia-smi` not found), it sorts hosts as text (n10 before n2) so that tasks
    # get each other's addresses, it rejects several ranges in a name, and it uses the same ports
    # for every job.
    tasks = _slurm_number(environ, "SLURM_STEP_NUM_TASKS")
    hosts = expand_hosts(environ["SLURM_STEP_NODELIST"])
    node_tasks = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(hosts) != len(node_tasks) or sum(node_tasks) != tasks:
        raise PlacementError(
            f"Slurm reports {tasks} tasks on {len(hosts)} nodes {environ['SLURM_STEP_NODELIST']},"
            f" but {environ['SLURM_STEP_TASKS_PER_NODE']} tasks per node. Start the workers with"
            " srun, all in one step."
        )
    # SLURM_PROCID would count in another order under --distribution=cyclic.
    node = _slurm_number(environ, "SLURM_NODEID")
    local_id = _slurm_number(environ, "SLURM_LOCALID")
    if node >= len(hosts) or local_id >= node_tasks[node]:
        raise PlacementError(
            f"Slurm makes this process task {local_id} of node {node}, but reports {tasks} tasks on"
            f" {len(hosts)} nodes. Start the workers with srun, all in one step."
        )
    first_port = FIRST_SLURM_PORT + _slurm_number(environ, "SLURM_JOB_ID") % SLURM_PORTS
    addresses: list[str] = []
    for host, count in zip(hosts, node_tasks, strict=True):
        addresses += (f"{host}:{port}" for port in range(first_port, first_port + count))
    return Cluster(check_addresses(addresses, "Slurm"), sum(node_tasks[:node]) + local_id)


def _slurm_number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None or not re.fullmatch(r"[0-9]+", text):
        state = "not set" if text is None else f"'{text}', not a number"
        raise PlacementError(
            f"this is a Slurm step, but {name} is {state}. Start the workers with srun, or set"
            " TF_CONFIG."
        )
    return int(text)


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's list of nodes in its order: `n[08-10,12],gpu` is n08, n09, n10, n12, gpu.

    Raises:
        PlacementError: the text is not such a list.
    """
    patterns = re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", text)
    if not patterns or ",".join(patterns) != text:
        raise _not_slurm(text)
    hosts: list[str] = []
    for pattern in patterns:
        # A pattern is text and ranges by turns, such as r[1-2]n[08-09]-ib.
        pieces = re.findall(r"[^\[\]]+|\[[^\[\]]*\]", pattern)
        hosts += map("".join, product(*map(_expand_piece, pieces)))
    return hosts


def _expand_piece(piece: str) -> list[str]:
    return _expand_ranges(piece[1:-1]) if piece.startswith("[") else [piece]


def _expand_ranges(text: str) -> list[str]:
    """Expand the ranges of a name: `08-10,12` is 08, 09, 10, 12."""
    numbers: list[str] = []
    for span in text.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", span)
        if bounds is None:
            raise _not_slurm(text)
        low = int(bounds[1])
        high = int(bounds[2] or low)
        # More nodes than Slurm can have would fill the memory.
        if not 0 <= high - low < 65536:
            raise _not_slurm(text)
        numbers += (str(number).zfill(len(bounds[1])) for number in range(low, high + 1))
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's number of tasks on each node: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        PlacementError: the text is not such a list.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", item)
        if match is None:
            raise _not_slurm(text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _not_slurm(text: str) -> PlacementError:
    return PlacementError(
        f"'{text}' is not a Slurm list of nodes or tasks. Start the workers with srun, or set"
        " TF_CONFIG."
    )
