"""A Slurm controller and one node on this machine: `python -m tests.engines.slurm COMMAND …`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
START_S = 60.0
# Slurm starts a requeued job when the credentials of its former tasks have expired: by default
# after 120 s.
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiParams=ports=20000-20999
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=5
ReturnToService=2
KillWait=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def install() -> None:
    """Install Slurm unless it is there; raise an error if that is impossible."""
    if not all(map(shutil.which, PROGRAMS)):
        subprocess.run(["apt-get", "install", "-qq", "-y", *PACKAGES], check=True)


@contextlib.contextmanager
def slurm(cpus: int = 2) -> Iterator[dict[str, str]]:
    """Start Slurm with a node that lends so many CPUs; yield the environment of its commands."""
    install()
    with contextlib.ExitStack() as stack:
        # The controller may still write when it ends.
        parent = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(parent))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        (folder / "state").mkdir()
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname(),
                controller_port=free_port(),
                node_port=free_port(),
                folder=folder,
                cpus=cpus,
            )
        )
        files = ("key-file", "log-file", "pid-file", "seed-file", "socket")
        options = [f"--{kind}={folder}/munge.{kind.partition('-')[0]}" for kind in files]
        environ = os.environ | {"SLURM_CONF": str(configuration)}
        for command in (
            ["munged", "--foreground", "--force", *options],
            ["slurmctld", "-D", "-f", str(configuration)],
            ["slurmd", "-D", "-f", str(configuration)],
        ):
            stack.enter_context(daemon(command, folder, environ))
        wait_for_node(environ, folder)
        yield environ


@contextlib.contextmanager
def daemon(command: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_node(environ: dict[str, str], folder: Path) -> None:
    command, until_s = ["sinfo", "--noheader", "--format=%T"], time.monotonic() + START_S
    while time.monotonic() < until_s:
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = (log.read_text() for log in sorted([*folder.glob("*.log"), *folder.glob("*.out")]))
    raise RuntimeError(f"Slurm did not start: {done}\n" + "\n".join(logs))


if __name__ == "__main__":
    with slurm() as environ:
        sys.exit(subprocess.run(sys.argv[1:], env=environ).returncode)
