"""Scenarios of several processes: workers and their network, and jobs."""

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from myxtts.base.errors import PeerLost
from myxtts.base.files import locked_file
from myxtts.distributed.cluster import Cluster, split_address
from myxtts.distributed.launcher import local_workers
from tests.robustness.faults.children import Child, fork_children
from tests.robustness.faults.injection import redirect
from tests.robustness.faults.lab import STEPS, losses_of, weights_of
from tests.robustness.faults.proxy import Disturbance, Proxy
from tests.robustness.faults.trial import STOPS, Finished, Trial

ONE_CPU = "--simulate-gpus 0 --data-gpu null --model-gpu null --batch-size 2".split()
JOB_FLAGS = (
    "--simulate-gpus 2 --gpus 0 1 --data-gpu null --model-gpu null --warmstart-steps 3 --max-steps"
    f" {STEPS} --validation-fraction 0 --batch-size 2 --max-restarts 2"
).split()
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
JOBS_CODES = (0, 1)  # 1: the merged model is worse than the best job, which a toy may be
LOSS_S = 240.0  # for workers to notice a loss: 20 s without a heartbeat, 60 s at the start
RESUMED = [("--resume",)] * 2
Connect = Callable[[], None]
Expected = tuple[dict, dict]  # losses and weights of an undisturbed run


def workers(trial: Trial) -> None:
    """Kill, stop or hang one of two workers, or disturb their network; resume both."""
    expected = _reference(trial, "workers", lambda: _train_workers(trial, [(), ()]), (0,))
    trial.limit_s = max(trial.limit_s, LOSS_S)
    kind = trial.random.choice(("signal", "signal", "network"))
    line = f"step {trial.random.randint(1, STEPS - 2):6d} |"
    number = trial.random.choice((signal.SIGKILL, *SIGNALS, signal.SIGSTOP))
    victim = trial.random.randrange(2)
    network = _draw_network(trial.random)
    trial.faults += 1
    if kind == "signal":
        trial.steps.append(f"{number.name} to worker {victim} at '{line}'")
        _interrupted_workers(trial, number, victim, line)
    else:
        trial.steps.append(str(network))
        _disturbed_workers(trial, network)
        # No checksum protects a gradient on its way: the weights may be others.
        if network.kind == "garble":
            return
    trial.steps.append("both resumed")
    if all(worker.code == 0 for worker in _train_workers(trial, RESUMED)):
        _compare(trial, expected, trial.run_dir)


def _draw_network(source: random.Random) -> Disturbance:
    """Return a disturbance after the rendezvous, which waits 10 minutes for a missing worker."""
    seconds, after_bytes = source.choice((1.0, 5.0)), source.choice((20_000, 60_000, 150_000))
    return Disturbance(source.choice(("drop", "delay", "garble")), after_bytes, seconds)


def _interrupted_workers(trial: Trial, number: int, victim: int, line: str) -> None:
    children = _start_workers(trial, RESUMED)
    _wait_for(trial, children, line)
    children[victim].send(number)
    codes = [{0, PeerLost.exit_code}] * 2
    if number in STOPS:
        codes = [{0, *STOPS.values()}] * 2
    elif number == signal.SIGKILL:
        codes[victim] = {0, 128 + number}
    else:  # the other one ends after the heartbeat
        children[1 - victim].wait(trial.limit_s)
        children[victim].send(signal.SIGCONT)
    for child, right in zip(children, codes, strict=True):
        trial.finish(child, sorted(right))


def _disturbed_workers(trial: Trial, network: Disturbance) -> None:
    addresses = local_workers(2)
    ports = [split_address(address)[1] for address in addresses]
    proxy = Proxy(ports, network, trial.random.randrange(1 << 30))
    trial.helpers.append(proxy.pid)
    try:
        # Each connects to the other by the proxy.
        others = [[lambda port=port: redirect(port, proxy.ports[port])] for port in ports[::-1]]
        children = _start_workers(trial, RESUMED, addresses, others)
        for child in children:
            trial.finish(child, (0, 2, PeerLost.exit_code), may_abort=network.kind == "garble")
    finally:
        trial.helpers.remove(proxy.pid)
        proxy.close()


