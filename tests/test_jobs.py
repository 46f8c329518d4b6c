"""Launching independent jobs: with instant programs as training, and once with training."""

import atexit
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError
from myxtts.base.processes import REPEAT_S
from myxtts.checkpoints.files import checkpoint_of, latest, read_record, write_checkpoint
from myxtts.checkpoints.inherited import with_inherited_settings
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.commands import train
from myxtts.config.flags import with_values
from myxtts.config.load import load
from myxtts.config.schema import Config, DataConfig, LocalSGDConfig, PlacementConfig, TeacherConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.extras.jobs import launcher
from myxtts.extras.jobs.jobs_command import MERGER, main, make_parser
from myxtts.extras.jobs.merge_command import parse
from myxtts.extras.jobs.status import LauncherState, launcher_lock, read_progress, read_state
from tests.devicefeed.feeds import wait_until
from tests.fixtures import DEADLINE_S, ends, make_record, temporary_folder
from tests.long import long
from tests.sine_corpus import write_corpus
from tests.tiny import arrays_of, toy_models
from tests.two_devices import SIMULATED

ROOT = Path(__file__).parents[1]
TRAINER = """
# A run whose only weight is its step. A file beside its settings injects a fault, once or always.
# It imports nothing of MyXTTS, which takes a second: its checkpoints are copies of templates.
import hashlib, json, os, shutil, signal, struct, sys, time
from pathlib import Path
from types import SimpleNamespace
import yaml

_, _, settings, resume = sys.argv
settings = Path(settings)
values = yaml.load(settings.read_text(), yaml.CSafeLoader)
run, training = (SimpleNamespace(**values[section]) for section in ("run", "training"))
folder = Path(run.runs_dir, run.run)
faults = settings.with_suffix(".fault")
fault = json.loads(faults.read_text()) if faults.exists() else {}
saved = sorted(folder.glob("checkpoints/step-*/model.safetensors"))
weight = struct.unpack("<d", saved[-1].read_bytes()[-8:])[0] if saved else 0.0
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))

def save():
    target = folder / f"checkpoints/step-{int(weight):06d}"
    if target.exists():
        return
    partial = target.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(Path(__file__).with_name("checkpoints") / target.name, partial)
    state = json.loads((partial / "state.json").read_text())
    del state["sha256"]
    state |= {"settings": values, "audio_s_since_sync": float("unmerged" == os.environ.get("FAKE"))}
    if "unobserved" == os.environ.get("FAKE"):
        state["pending_observations"] = [(int(weight), ["validation"])]
    body = json.dumps(state, indent=1).removesuffix("\\n}") + ",\\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    (partial / "state.json").write_text(body + f' "sha256": "{digest}"\\n}}')
    partial.rename(target)

folder.mkdir(exist_ok=True)
gpus, cores = os.environ["CUDA_VISIBLE_DEVICES"], sorted(os.sched_getaffinity(0))
seen = {"gpus": gpus, "cores": cores, "resume": resume}
(folder / "seen.json").write_text(json.dumps(seen))
total = training.max_steps if training.stop_at_step is None else training.stop_at_step
while True:
    if weight == fault.get("at"):
        print("fault", flush=True)
        if fault["kind"] == "refuse":
            print("error: the fault was requested,\\nand is two lines long", file=sys.stderr)
            sys.exit(2)
        if fault["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        until_s = time.monotonic() + (600.0 if fault["kind"] in ("hang", "wait") else 0.0)
        while time.monotonic() < until_s and not (signals and fault["kind"] == "wait"):
            time.sleep(0.01)
    if signals or weight >= total:
        save()
        sys.exit(143 if signals else 0)
    weight += 1.0
    # Before the step is reported: a test that sees the step may kill this process.
    if weight == fault.get("at") and fault.get("once"):
        faults.unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        report = {"step": int(weight), "loss": 1.0 / weight, "steps_per_s": 2.0}
        report["remaining_s"] = (6.0 - weight) / 2.0
        file.write(json.dumps(report) + "\\n")
    if weight % 2 == 0:
        save()
"""
MERGE = """
# Saves its arguments. Its exit code is in the file `code` beside it.
import json, sys
from pathlib import Path
output = Path(sys.argv[sys.argv.index("--output") + 1])
output.mkdir()
(output / "arguments.json").write_text(json.dumps(sys.argv[1:]))
print("merging")
code = Path(__file__).with_name("code")
sys.exit(int(code.read_text()) if code.exists() else 0)
"""
TOY_TRAINER = """
# train_main.py with a toy network; the job on GPU 1 is killed once, when it reports step 5.
import contextlib, signal, sys
from pathlib import Path
from myxtts.commands import train
from myxtts.base.console import report_errors
from tests.fixtures import signal_at
from tests.tiny import toy_models

settings = Path(sys.argv[2])
first = settings.stem == "gpu1" and not settings.with_suffix(".killed").exists()
if first:
    settings.with_suffix(".killed").touch()
with toy_models(), signal_at(5, signal.SIGKILL) if first else contextlib.nullcontext():
    sys.exit(report_errors(lambda: train.main(sys.argv[1:])))
"""
LAUNCHER = """
import sys
from myxtts.base.console import report_errors
from myxtts.extras.jobs.jobs_command import main
folder, *flags = sys.argv[1:]
command = lambda name: (sys.executable, "-u", f"{folder}/{name}.py")
sys.exit(report_errors(lambda: main(flags, "jobs", command("trainer"), command("merger"))))
"""


