"""The chaos test draws the same cases again, injects them, and notices wrong behaviour."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from myxtts.base.console import report_errors
from myxtts.commands import train
from tests.fixtures import FolderCase
from tests.long import long
from tests.robustness.faults import children, several
from tests.robustness.faults.case import SCENARIOS, Settings, draw
from tests.robustness.faults.damage import DAMAGES
from tests.robustness.faults.driver import numbers_of, run_case
from tests.robustness.faults.injection import CALLS, compile_shim
from tests.robustness.faults.lab import STEPS, Lab, losses_of, weights_of, write_corpus
from tests.robustness.faults.report import describe, failed
from tests.robustness.faults.trial import Finished, Trial, is_advice
from tests.tiny import SIMULATED, Workspace, shared_traces

ROOT = Path(__file__).parents[1]
IN_SHIM = """
import ctypes, os, signal, sys
from pathlib import Path
from tests.robustness.faults.injection import Injection
root = Path(sys.argv[1])
Injection(("write",), "second", 2, error=28).arm(root)
for name in ("first", "second"):
    with open(root / name, "wb", buffering=0) as file:
        file.write(b"1")
        try:
            print(name, file.write(b"2"))
        except OSError as error:
            print(name, error.errno)
Injection(("rename",), "third", 1, signal=signal.SIGKILL).arm(root)
os.replace(root / "first", root / "third")
"""

STOPPED = "stopped        by SIGTERM at step 5, after a checkpoint\nstep      5 | loss 1\n"
RESUMED = "resumed        runs/run/checkpoints/step-000003\n"


class InProcess:
    """Runs programs in this process instead of forks, without faults of system calls."""

    def start(self, command, folder, name, prepare, **keywords):
        assert not prepare and not keywords, "faults need a process of their own"
        out, err = io.StringIO(), io.StringIO()
        argv = [*command[1:], "--simulate-gpus", str(SIMULATED)]
        with shared_traces(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = report_errors(lambda: train.main(argv))
        return Ended(code, out.getvalue(), err.getvalue())

    def end_orphans(self, known):
        return []


class Ended:
    """A program that has ended, in place of a `Child`."""

    cpu_s, started_s, is_stopped = 0.0, 0.0, False

    def __init__(self, code: int, out: str, err: str):
        self.code, self.output, self.errors = code, lambda: out, lambda: err
        self.poll, self.kill, self.send = lambda: code, lambda: None, lambda number: None

    def wait(self, limit_s, meanwhile=lambda child: None):
        meanwhile(self)
        return True


class MuteLauncher(InProcess):
    """Starts programs that seem to train to their end, and do nothing."""

    def start(self, command, folder, name, prepare, environ=None):
        return Ended(0, "".join(f"step {step:6d} | loss 1\n" for step in range(1, STEPS + 1)), "")


class ChaosTest(FolderCase):
    def settings(self, **changes) -> Settings:
        return Settings(0, self.folder, ("damaged-run",), 1.0, 5, None, 1)._replace(**changes)

    def test_a_case_depends_on_seed_and_number_alone(self):
        for number in range(50):
            (scenario, source), (again, same) = draw(3, number), draw(3, number)
            self.assertEqual((scenario, source.random()), (again, same.random()))
        names = {draw(3, number)[0].name for number in range(300)}
        self.assertEqual(names, {scenario.name for scenario in SCENARIOS})

    def test_chosen_scenarios_leave_the_numbers_of_their_cases(self):
        both = list(numbers_of(self.settings(scenarios=("clock", "damaged-run"), cases=40)))
        damaged = set(numbers_of(self.settings(cases=200)))
        actual = {number for number in both if draw(0, number)[0].name == "damaged-run"}
        self.assertEqual(actual, damaged & set(both))

    def test_each_scenario_says_what_it_does(self):
        for scenario in SCENARIOS:
            self.assertRegex(scenario.line(), rf"^{scenario.name} +[A-Z].+\.$")

    def test_waiting_for_a_processor_is_not_hanging(self):
        program = children.Child(os.getpid(), self.folder / "out", self.folder / "err")
        program.started_s -= 90.0  # a minute and a half ago
        for queued_s, expected in ((0.0, True), (20.0, True), (60.0, False)):
            with mock.patch.object(children, "queued_s", return_value=queued_s):
                self.assertEqual(program.exceeds(60.0), expected, queued_s)
        with mock.patch.object(children, "queued_s", return_value=1e9):
            self.assertTrue(program.exceeds(1.0), "more than ten times the limit")
        self.assertGreaterEqual(children.queued_s(os.getpid()), 0.0)
        self.assertEqual(children.queued_s(2**30), 0.0, "of a process that has ended")

    def test_damage_changes_the_file_and_repeats(self):
        self.write("run/b.json", "b.json" * 100)
        path = self.folder / "run" / "a"
        for kind in DAMAGES:
            contents = []
            for _ in range(2):
                if path.is_dir():
                    path.rmdir()
                path.write_bytes(b"a" * 100)
                kind(path, random.Random(5))
                contents.append(path.read_bytes() if path.is_file() else None)
            self.assertNotEqual(contents[0], b"a" * 100, kind.__name__)
            self.assertEqual(*contents)

    def test_the_preloaded_library_fails_and_kills_at_the_named_call(self):
        if not shutil.which("cc"):
            self.skipTest("no C compiler")
        shim = compile_shim(self.folder)
        (self.folder / "root").mkdir()
        environ = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-u", "-c", IN_SHIM, str(self.folder / "root")]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        end = done.returncode, done.stdout
        self.assertEqual(end, (-signal.SIGKILL, "first 1\nsecond 28\n"), done.stderr)
        names = sorted(path.name for path in (self.folder / "root").iterdir())
        self.assertEqual(names, ["first", "second"])
        self.assertEqual(len({*CALLS.values()}), len(CALLS))

    def test_what_a_program_does_wrong_is_a_failure_of_its_kind(self):
        advice = "the corpus is empty: no row can be used. Give another file with --train-data."
        for code, out, err, kinds in (
            (0, "", "", []),
            (2, "", f"error: {advice}\n", []),
            (2, "", f"error: {advice}\nerror: {advice}\n", ["message"]),
            (2, "", "error: 'step'\n", ["message"]),
            (2, "", "", ["message", "message"]),
            (0, "", "warning\n", ["message"]),
            (139, "", "", ["exit code"]),
            (0, "Traceback (most recent call last):\n", "", ["traceback"]),
        ):
            trial = Trial(None, self.folder, random.Random(0))
            trial.check_end(Finished(code, out, err, hung=False), (0, 2))
            self.assertEqual([failure.kind for failure in trial.failures], kinds, (code, out, err))
        name = "KeyError: <Position object at 0x7f0> was raised in this run. Sorry."
        self.assertFalse(is_advice(name))

    def test_the_error_of_a_start_behind_a_proxy_is_its_own(self):
        trial = mock.Mock(helpers=[], random=random.Random(0))
        trial.start.side_effect = OSError("no process can be started")
        failure = self.assertRaisesRegex(OSError, "no process")
        with mock.patch.object(several, "Proxy") as proxy, failure:
            several._disturbed_workers(trial, mock.Mock())
        proxy.return_value.close.assert_called_once_with()
        self.assertEqual(trial.helpers, [])

    def test_a_lost_checkpoint_is_a_failure(self):
        trial = Trial(None, self.folder, random.Random(0))
        (trial.run_dir / "checkpoints" / "step-000003").mkdir(parents=True)
        for out, before, is_killed, kinds in (
            ("step      6 | loss 1\n", 0, True, []),
            ("step     10 | loss 1\n", 0, True, ["lost steps"]),  # that of step 6 was complete
            ("step     10 | loss 1\n", 6, False, ["lost steps", "lost steps"]),
            (STOPPED, 0, True, ["lost steps"]),
            (RESUMED, 6, False, ["lost steps", "lost steps"]),
        ):
            trial.failures.clear()
            finished = Finished(0, out, "", hung=False)
            trial.check_checkpoints(finished, before, is_killed, checks_start=True)
            self.assertEqual([failure.kind for failure in trial.failures], kinds, out)

    def test_no_scenario_takes_a_program_that_does_nothing_for_a_run(self):
        lab = Lab(self.folder, MuteLauncher())
        write_corpus(lab.corpus.parent)
        for step in (3, 6, 9, 12):
            checkpoint = lab.template / "checkpoints" / f"step-{step:06d}"
            for name in ("model.safetensors", "state.json"):
                self.write(checkpoint / name, bytes(range(200)))
        (lab.template / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
        lab.losses, lab.weights = losses_of(lab.template), weights_of(lab.template)
        lab.weights[STEPS] = {"model.safetensors": "another"}
        for scenario in SCENARIOS:
            # Those of several processes wait for what each says.
            if not scenario.function.startswith("scenarios."):
                continue
            kinds = set()
            for number in range(4):
                folder = self.folder / f"{scenario.name}-{number}"
                folder.mkdir()
                trial = Trial(lab, folder, random.Random(number), limit_s=1.0)
                scenario.run(trial)
                kinds |= {failure.kind for failure in trial.failures}
                self.assertTrue(trial.steps)
            self.assertIn("unequal", kinds, scenario.name)

    def test_damaged_run_folders_of_a_fixed_seed_resume_or_say_what_to_remove(self):
        Workspace.with_toy_models(self.addCleanup)
        settings, lab = self.settings(), Lab(self.folder, InProcess())
        lab.open()
        cases = [run_case(settings, lab, number, limit_s=60.0) for number in numbers_of(settings)]
        self.assertEqual([case["failures"] for case in cases], [[]] * 5)
        self.assertGreater(sum(case["processes"] for case in cases), 5)  # one follows advice
        result = {"seed": 0, "jobs": 1, "cases": cases}
        seconds = ("undisturbed_s", "undisturbed_cpu_s", "limit_s", "seconds")
        result |= dict.fromkeys(seconds, 60.0)
        self.assertFalse(failed(result))
        self.assertIn("5.0 cases and 5.0 faults a minute; 0 cases failed", describe(result))
        self.assertIn("no failures", describe(result))

    @long
    def test_cases_of_a_fixed_seed_find_nothing(self):
        out = self.folder / "chaos.json"
        flags = f"--seed 0 --cases 20 --json {out} --out {self.folder}"
        command = [sys.executable, "tests/robustness/chaos.py", *flags.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(len(json.loads(out.read_text())["cases"]), 20)