def _train_workers(trial: Trial, flags: Sequence[Sequence[str]]) -> list[Finished]:
    return [trial.finish(child, (0,)) for child in _start_workers(trial, flags)]


def _start_workers(
    trial: Trial,
    flags: Sequence[Sequence[str]],
    addresses: tuple[str, ...] = (),
    connects: Sequence[Sequence[Connect]] = ((), ()),
) -> list[Child]:
    addresses = addresses or local_workers(2)
    children = []
    for index in range(2):
        environ = {"TF_CONFIG": Cluster(addresses, index).tf_config()}
        worker_flags = [*ONE_CPU, *flags[index]]
        children.append(trial.start(worker_flags, environ=environ, further=connects[index]))
    return children


def _wait_for(trial: Trial, children: Sequence[Child], line: str) -> None:
    """Wait until the first child has written a line, or one has ended."""
    while line not in children[0].output() and not children[0].exceeds(trial.limit_s):
        if any(child.poll() is not None for child in children):
            return
        time.sleep(0.02)


def jobs(trial: Trial) -> None:
    """Kill or stop the launcher of two jobs, or a process of it; resume, compare the merge."""
    command = ["-m", "myxtts", "jobs", *trial.lab.flags(trial.runs, "run"), *JOB_FLAGS]
    expected = _reference(trial, "jobs", lambda: [_jobs(trial, command)], JOBS_CODES)
    number = trial.random.choice(SIGNALS)
    to_launcher, moment = trial.random.random() < 0.5, trial.random.uniform(0.0, 1.0)
    target = "the launcher" if to_launcher else "a process of the launcher"
    trial.steps.append(f"{number.name} to {target} after {moment:.2f} of its time")
    trial.faults += 1
    seconds = float((trial.lab.folder / "jobs" / "seconds").read_text())
    child = trial.launch(command, further=[fork_children])
    child.wait(moment * seconds)
    pid = child.pid if to_launcher else _process_of(child)
    if pid is not None and child.poll() is None:
        trial.signal(pid, number)
    codes = {*JOBS_CODES, 2} | ({128 + number} if to_launcher else set())
    trial.finish(child, sorted(codes))
    trial.steps.append("resumed")
    if _jobs(trial, [*command, "--resume"]).code in JOBS_CODES:
        _compare(trial, expected, trial.run_dir / "merged")


def _jobs(trial: Trial, command: Sequence[str]) -> Finished:
    return trial.finish(trial.launch(command, further=[fork_children]), JOBS_CODES)


def _process_of(launcher: Child) -> int | None:
    """Return a process that a launcher has started, if any, but not the filter of its errors."""
    leaders = []
    try:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for pid in children:
            if Path(f"/proc/{pid}/stat").read_text().split()[5] == pid:
                leaders.append(int(pid))
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return None
    return leaders[-1] if leaders else None


def _reference(
    trial: Trial, name: str, train: Callable[[], list[Finished]], codes: Sequence[int]
) -> Expected:
    """Train an undisturbed run of several processes once, and keep it for all cases."""
    kept = trial.lab.folder / name
    with locked_file(trial.lab.folder / f"{name}.lock"):
        if not kept.exists():
            began_s = time.monotonic()
            finished = train()
            assert {program.code for program in finished} <= {*codes}, f"{name}: {finished}"
            shutil.move(trial.run_dir, kept)
            (kept / "seconds").write_text(str(time.monotonic() - began_s))
    run = kept / "merged" if name == "jobs" else kept
    return losses_of(run), weights_of(run)


def _compare(trial: Trial, expected: Expected, run: Path) -> None:
    losses, weights = expected
    actual, newest = weights_of(run), max(weights)
    if actual.get(newest) != weights[newest]:
        found = max(actual, default=0)
        trial.fail("unequal", f"the weights of {newest} differ (newest checkpoint: {found})")
    if losses_of(run) != losses:
        trial.fail("unequal", "the losses differ from those of the undisturbed run")