@cache
def checkpoint_templates() -> Path:
    """Write what TRAINER saves after each step, but for the settings of its run."""
    folder = temporary_folder(atexit.register)
    for step in range(7):
        record = make_record(symbols=(), languages=(), speakers=(), start="first", step=step)
        groups = [("model", [("w", np.array(float(step)))])]
        write_checkpoint(checkpoint_of(folder, step), groups, record)
    return folder


class Case(unittest.TestCase):
    """A folder with a corpus of 13 utterances, and jobs of 6 steps with a warm start of 2."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        write_corpus(self.folder / "corpus", [0.4 + 0.03 * i for i in range(13)])
        for name, source in (("trainer", TRAINER), ("merger", MERGE)):
            (self.folder / f"{name}.py").write_text(source)
        os.symlink(checkpoint_templates(), self.folder / "checkpoints")
        environment = mock.patch.dict(os.environ, PYTHONPATH=str(ROOT))
        environment.start()
        self.addCleanup(environment.stop)
        self.run_folder = self.folder / "runs" / "own"

    def argv(self, *flags: str) -> list[str]:
        fixed = (
            f"--run own --runs-dir {self.folder}/runs --train-data {self.folder}/corpus/corpus.csv"
            " --text-frontend characters --validation-fraction 0.2 --max-steps 6"
            " --warmstart-steps 2 --max-restarts 1 --simulate-gpus 4"
        )
        gpus = [] if "--gpus" in flags else ["--gpus", "0", "1"]
        return [*fixed.split(), *gpus, *flags]

    def launch(self, *flags: str) -> tuple[int, str, str]:
        """Launch in this process; return exit code, stdout and stderr."""
        return self.launch_with(self.argv(*flags))

    def done(self, *flags: str) -> str:
        """Launch without a fault; return stdout."""
        code, out, err = self.launch(*flags)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def failed(self, expected: int, *flags: str) -> str:
        """Launch with this exit code; return stderr."""
        code, _, err = self.launch(*flags)
        self.assertEqual(code, expected, err)
        return err

    def rejected(self, *flags: str) -> str:
        return self.failed(2, *flags)

    def launch_with(
        self, argv: list[str], commands: Sequence[Sequence[str]] = ()
    ) -> tuple[int, str, str]:
        program = (sys.executable, "-u")
        commands = commands or [
            (*program, str(self.folder / f"{name}.py")) for name in ("trainer", "merger")
        ]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = report_errors(lambda: main(argv, "jobs", *commands))
        return code, out.getvalue(), err.getvalue()

    def started(self, *flags: str) -> subprocess.Popen:
        command = [sys.executable, "-c", LAUNCHER, str(self.folder), *self.argv(*flags)]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, **output)
        for act in (process.stdout.close, process.wait, process.kill):  # the last one first
            self.addCleanup(act)
        return process

    def fault(self, name: str, kind: str, at: int, once: bool = False) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)
        fault = {"kind": kind, "at": at, "once": once}
        (self.run_folder / f"{name}.fault").write_text(json.dumps(fault))

    def heal(self, name: str) -> None:
        (self.run_folder / f"{name}.fault").unlink()

    def read(self, name: str) -> dict:
        return json.loads((self.run_folder / name).read_text())

    def steps(self, *names: str) -> list[int]:
        return [read_progress(self.run_folder / name)["step"] for name in names]

    def reported(self, name: str) -> list[int]:
        lines = (self.run_folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    def write_state(self, *gpus: int) -> None:
        """Write the state of a launcher that has not begun."""
        self.run_folder.mkdir(parents=True)
        immutable = {"gpus": [*gpus] or [0, 1], "warmstart_steps": 2, "sync_every": 0, "corpus": {}}
        state = LauncherState(host=socket.gethostname(), total_steps=6, immutable=immutable)
        state.write(self.run_folder)

    def states(self) -> dict[str, tuple[str, int]]:
        processes = read_state(self.run_folder).processes
        return {name: (process.state, process.restarts) for name, process in processes.items()}


class JobsTest(Case):
    def test_jobs_train_on_their_shards_from_the_warm_start_and_are_merged(self):
        out = self.done()
        names = ("warmstart", "gpu0", "gpu1")
        self.assertEqual(self.steps(*names), [2, 6, 6])
        runs = {name: load(self.run_folder / f"{name}.yaml") for name in names}
        for name, config, seed, stop_at, train_data, reported in zip(
            *(names, runs.values(), (0, 0, 1), (2, None, None)),
            ("train.csv", "shard-0.csv", "shard-1.csv"),
            ([1, 2], [3, 4, 5, 6], [3, 4, 5, 6]),
            strict=True,
        ):
            training = config.training
            self.assertEqual((training.seed, training.stop_at_step), (seed, stop_at))
            # No syncs.
            self.assertEqual(config.local_sgd, LocalSGDConfig())
            self.assertEqual(Path(config.data.train_data).name, train_data)
            self.assertEqual(Path(config.data.val_data).name, "held_out.csv")
            self.assertEqual(config.placement.simulate_gpus, 0)
            seen = self.read(f"{name}/seen.json")
            self.assertEqual((seen["gpus"], seen["resume"]), ("-1", "--resume"))
            self.assertEqual(self.reported(name), reported)
        forked = read_record(self.run_folder / "gpu1/checkpoints/step-000002")
        self.assertEqual((forked.settings.run.run, forked.start), ("gpu1", "first"))
        arguments = self.read("merged/arguments.json")
        # The flags of `myxtts merge`
        options = parse(arguments)
        self.assertEqual(options.val_data, runs["warmstart"].data.val_data)
        merged = [self.run_folder / name / "checkpoints/step-000006" for name in names[1:]]
        self.assertEqual(options.checkpoints, merged)
        self.assertEqual(options.output, self.run_folder / "merged")
        self.assertEqual(arguments[5::2], ["--train-data", "--audio-root", "--val-data"])
        self.assertIn("merging\n", out)
        self.assertRegex(out, r"\nlauncher       process \d+; Ctrl-C, or `.* --stop --run ")
        for name in names:
            log = self.run_folder / f"logs/{name}_training.log"
            self.assertRegex(out, rf"\n{name} +process \d+; its log is {log}\n")
        reported = self.done("--status")
        self.assertIn("\nlauncher       done\n", reported)
        self.assertIn("\ngpu1           done, step 6 of 6, loss 0.167\n", reported)
        logs = sorted(path.stem for path in (self.run_folder / "logs").iterdir())
        self.assertEqual(logs[:2], ["gpu0_training", "gpu1_training"])

        before = (self.run_folder / "merged/arguments.json").stat().st_mtime_ns
        out = self.done("--resume")
        self.assertIn("nothing to do", out)
        self.assertEqual((self.run_folder / "merged/arguments.json").stat().st_mtime_ns, before)

        self.assertIn("which already holds a run", self.rejected())
        changed = self.rejected("--resume", "--validation-fraction", "0.4")
        self.assertIn("validation_fraction is 0.4, but the jobs in", changed)

    def test_killed_job_restarts_from_its_checkpoint(self):
        self.fault("gpu1", "kill", at=5, once=True)
        out = self.done()
        self.assertIn("gpu1 was killed by SIGKILL", out)
        self.assertEqual(self.states()["gpu1"], ("done", 1))
        self.assertEqual(self.reported("gpu1"), [3, 4, 5, 5, 6])

    def test_failed_job_is_left_out_of_the_merge_until_it_is_resumed_even_in_another_folder(self):
        self.fault("gpu1", "kill", at=5)
        flags = ("--gpus", "0", "1", "2")
        err = self.failed(1, *flags)
        states = [self.states()[name] for name in ("gpu0", "gpu1", "gpu2")]
        self.assertEqual(states, [("done", 0), ("failed", 1), ("done", 0)])
        self.assertIn("error: gpu1 was killed by SIGKILL; its last lines", err)
        missing = "the merge lacks gpu1, which failed at step 5 of 6, and with it shard 1 of the"
        self.assertIn(missing, err)
        merged = [path.parts[-3] for path in parse(self.read("merged/arguments.json")).checkpoints]
        self.assertEqual(merged, ["gpu0", "gpu2"])
        self.heal("gpu1")
        self.run_folder.parent.rename(self.folder / "moved")
        self.run_folder = self.folder / "moved" / "own"
        flags += ("--resume", "--runs-dir", str(self.folder / "moved"))
        result = self.run_folder / "merged"
        with RunFolder(result).locked():
            self.assertIn("another process is training it", self.rejected(*flags))
        # It was not renamed.
        self.assertTrue(result.exists())
        out = self.done(*flags)
        data = load(self.run_folder / "gpu1.yaml").data
        shards = [self.run_folder / "shards" / name for name in ("shard-1.csv", "held_out.csv")]
        self.assertEqual([Path(data.train_data), Path(data.val_data)], shards)
        self.assertIn("merged-1", out)
        self.assertEqual(len(parse(self.read("merged/arguments.json")).checkpoints), 3)

    def test_job_that_rejects_its_settings_is_not_restarted(self):
        self.fault("gpu1", "refuse", at=4)
        err = self.failed(1)
        self.assertEqual(self.states()["gpu1"], ("rejected", 0))
        self.assertRegex(err, "error: gpu1 ended with code 2; (.*\n)*.*requested,\n.* two")
        self.assertIn("error: there is nothing to merge; gpu0 has finished", err)
        self.assertFalse((self.run_folder / "merged").exists())

    def test_failed_warm_start_ends_all_and_can_be_retried_with_other_settings(self):
        self.fault("warmstart", "refuse", at=0)
        code, _, err = self.launch()
        self.assertEqual((code, err.count("the fault was requested")), (2, 1))
        self.assertFalse((self.run_folder / "gpu0").exists())
        self.heal("warmstart")
        self.done("--resume", "--validation-fraction", "0.4", "--warmstart-steps", "3")
        self.assertEqual(self.steps("warmstart"), [3])
        held_out = (self.run_folder / "shards/held_out.csv").read_text().splitlines()
        self.assertEqual(len(held_out), 1 + round(0.4 * 13))

    def test_job_without_the_last_sync_is_not_done(self):
        for unmerged, flags in (("unmerged", ()), ("", ("--resume",))):
            with mock.patch.dict(os.environ, FAKE=unmerged):
                code, _, err = self.launch("--num-syncs", "2", *flags)
        starts = (self.run_folder / "logs/gpu1_training.log").read_text().count("=== ")
        self.assertEqual((code, starts), (1, 2), err)  # the stand-in does not merge
        self.assertIn("the merge lacks gpu1, which failed at step 6 of 6", err)

    def test_a_job_repeats_the_observation_that_its_last_step_lacks(self):
        for unobserved, flags in (("unobserved", ()), ("", ("--resume",))):
            with mock.patch.dict(os.environ, FAKE=unobserved):
                self.launch(*flags)
        starts = (self.run_folder / "logs/gpu1_training.log").read_text().count("=== ")
        self.assertEqual(starts, 2)

    def test_merge_worse_than_a_job_returns_1(self):
        (self.folder / "code").write_text("1")
        for flags in ((), ("--resume",)):
            code, out, err = self.launch(*flags)
            self.assertEqual((code, err), (1, ""))
            self.assertIn("merged has the weights of the best job", out)

    def test_init_from_fixes_settings_and_skips_the_warm_start(self):
        checkpoints = self.folder / "runs/pretrained/checkpoints"
        values = {"text_frontend": "characters", "model_size": "small"}
        record = make_record(settings=with_values(Config(), values))
        write_checkpoint(checkpoints / "step-000009", [], record)
        argv = self.argv("--init-from", str(checkpoints.parent), "--freeze", "decoder")
        for flag in ("--text-frontend", "--warmstart-steps"):
            del argv[argv.index(flag) : argv.index(flag) + 2]
        code, _, err = self.launch_with(argv)
        self.assertEqual((code, err), (0, ""))
        for name, stop_at in (("warmstart", 0), ("gpu0", None), ("gpu1", None)):
            config = load(self.run_folder / f"{name}.yaml")
            given = {"init_from": str(checkpoints.parent), "freeze": ("decoder",)}
            given |= {"stop_at_step": stop_at}
            self.assertEqual(config, with_values(config, values | given))


class StopTest(Case):
    def test_sigterm_lets_all_jobs_save_and_resume_continues(self):
        for name in ("gpu0", "gpu1"):
            self.fault(name, "wait", at=3, once=True)
        process = self.started()
        wait_until(lambda: self.steps("gpu0", "gpu1") == [3, 3])
        self.assertIn("another process is training it", self.rejected("--resume"))
        out = self.done("--status")
        self.assertIn(f"launcher       running (process {process.pid})", out)
        line = r"gpu0 +running, step 3 of 6, loss 0\.333, process \d+, 1\.5 s left\n"
        self.assertRegex(out, line)
        stop_command = self.started("--stop")
        output, _ = process.communicate(timeout=DEADLINE_S)
        stopped = f"stopped the launcher of {self.run_folder} (process {process.pid})"
        self.assertIn(stopped, stop_command.stdout.read())
        self.assertEqual(stop_command.wait(DEADLINE_S), 0)
        self.assertEqual(process.returncode, 143, output)
        self.assertIn("stopped by SIGTERM in stage jobs", output)
        self.assertEqual({state for state, _ in self.states().values()}, {"done", "stopped"})
        for name in ("gpu0", "gpu1"):
            newest = latest(self.run_folder / name / "checkpoints")
            self.assertEqual(newest.name, "step-000003")
        self.assertIn("no launcher", self.launch("--stop")[1])
        self.assertEqual(self.launch("--resume")[0], 0)
        self.assertEqual(self.steps("gpu0", "gpu1"), [6, 6])

    def test_second_ctrl_c_kills(self):
        self.fault("warmstart", "hang", at=1)
        process = self.started()
        wait_until(lambda: self.steps("warmstart") == [1])
        pid = read_state(self.run_folder).processes["warmstart"].pid
        process.send_signal(signal.SIGINT)
        self.assertIn(
            "SIGINT: all runs write a checkpoint and end; a second Ctrl-C kills them\n",
            iter(process.stdout.readline, ""),
        )
        time.sleep(REPEAT_S)  # what follows within this time is the same request
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(DEADLINE_S), 130)
        self.assertTrue(ends(pid))
        self.assertEqual(self.states()["warmstart"], ("stopped", 0))

    def test_jobs_die_with_a_killed_launcher_and_resume_continues(self):
        self.fault("gpu1", "wait", at=3, once=True)
        process = self.started()
        wait_until(lambda: self.steps("gpu1") == [3])
        pid = read_state(self.run_folder).processes["gpu1"].pid
        process.kill()
        process.wait()
        self.assertTrue(ends(pid))
        out = self.done("--status")
        self.assertIn("launcher       not running; resume with --resume", out)
        self.assertRegex(out, r"gpu1\s+dead")
        self.assertEqual(self.launch("--resume")[0], 0)
        self.assertEqual(self.steps("gpu0", "gpu1"), [6, 6])

    def test_stop_finds_the_launcher_by_its_lock(self):
        self.write_state()
        signals = []
        with (
            ExitStack() as running,
            mock.patch("os.kill", lambda *signal: (signals.append(signal), running.close())),
        ):
            running.enter_context(launcher_lock(self.run_folder))
            self.assertIn(f"running (process {os.getpid()})", self.launch("--status")[1])
            code, out, _ = self.launch("--stop")
        self.assertEqual((code, signals), (0, [(os.getpid(), signal.SIGTERM)]))
        self.assertIn(f"stopped the launcher of {self.run_folder} (process {os.getpid()})", out)

    def test_stop_does_not_signal_a_process_with_the_pid_of_a_killed_launcher(self):
        self.write_state()
        (self.run_folder / "launcher.pid").write_text(f"{os.getpid()}\n")
        # By a run that is no launcher.
        with RunFolder(self.run_folder).locked(), mock.patch("os.kill") as sent:
            code, out, _ = self.launch("--stop")
        self.assertEqual((code, sent.call_count), (0, 0))
        self.assertIn("no launcher", out)


class SettingsTest(Case):
    def test_file_of_one_gpu_overrides_settings_of_its_job(self):
        path = self.folder / "own.yaml"
        path.write_text("training: {warmup_steps: 3}\n")
        gpu_config = self.folder / "own_gpu1.yaml"
        gpu_config.write_text("defaults: [own]\ndata: {num_workers: 7}\n")
        out = self.done("--config", str(path), "--intra-op-threads", "1")
        self.assertIn(f"gpu1           has its own settings: {gpu_config}", out)
        configs = [load(self.run_folder / f"gpu{gpu}.yaml") for gpu in (0, 1)]
        self.assertEqual([config.data.num_workers for config in configs], [2, 7])
        self.assertEqual([config.training.warmup_steps for config in configs], [3, 3])
        # A job on a simulated GPU keeps the settings of its threads alone.
        placements = [config.placement for config in configs]
        self.assertEqual(placements, [PlacementConfig(intra_op_threads=1)] * 2)
        for section, setting, value in (
            ("local_sgd", "sync_every", "7"),
            ("model", "model_size", "big"),
        ):
            gpu_config.write_text(f"defaults: [own]\n{section}: {{{setting}: {value}}}\n")
            error = self.rejected("--config", str(path), "--resume")
            self.assertIn(f"own_gpu1.yaml sets {setting} to {value} for one job", error)

    def test_all_jobs_have_the_texts_of_the_warm_start(self):
        shared = Config(teacher=TeacherConfig(teacher="runs/voice", texts="a.txt"))
        for name, value in (("texts", "b.txt"), ("teacher_fraction", 0.0)):
            job = with_values(shared, {name: value})
            reason = f"job.yaml sets {name} to {value} for one job"
            with self.assertRaisesRegex(ConfigError, reason):
                launcher.check_job_settings(shared, job, Path("job.yaml"))

    def test_the_text_front_end_is_the_teachers(self):
        voice = Config(data=DataConfig(text_frontend="characters"))
        checkpoints = self.folder / "voice" / "checkpoints"
        checkpoints.mkdir(parents=True)
        write_checkpoint(checkpoints / "step-000009", [], make_record(settings=voice))
        teacher = TeacherConfig(teacher=str(checkpoints.parent))
        for data in (DataConfig(), DataConfig(text_frontend="characters")):
            config = with_inherited_settings(Config(data=data, teacher=teacher))
            self.assertEqual(config.data.text_frontend, "characters")
        other = Config(data=DataConfig(text_frontend="phonemes"), teacher=teacher)
        reason = "^text_frontend phonemes was given, but the teacher .* has characters"
        with self.assertRaisesRegex(ConfigError, reason):
            with_inherited_settings(other)

    def test_mistakes_are_explained_before_any_file_is_written(self):
        mistakes = {
            "jobs on the GPUs 0 4 were requested, but there are 4.": "--gpus 0 4",
            "GPUs 1 1 were requested.* two different GPUs": "--gpus 1 1",
            "GPUs 0 were requested.* two different GPUs": "--gpus 0",
            "--model-gpu was given .* one GPU each .* Give --gpus": "--model-gpu 0",
            "--placement auto was given .* Give --gpus instead": "--placement auto",
            "--epochs was given .* Give --max-steps instead": "--epochs 2",
            "--stop-at-step was given .* Give --warmstart-steps instead": "--stop-at-step 2",
            "--jobs or --job was given .* Give --gpus instead": "--jobs 2",
            "job is 1, but .* numbered from 0. Give a smaller --job": "--job 1",
            "--warmstart-steps 6 was given": "--warmstart-steps 6",
            "--num-syncs 2 and sync_every 3 were both given": "--num-syncs 2 --sync-every 3",
            "has no independent jobs": "--status",
            "nowhere has no checkpoint": "--init-from nowhere",
        }
        for message, flags in mistakes.items():
            with self.subTest(message=message):
                self.assertRegex(self.rejected(*flags.split()), message)
        self.assertFalse((self.folder / "runs").exists())

    def test_folder_of_another_run_is_not_changed(self):
        for name in ("checkpoints", "warmstart"):
            folder = self.folder / "runs" / f"of_{name}"
            (folder / name).mkdir(parents=True)
            for flags in ((), ("--resume",)):
                error = self.rejected("--run", folder.name, *flags)
                self.assertIn(f"{folder}, which already holds a run", error)
            self.assertEqual([path.name for path in folder.iterdir()], [name])

    def test_damaged_state_file_is_explained(self):
        self.run_folder.mkdir(parents=True)
        no_gpus = b'{"host": "a", "immutable": {"warmstart_steps": 0}, "total_steps": 6}'
        for content in (b"", b"{", b"[]", b'{"host": 7}', b"\xff", no_gpus):
            (self.run_folder / "launcher.json").write_bytes(content)
            for flag in ("--status", "--stop", "--resume"):
                with self.subTest(content=content, flag=flag):
                    self.assertIn("launcher.json cannot be read", self.rejected(flag))

    def test_simulation_beside_real_gpus_is_a_warning(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            _, out, _ = self.launch("--gpus", "1", "1")  # rejected after the warning
        self.assertRegex(out, r"^WARNING .*--simulate-gpus 4 .* real GPUs \(2\)")

    def test_a_machine_without_gpus_is_offered_simulated_ones(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            code, out, err = self.launch("--simulate-gpus", "0")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("there are 0. Name others with --gpus, make more visible", err)
        self.assertIn("try it on the CPU with --simulate-gpus 2", err)

    def test_a_resumed_run_without_its_gpus_is_rejected(self):
        self.write_state(0, 3)
        # Jobs have no config.yaml, and may need no other flag.
        self.assertNotIn("config.yaml", make_parser().epilog)
        flags = f"--run own --runs-dir {self.folder}/runs --resume"
        self.assertEqual(self.launch_with([*flags.split(), "--status"])[0], 0)
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            code, _, err = self.launch_with(flags.split())
        self.assertEqual(code, 2)
        self.assertIn("jobs on the GPUs 0 3 were requested", err)

    def test_there_are_at_most_num_syncs_syncs(self):
        for total, warmstart, num_syncs, expected in (
            *((40, 0, 4, 10), (40, 10, 3, 10), (40, 4, 3, 14), (7, 0, 7, 1), (7, 2, 1, 7)),
        ):
            every = launcher.sync_interval(total, warmstart, num_syncs)
            self.assertEqual(every, expected)
            steps = range(warmstart + 1, total + 1)
            syncs = [step for step in steps if step % every == 0 or step == total]
            self.assertLessEqual(len(syncs), num_syncs)

    def test_each_job_sees_only_its_gpu(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7,9"):
            devices = launcher.job_devices((2, 0), 0)
            self.assertEqual([device.gpus for device in devices], [("9",), ("4",)])
            with self.assertRaisesRegex(PlacementError, "there are 3"):
                launcher.job_devices((0, 3), 0)
        for gpus, simulated, cores in (((1, 0), 2, [{5, 6}, {1, 2}]), ((0, 1), 6, [None, None])):
            with mock.patch.object(launcher, "usable_cores", lambda: [1, 2, 5, 6, 7]):
                devices = launcher.job_devices(gpus, simulated)
            self.assertEqual([device.cores for device in devices], cores)


@long
class RealTrainingTest(Case):
    def test_killed_job_ends_bit_identical_to_an_uninterrupted_run(self):
        flags = (
            "--simulate-gpus 2 --validation-fraction 0 --validate-every 0 --sample-every 0"
            " --model-size tiny --batch-size 2 --log-every 1 --checkpoint-every 2"
            " --keep-checkpoints 9"
        )
        argv = self.argv(*flags.split())
        self.assertEqual(self.launch_with(argv, ((sys.executable, "-c", "exit(2)"), MERGER))[0], 2)
        self.train("warmstart")  # in this process, which saves one import of TensorFlow
        (self.folder / "trainer.py").write_text(TOY_TRAINER)
        trainer = (sys.executable, "-u", str(self.folder / "trainer.py"))
        code, out, err = self.launch_with([*argv, "--resume"], (trainer, MERGER))
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn("gpu1 was killed by SIGKILL", out)
        parts = read_record(latest(self.run_folder / "merged/checkpoints")).merge_inputs
        inputs = [(Path(part.checkpoint).parts[-3], part.step) for part in parts]
        self.assertEqual(inputs, [("gpu0", 6), ("gpu1", 6)])

        start = self.run_folder / "gpu1/checkpoints/step-000002"
        shutil.copytree(start, self.run_folder / "again/checkpoints/step-000002")
        self.train("gpu1", "--run", "again")
        killed, whole = (
            {key: array.tobytes() for key, array in arrays_of(latest(run / "checkpoints"))}
            for run in (self.run_folder / "gpu1", self.run_folder / "again")
        )
        self.assertEqual(killed, whole)

    def train(self, name: str, *flags: str) -> None:
        """Train the run of this name in this process with the toy network."""
        config = str(self.run_folder / f"{name}.yaml")
        argv = ["--config", config, "--resume", "--simulate-gpus", str(SIMULATED)]
        with toy_models(), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(train.main([*argv, *flags]), 0)
