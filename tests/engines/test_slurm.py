"""Slurm itself: the batch script of the guide, and what becomes of its job."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from tests.engines.runs import STEPS, TOY, TOY_FLAGS, losses, train_by_tf_config
from tests.engines.slurm import slurm
from tests.fixtures import entered, temporary_folder
from tests.sine_corpus import write_corpus

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm.sh"
# Longer ones are for a machine with other work.
DEADLINE_S = 60.0 * float(os.environ.get("DEADLINE_MINUTES", "20"))
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
# TERM comes 30 to 90 s before the time limit, so 0.5 to 2.5 minutes after a run's second step, and
# the run stops up to 4 steps later: before its last one.
MINUTES_AFTER_START = 2
STEP_S = 12.0
# In place of train_main.py, so that a test can act in mid-run. ARRAY stands for the job's index in
# its array.
PYTHON = """#!/bin/bash
shift
exec {python} -m tests.engines.slow_train "${{@//ARRAY/$SLURM_ARRAY_TASK_ID}}"
"""
ARRAY = """#!/bin/bash
echo $SLURM_ARRAY_TASK_ID >> {folder}/array
[ $SLURM_ARRAY_TASK_ID = 0 ] && exec sleep 15
exit $((SLURM_RESTART_COUNT ? 0 : 138))
"""
# Saves, as it were, at SIGTERM, and goes on to its end after a restart.
LIMITED = """#!/bin/bash
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'echo saved >> {folder}/limited; exit 143' TERM
while true; do sleep 0.2; done
"""
ENDS = "#!/bin/bash\necho ran >> {folder}/runs\nexit {code}\n"


class SlurmCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.environ = entered(cls.addClassCleanup, slurm(cpus=4))

    def program(self, source: str) -> dict[str, str]:
        """Return an environment in which `python` is this script."""
        binaries = temporary_folder(self.addCleanup)
        (binaries / "python").write_text(source)
        (binaries / "python").chmod(0o755)
        return self.environ | {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def sbatch(self, environ: dict[str, str], options: str, *flags: str) -> str:
        node = "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-task=0"
        command = ["sbatch", "--parsable", *node.split(), *options.split(), SCRIPT, *flags]
        output = subprocess.check_output(command, env=environ, text=True, cwd=ROOT)
        self.addCleanup(subprocess.run, ["scancel", output.strip()], env=environ)
        return output.strip()

    def wait(self, job: str) -> dict[str, str]:
        """Wait for the end of a job, whatever its restarts; return what Slurm knows of it."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            known = self.show(job)
            if known["JobState"] in ENDED:
                return known
            time.sleep(1.0)
        raise TimeoutError(f"job {job} has not ended: {known}")

    def show(self, job: str) -> dict[str, str]:
        command = ["scontrol", "show", "job", job]
        text = subprocess.check_output(command, env=self.environ, text=True)
        return dict(re.findall(r"(\w+)=(\S*)", text))


