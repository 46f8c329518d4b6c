"""Which workers train together, and which of them this process is. Reads the environment; no TensorFlow, no network.

A worker is one process with devices of its own; the workers of a cluster take every step together. The chief is
worker 0: it alone writes checkpoints, pictures and metrics.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myxtts.errors import PlacementError

LOWEST_PORT = 15_000  # of a Slurm job; below 32,768, where Linux takes the ports of outgoing connections
PORTS = 16_000


@dataclass(frozen=True)
class Cluster:
    """The workers of a job, two or more.

    Attributes:
        workers: address host:port of each; the first is the chief's.
        index: which of them this process is.
    """

    workers: tuple[str, ...]
    index: int

    @property
    def count(self) -> int:
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def address(self) -> str:
        return self.workers[self.index]

    def name(self, index: int | None = None) -> str:
        """A worker in words, such as `worker 1 (node2:2222)`; this one by default."""
        index = self.index if index is None else index
        return f"worker {index} ({self.workers[index]})"

    def tf_config(self) -> str:
        """The same as a value of TF_CONFIG."""
        return json.dumps({"cluster": {"worker": self.workers}, "task": {"type": "worker", "index": self.index}})


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster that the environment tells of, by TF_CONFIG or else as a task of a Slurm step.

    Args:
        environ: such as `os.environ`.

    Returns:
        None where this process is to train alone: neither is there, or one worker is all.

    Raises:
        PlacementError: the environment contradicts itself, or asks for what is not done here.
    """
    if environ.get("TF_CONFIG", "").strip():
        cluster = _from_tf_config(environ["TF_CONFIG"])
    elif "SLURM_STEP_NODELIST" in environ:  # of a step: a batch script or shell without srun is one process
        cluster = _from_slurm(environ)
    else:
        return None
    return cluster if cluster is not None and cluster.count > 1 else None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that `check_addresses` has let pass."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def check_addresses(addresses: Sequence[str], source: str) -> tuple[str, ...]:
    """The addresses of a cluster, if they can be those of one.

    Args:
        source: what named them, for the message: `TF_CONFIG`, `--nodes`.

    Raises:
        PlacementError: none at all, one that is not host:port, or one that is there twice.
    """
    if not addresses:
        raise PlacementError(f"{source} names no worker. List the address host:port of each, that of the chief first.")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", host) or not re.fullmatch(r"[0-9]{1,5}", port):
            raise PlacementError(
                f"{source} names the worker '{address}', which is not host:port. "
                "Give a host name or IPv4 address and a port, such as node1:2222."
            )
        if not 1 <= int(port) <= 65535:
            raise PlacementError(f"{source} names port {port} ('{address}'). Give one from 1 to 65535.")
        if addresses.count(address) > 1:
            raise PlacementError(
                f"{source} names '{address}' {addresses.count(address)} times. Each worker needs an address of its "
                "own; workers on one host differ by their port."
            )
    return tuple(addresses)


def _from_tf_config(text: str) -> Cluster | None:
    """TensorFlow's own form: `{"cluster": {"worker": […]}, "task": {"type": "worker", "index": 0}}`."""
    config = _parsed(text)
    if "cluster" not in config:  # what some launchers leave for a job of one process
        return None
    jobs = _expect(config, "cluster", dict)
    for job in jobs:
        if job not in ("chief", "worker"):
            raise PlacementError(
                f"TF_CONFIG has a job '{job}', but here all processes are workers that take each step together. "
                "Leave it out of the cluster."
            )
    chiefs, workers = _addresses(jobs, "chief"), _addresses(jobs, "worker")
    if len(chiefs) > 1:
        raise PlacementError(f"TF_CONFIG has {len(chiefs)} chiefs. List one, and the others as workers.")
    addresses = check_addresses(chiefs + workers, "TF_CONFIG")
    task = _expect(config, "task", dict)
    kind, index = _expect(task, "type", str), _expect(task, "index", int)
    if kind not in ("chief", "worker"):
        raise PlacementError(f"TF_CONFIG makes this process a '{kind}'. Make it a worker, or do not start it.")
    own = chiefs if kind == "chief" else workers
    if not 0 <= index < len(own):
        raise PlacementError(
            f"TF_CONFIG makes this process {kind} {index}, but lists {len(own)} of that job. "
            "Number them from 0, in the order of their addresses."
        )
    return Cluster(addresses, index if kind == "chief" else len(chiefs) + index)