class TrainingTest(SlurmCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_corpus(cls.folder / "corpus", [0.5] * 24)
        corpus = str(cls.folder / "corpus" / "corpus.csv")
        cls.flags = ("--runs-dir", str(cls.folder), "--train-data", corpus)
        logs = cls.folder / "logs"
        train_by_tf_config(*cls.flags, "--run", "expected", logs=logs, program=TOY)
        cls.expected = losses(cls.folder / "expected")

    def submit(self, run: str, options: str, step_s: float) -> str:
        environ = self.program(PYTHON.format(python=sys.executable)) | {"STEP_S": str(step_s)}
        flags = (*self.flags, *TOY_FLAGS, "--run", run)
        return self.sbatch(environ, f"{options} --output={self.folder}/{run}-%a.log", *flags)

    def test_jobs_of_an_array_train_at_once_on_a_node_and_one_survives_the_loss_of_a_task(self):
        job = self.submit("voice-ARRAY", "--array=0-1 --time=0", step_s=1.0)
        self.wait_for_step("voice-1", STEPS // 2)
        listing = subprocess.check_output(
            ["scontrol", "listpids", self.show(f"{job}_1")["JobId"]], env=self.environ, text=True
        )
        tasks = [line.split() for line in listing.splitlines()]
        (pid,) = [int(task[0]) for task in tasks if task[3:5] == ["1", "1"]]
        os.kill(pid, signal.SIGKILL)
        for index in (0, 1):
            known = self.wait(f"{job}_{index}")
            log = (self.folder / f"voice-ARRAY-{index}.log").read_text()
            self.assertEqual(known["JobState"], "COMPLETED", log)
            self.assertEqual(known["Restarts"], str(index), log)
            self.assertEqual(losses(self.folder / f"voice-{index}"), self.expected, log)
        self.assertIn("error: worker 1", log)

    def test_job_continues_by_itself_after_its_time_limit(self):
        job = self.submit("limited", "--time=120 --signal=TERM@30", step_s=STEP_S)
        # A limit that a machine of any speed starts within, also after a restart.
        self.wait_for_step("limited", 2)
        hours, minutes, _ = map(int, self.show(job)["RunTime"].split(":"))
        limit = 60 * hours + minutes + 1 + MINUTES_AFTER_START
        command = ["scontrol", "update", f"JobId={job}", f"TimeLimit={limit}"]
        subprocess.run(command, env=self.environ, check=True)
        known = self.wait(job)
        (log,) = [path.read_text() for path in self.folder.glob("limited-*.log")]
        self.assertEqual(known["JobState"], "COMPLETED", log)
        self.assertGreater(int(known["Restarts"]), 0, log)
        stopped = [int(step) for step in re.findall(r"stopped +by SIGTERM at step (\d+)", log)]
        self.assertLess(stopped[0], STEPS, log)
        self.assertEqual(losses(self.folder / "limited"), self.expected, log)

    def wait_for_step(self, run: str, step: int) -> None:
        metrics = self.folder / run / "metrics.jsonl"
        until_s = time.monotonic() + DEADLINE_S
        while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
            self.assertLess(time.monotonic(), until_s)
            time.sleep(0.5)


class RequeueTest(SlurmCase):
    """The batch script alone, with a program that ends at once."""

    def ended(self, code: str) -> tuple[str, int]:
        (self.folder / "runs").unlink(missing_ok=True)
        environ = self.program(ENDS.format(folder=self.folder, code=code))
        known = self.wait(self.sbatch(environ, f"--output={self.folder}/log"))
        return known["JobState"], len((self.folder / "runs").read_text().splitlines())

    def test_mistakes_and_defects_end_the_job(self):
        for code in ("1", "2"):
            self.assertEqual(self.ended(code), ("FAILED", 2))

    def test_lost_workers_restart_it(self):
        again = "$((SLURM_RESTART_COUNT ? 0 : {}))"
        for code in (137, 138, 143):
            self.assertEqual(self.ended(again.format(code)), ("COMPLETED", 4))

    def test_job_of_an_array_restarts_alone(self):
        environ = self.program(ARRAY.format(folder=self.folder))
        job = self.sbatch(environ, f"--array=0-1 --output={self.folder}/log")
        restarts = [self.wait(f"{job}_{index}")["Restarts"] for index in (0, 1)]
        self.assertEqual(restarts, ["0", "1"])
        ran = (self.folder / "array").read_text().split()
        self.assertEqual(sorted(ran), ["0"] * 2 + ["1"] * 4)

    def test_time_limit_restarts_it(self):
        environ = self.program(LIMITED.format(folder=self.folder))
        options = f"--time=2 --signal=TERM@30 --output={self.folder}/log"
        known = self.wait(self.sbatch(environ, options))
        self.assertEqual((known["JobState"], known["Restarts"]), ("COMPLETED", "1"))
        self.assertEqual((self.folder / "limited").read_text().split(), ["saved"] * 2)

    def test_cancelled_job_is_not_restarted(self):
        environ = self.program(f"#!/bin/bash\necho ran >> {self.folder}/began\nexec sleep 600\n")
        job = self.sbatch(environ, f"--output={self.folder}/log")
        while not (self.folder / "began").exists():
            time.sleep(0.2)
        subprocess.run(["scancel", job], env=self.environ, check=True)
        known = self.wait(job)
        self.assertEqual((known["JobState"], known["Restarts"]), ("CANCELLED", "0"))