def _parsed(text: str) -> dict:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise PlacementError(f"TF_CONFIG is not JSON ({error}): {text[:80]!r}. {_FORM}") from error
    if not isinstance(config, dict):
        raise PlacementError(f"TF_CONFIG is {_shown(config)}. {_FORM}")
    return config


_FORM = 'Its form is {"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}.'


def _expect(mapping: dict, key: str, kind: type):
    """A value of a kind; JSON's true is no number."""
    if key not in mapping:
        raise PlacementError(f"TF_CONFIG lacks '{key}'. {_FORM}")
    value = mapping[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PlacementError(f"TF_CONFIG has {_shown(value)} as '{key}'. {_FORM}")
    return value


def _addresses(jobs: dict, job: str) -> list[str]:
    addresses = _expect(jobs, job, list) if job in jobs else []
    for address in addresses:
        if not isinstance(address, str):
            raise PlacementError(f"TF_CONFIG has {_shown(address)} as the address of a {job}. {_FORM}")
    return addresses


def _shown(value) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    """A task of a Slurm step is a worker; on a node, tasks have ports that follow each other.

    TensorFlow's SlurmClusterResolver is not used: with 0 GPUs a task it fails (`range` with a step of 0, and
    `nvidia-smi` not found), it sorts hosts as text (n10 before n2) so that a task's address is another task's, it
    refuses several ranges in a name, and it takes the same ports for every job.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    hosts = expand_hosts(environ["SLURM_STEP_NODELIST"])
    of_node = expand_counts(_variable(environ, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(of_node) or sum(of_node) != tasks:
        raise PlacementError(
            f"Slurm tells of {tasks} tasks on {len(hosts)} nodes {environ['SLURM_STEP_NODELIST']}, but of "
            f"{environ['SLURM_STEP_TASKS_PER_NODE']} on each. Start the workers by srun, all in one step."
        )
    # Node and place on it, not SLURM_PROCID, which counts otherwise under --distribution=cyclic.
    node, place = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_LOCALID")
    if node >= len(hosts) or place >= of_node[node]:
        raise PlacementError(
            f"Slurm makes this process task {place} of node {node}, but tells of {tasks} tasks on {len(hosts)} nodes. "
            "Start the workers by srun, all in one step."
        )
    first = LOWEST_PORT + _number(environ, "SLURM_JOB_ID") % PORTS
    addresses = [f"{host}:{first + i}" for host, count in zip(hosts, of_node, strict=True) for i in range(count)]
    return Cluster(check_addresses(addresses, "Slurm"), sum(of_node[:node]) + place)


def _variable(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise PlacementError(
            f"this is a Slurm step, but {name} is not set. Start the workers by srun, or give them a TF_CONFIG."
        )
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _variable(environ, name)
    if not re.fullmatch(r"[0-9]+", text):
        raise PlacementError(f"{name} is '{text}', not a number. Start the workers by srun, or give them a TF_CONFIG.")
    return int(text)


def expand_hosts(text: str) -> list[str]:
    """Slurm's list of nodes, one by one and in its order: `n[9-10,12],gpu` is n9, n10, n12, gpu.

    Raises:
        PlacementError: it is not such a list.
    """
    parts = re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", text)
    if not parts or ",".join(parts) != text:
        raise _not_slurm(text)
    return [host for part in parts for host in _expand_part(part)]


def _expand_part(part: str) -> list[str]:
    names = [""]
    for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
        ends = [plain] if plain else [number for one in ranges.split(",") for number in _expand_range(one)]
        names = [name + end for name in names for end in ends]
    return names


def _expand_range(text: str) -> list[str]:
    """`08-10` is 08, 09, 10."""
    bounds = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    if bounds is None:
        raise _not_slurm(text)
    low, high = bounds[1], bounds[2] or bounds[1]
    if not 0 <= int(high) - int(low) < 65536:
        raise _not_slurm(text)
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]


def expand_counts(text: str) -> list[int]:
    """Slurm's tasks of each node: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        PlacementError: it is not such a list.
    """
    counts = []
    for part in text.split(","):
        form = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part)
        if form is None:
            raise _not_slurm(text)
        counts += [int(form[1])] * int(form[2] or 1)
    return counts


def _not_slurm(text: str) -> PlacementError:
    return PlacementError(
        f"'{text}' is not how Slurm lists nodes and tasks. Start the workers by srun, or give them a TF_CONFIG."
    )
