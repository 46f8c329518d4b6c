"""Launching independent jobs: with instant programs as training, and once with training."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from myxtts.commands import train
from myxtts.commands.console import report_errors
from myxtts.commands.jobs import MERGER, main
from myxtts.commands.merge import parse
from myxtts.config.load import load
from myxtts.config.schema import (
    Config,
    DataConfig,
    LocalSGDConfig,
    ModelConfig,
    PlacementConfig,
    TeacherConfig,
)
from myxtts.distributed.processes import REPEAT_S
from myxtts.errors import ConfigError, PlacementError
from myxtts.local_sgd.job_settings import check_job_settings, job_config, sync_interval, updated
from myxtts.local_sgd.launcher import job_devices
from myxtts.local_sgd.shards import CorpusShards
from myxtts.local_sgd.status import (
    ImmutableSettings,
    launcher_lock,
    new_state,
    read_progress,
    read_state,
)
from myxtts.training.checkpoint_files import latest, read_record, write_checkpoint
from myxtts.training.runs import RunFolder, with_inherited_settings
from tests.feeds import wait_until
from tests.fixtures import DEADLINE_S, ends, make_record, temporary_folder
from tests.long import long
from tests.sine_corpus import write_corpus
from tests.tiny import arrays_of, toy_models
from tests.two_devices import SIMULATED

ROOT = Path(__file__).parents[1]
TRAINER = """
# A run whose only weight is its step. A file beside its settings injects a fault, once or always.
import json, os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import yaml
from myxtts.audio.format import AUDIO_FORMAT
from myxtts.config.schema import Config
from myxtts.training.checkpoint_files import (
    Checkpoint, Record, checkpoint_of, latest, write_checkpoint
)

_, _, settings, resume = sys.argv
settings = Path(settings)
values = yaml.load(settings.read_text(), yaml.CSafeLoader)
run, training = (SimpleNamespace(**values[section]) for section in ("run", "training"))
folder = Path(run.runs_dir, run.run)
faults = settings.with_suffix(".fault")
fault = json.loads(faults.read_text()) if faults.exists() else {}
newest = latest(folder / "checkpoints")
weight = float(Checkpoint.read(newest).arrays("model")["w"]) if newest else 0.0
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))

def save():
    record = Record(
        settings=Config.model_validate_json(json.dumps(values)),
        symbols=(), languages=(), speakers=(), audio_format=AUDIO_FORMAT, start="first",
        step=int(weight),
        audio_s_since_sync=float("unmerged" == os.environ.get("FAKE")),
    )
    if "unobserved" == os.environ.get("FAKE"):
        record = record.model_copy(update={"pending_observations": [(int(weight), ["validation"])]})
    target = checkpoint_of(folder / "checkpoints", int(weight))
    if not target.exists():
        write_checkpoint(target, [("model", [("w", np.array(weight))])], record)

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
from myxtts.commands.console import report_errors
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
from myxtts.commands.console import report_errors
from myxtts.commands.jobs import main
folder, *flags = sys.argv[1:]
command = lambda name: (sys.executable, "-u", f"{folder}/{name}.py")
sys.exit(report_errors(lambda: main(flags, "jobs", command("trainer"), command("merger"))))
"""


class Case(unittest.TestCase):
    """A folder with a corpus of 13 utterances, and jobs of 6 steps with a warm start of 2."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        write_corpus(self.folder / "corpus", [0.4 + 0.03 * i for i in range(13)])
        for name, source in (("trainer", TRAINER), ("merger", MERGE)):
            (self.folder / f"{name}.py").write_text(source)
        environment = mock.patch.dict(os.environ, PYTHONPATH=str(ROOT))
        environment.start()
        self.addCleanup(environment.stop)
        self.run_folder = self.folder / "runs" / "own"

    def argv(self, *flags: str) -> list[str]:
        fixed = (
            f"--run own --runs-dir {self.folder / 'runs'} --train-data"
            f" {self.folder / 'corpus' / 'corpus.csv'}"
        )
        fixed += (
            " --text-frontend characters --validation-fraction 0.2 --max-steps 6 --warmstart-steps"
            " 2 --max-restarts 1"
        )
        gpus = [] if "--gpus" in flags else ["--gpus", "0", "1"]
        return [*fixed.split(), "--simulate-gpus", "4", *gpus, *flags]

    def launch(self, *flags: str) -> tuple[int, str, str]:
        """Launch in this process; return exit code, stdout and stderr."""
        return self.launch_with(self.argv(*flags))

    def launch_with(
        self, argv: list[str], commands: Sequence[Sequence[str]] = ()
    ) -> tuple[int, str, str]:
        commands = commands or [
            (sys.executable, "-u", str(self.folder / f"{name}.py"))
            for name in ("trainer", "merger")
        ]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = report_errors(lambda: main(argv, "jobs", *commands))
        return code, out.getvalue(), err.getvalue()

    def started(self, *flags: str) -> subprocess.Popen:
        command = [sys.executable, "-c", LAUNCHER, str(self.folder), *self.argv(*flags)]
        launcher = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for act in (launcher.stdout.close, launcher.wait, launcher.kill):  # the last one first
            self.addCleanup(act)
        return launcher

    def fault(self, name: str, kind: str, at: int, once: bool = False) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)
        (self.run_folder / f"{name}.fault").write_text(
            json.dumps({"kind": kind, "at": at, "once": once})
        )

    def heal(self, name: str) -> None:
        (self.run_folder / f"{name}.fault").unlink()

    def read(self, name: str) -> dict:
        return json.loads((self.run_folder / name).read_text())

    def steps(self, *names: str) -> list[int]:
        return [read_progress(self.run_folder / name).step for name in names]

    def reported(self, name: str) -> list[int]:
        return [
            json.loads(line)["step"]
            for line in (self.run_folder / name / "metrics.jsonl").read_text().splitlines()
        ]

    def states(self) -> dict[str, tuple[str, int]]:
        processes = read_state(self.run_folder).processes
        return {name: (process.state, process.restarts) for name, process in processes.items()}


class JobsTest(Case):
    def test_jobs_train_on_their_shards_from_the_warm_start_and_are_merged(self):
        code, out, err = self.launch()
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(self.steps("warmstart", "gpu0", "gpu1"), [2, 6, 6])
        runs = {
            name: load(self.run_folder / f"{name}.yaml") for name in ("warmstart", "gpu0", "gpu1")
        }
        self.assertEqual([config.training.seed for config in runs.values()], [0, 0, 1])
        self.assertEqual(
            [config.training.stop_at_step for config in runs.values()], [2, None, None]
        )
        # No syncs.
        self.assertEqual([config.local_sgd for config in runs.values()], [LocalSGDConfig()] * 3)
        self.assertEqual(
            [Path(config.data.train_data).name for config in runs.values()],
            ["train.csv", "shard-0.csv", "shard-1.csv"],
        )
        for name, config in runs.items():
            self.assertEqual(Path(config.data.val_data).name, "held_out.csv")
            self.assertEqual(config.placement.simulate_gpus, 0)
            seen = self.read(f"{name}/seen.json")
            self.assertEqual((seen["gpus"], seen["resume"]), ("-1", "--resume"))
        self.assertEqual(
            [self.reported(name) for name in runs], [[1, 2], [3, 4, 5, 6], [3, 4, 5, 6]]
        )
        forked = read_record(self.run_folder / "gpu1/checkpoints/step-000002")
        self.assertEqual((forked.settings.run.run, forked.start), ("gpu1", "first"))
        arguments = self.read("merged/arguments.json")
        # The flags of `myxtts merge`
        self.assertEqual(parse(arguments).val_data, runs["warmstart"].data.val_data)
        self.assertEqual(
            arguments[:5],
            [
                "--checkpoints",
                *(
                    str(self.run_folder / name / "checkpoints/step-000006")
                    for name in ("gpu0", "gpu1")
                ),
                "--output",
                str(self.run_folder / "merged"),
            ],
        )
        self.assertEqual(arguments[5::2], ["--train-data", "--audio-root", "--val-data"])
        self.assertIn("merging\n", out)
        self.assertRegex(out, r"gpu1\s+done\s+6 of 6  0\.167\s+2\.00")
        self.assertEqual(
            sorted(path.stem for path in (self.run_folder / "logs").iterdir())[:2],
            ["gpu0_training", "gpu1_training"],
        )

        before = (self.run_folder / "merged/arguments.json").stat().st_mtime_ns
        code, out, _ = self.launch("--resume")
        self.assertEqual(code, 0)
        self.assertIn("nothing to do", out)
        self.assertEqual((self.run_folder / "merged/arguments.json").stat().st_mtime_ns, before)

        rejected = self.launch()
        self.assertEqual(rejected[0], 2)
        self.assertIn("already holds independent jobs", rejected[2])
        code, _, err = self.launch("--resume", "--validation-fraction", "0.4")
        self.assertEqual(code, 2)
        self.assertIn("validation_fraction is 0.4, but the jobs in", err)

    def test_killed_job_restarts_from_its_checkpoint(self):
        self.fault("gpu1", "kill", at=5, once=True)
        code, out, err = self.launch()
        self.assertEqual((code, err), (0, ""))
        self.assertIn("gpu1 was killed by SIGKILL", out)
        self.assertEqual(self.states()["gpu1"], ("done", 1))
        self.assertEqual(self.reported("gpu1"), [3, 4, 5, 5, 6])

    def test_failed_job_is_left_out_of_the_merge_until_it_is_resumed_even_in_another_folder(self):
        self.fault("gpu1", "kill", at=5)
        flags = ("--gpus", "0", "1", "2")
        code, _, err = self.launch(*flags)
        self.assertEqual(code, 1)
        self.assertEqual(
            [self.states()[name] for name in ("gpu0", "gpu1", "gpu2")],
            [("done", 0), ("failed", 1), ("done", 0)],
        )
        self.assertIn("error: gpu1 was killed by SIGKILL; its last lines", err)
        self.assertRegex(
            err,
            r"the merge lacks gpu1, which failed at step 5 of 6, and with it shard 1 .*"
            r"\(\d utterances, 0\.\d+ minutes\)",
        )
        self.assertEqual(
            [Path(path).parts[-3] for path in self.read("merged/arguments.json")[1:3]],
            ["gpu0", "gpu2"],
        )
        self.heal("gpu1")
        self.run_folder.parent.rename(self.folder / "moved")
        self.run_folder = self.folder / "moved" / "own"
        code, out, err = self.launch(*flags, "--resume", "--runs-dir", str(self.folder / "moved"))
        self.assertEqual((code, err), (0, ""))
        data = load(self.run_folder / "gpu1.yaml").data
        shards = [self.run_folder / "shards" / name for name in ("shard-1.csv", "held_out.csv")]
        self.assertEqual([Path(data.train_data), Path(data.val_data)], shards)
        self.assertIn("merged-1", out)
        self.assertEqual(
            len(self.read("merged/arguments.json")),
            4 + len(self.read("merged-1/arguments.json")) - 3,
        )

    def test_job_that_rejects_its_settings_is_not_restarted(self):
        self.fault("gpu1", "refuse", at=4)
        code, _, err = self.launch()
        self.assertEqual(code, 1)
        self.assertEqual(self.states()["gpu1"], ("rejected", 0))
        self.assertRegex(err, "error: gpu1 ended with code 2; (.*\n)*.*requested,\n.* two")
        self.assertIn("error: there is nothing to merge; only gpu0 has finished", err)
        self.assertFalse((self.run_folder / "merged").exists())

    def test_failed_warm_start_ends_all_and_can_be_retried_with_other_settings(self):
        self.fault("warmstart", "refuse", at=0)
        code, _, err = self.launch()
        self.assertEqual((code, err.count("the fault was requested")), (2, 1))
        self.assertFalse((self.run_folder / "gpu0").exists())
        self.heal("warmstart")
        code, _, err = self.launch(
            "--resume", "--validation-fraction", "0.4", "--warmstart-steps", "3"
        )
        self.assertEqual((code, err), (0, ""))
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

    def test_a_result_that_another_process_trains_is_not_renamed(self):
        self.fault("gpu1", "kill", at=5)
        flags = ("--gpus", "0", "1", "2")
        self.assertEqual(self.launch(*flags)[0], 1)
        self.heal("gpu1")
        merged = self.run_folder / "merged"
        with RunFolder(merged).locked():
            code, _, err = self.launch("--resume", *flags)
        self.assertEqual((code, merged.exists()), (2, True), err)
        self.assertIn("another process is training it", err)

    def test_merge_worse_than_a_job_returns_1(self):
        (self.folder / "code").write_text("1")
        for flags in ((), ("--resume",)):
            code, out, err = self.launch(*flags)
            self.assertEqual((code, err), (1, ""))
            self.assertIn("merged has the weights of the best job", out)

    def test_init_from_fixes_settings_and_skips_the_warm_start(self):
        checkpoints = self.folder / "runs/pretrained/checkpoints"
        settings = Config(
            data=DataConfig(text_frontend="characters"), model=ModelConfig(model_size="small")
        )
        write_checkpoint(checkpoints / "step-000009", [], make_record(settings=settings))
        argv = [
            flag
            for flag in self.argv("--init-from", str(checkpoints.parent), "--freeze", "decoder")
        ]
        for flag in ("--text-frontend", "--warmstart-steps"):
            del argv[argv.index(flag) : argv.index(flag) + 2]
        code, _, err = self.launch_with(argv)
        self.assertEqual((code, err), (0, ""))
        for name, stop_at in (("warmstart", 0), ("gpu0", None), ("gpu1", None)):
            config = load(self.run_folder / f"{name}.yaml")
            self.assertEqual(
                (config.data.text_frontend, config.model.model_size), ("characters", "small")
            )
            self.assertEqual(
                (config.training.init_from, config.training.freeze),
                (str(checkpoints.parent), ("decoder",)),
            )
            self.assertEqual(config.training.stop_at_step, stop_at)


class StopTest(Case):
    def test_sigterm_lets_all_jobs_save_and_resume_continues(self):
        for name in ("gpu0", "gpu1"):
            self.fault(name, "wait", at=3, once=True)
        launcher = self.started()
        wait_until(lambda: self.steps("gpu0", "gpu1") == [3, 3])
        rival = self.launch("--resume")
        self.assertEqual(rival[0], 2)
        self.assertIn("another process is training it", rival[2])
        code, out, _ = self.launch("--status")
        self.assertEqual(code, 0)
        self.assertIn(f"launcher       running (process {launcher.pid})", out)
        self.assertRegex(out, r"gpu0\s+running  3 of 6  0\.333\s+2\.00  1\.5 s")
        stop_command = self.started("--stop")
        output, _ = launcher.communicate(timeout=DEADLINE_S)
        self.assertIn(
            f"stopped the launcher of {self.run_folder} (process {launcher.pid})",
            stop_command.stdout.read(),
        )
        self.assertEqual(stop_command.wait(DEADLINE_S), 0)
        self.assertEqual(launcher.returncode, 143, output)
        self.assertIn("stopped by SIGTERM in stage jobs", output)
        self.assertEqual({state for state, _ in self.states().values()}, {"done", "stopped"})
        self.assertEqual(
            [latest(self.run_folder / name / "checkpoints").name for name in ("gpu0", "gpu1")],
            ["step-000003"] * 2,
        )
        self.assertIn("no launcher", self.launch("--stop")[1])
        self.assertEqual(self.launch("--resume")[0], 0)
        self.assertEqual(self.steps("gpu0", "gpu1"), [6, 6])

    def test_second_ctrl_c_kills(self):
        self.fault("warmstart", "hang", at=1)
        launcher = self.started()
        wait_until(lambda: self.steps("warmstart") == [1])
        process = read_state(self.run_folder).processes["warmstart"]
        launcher.send_signal(signal.SIGINT)
        self.assertIn(
            "SIGINT: all runs write a checkpoint and end; a second Ctrl-C kills them\n",
            iter(launcher.stdout.readline, ""),
        )
        time.sleep(REPEAT_S)  # what follows within this time is the same request
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(DEADLINE_S), 130)
        self.assertTrue(ends(process.pid))
        self.assertEqual(self.states()["warmstart"], ("stopped", 0))

    def test_jobs_die_with_a_killed_launcher_and_resume_continues(self):
        self.fault("gpu1", "wait", at=3, once=True)
        launcher = self.started()
        wait_until(lambda: self.steps("gpu1") == [3])
        process = read_state(self.run_folder).processes["gpu1"]
        launcher.kill()
        launcher.wait()
        self.assertTrue(ends(process.pid))
        code, out, _ = self.launch("--status")
        self.assertEqual(code, 0)
        self.assertIn("launcher       not running; resume with --resume", out)
        self.assertRegex(out, r"gpu1\s+dead")
        self.assertEqual(self.launch("--resume")[0], 0)
        self.assertEqual(self.steps("gpu0", "gpu1"), [6, 6])

    def test_stop_finds_the_launcher_by_its_lock_on_any_system(self):
        self.write_state()
        signals = []
        with (
            ExitStack() as running,
            # Linux alone has it.
            mock.patch.object(os, "pidfd_open", side_effect=AttributeError, create=True),
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

    def test_damaged_pid_is_not_signalled(self):
        self.write_state()
        for content in (b"", b"0\n", b"-1\n", b"7", b"\xff\n", b"1" * 40):
            with launcher_lock(self.run_folder), mock.patch("os.kill") as sent:
                (self.run_folder / "launcher.pid").write_bytes(content)
                code, _, err = self.launch("--stop")
            self.assertEqual((code, sent.call_count), (2, 0), content)
            self.assertIn("launcher.pid is damaged", err)

    def write_state(self) -> None:
        self.run_folder.mkdir(parents=True)
        new_state(
            6, ImmutableSettings(gpus=[0, 1], warmstart_steps=2, sync_every=0, corpus={})
        ).write(self.run_folder)


class SettingsTest(Case):
    def test_file_of_one_gpu_overrides_settings_of_its_job(self):
        path = self.folder / "own.yaml"
        path.write_text("training: {warmup_steps: 3}\n")
        gpu_config = self.folder / "own_gpu1.yaml"
        gpu_config.write_text("defaults: [own]\ndata: {num_workers: 7}\n")
        code, out, err = self.launch("--config", str(path))
        self.assertEqual((code, err), (0, ""))
        self.assertIn(f"gpu1           has its own settings: {gpu_config}", out)
        configs = [load(self.run_folder / f"gpu{gpu}.yaml") for gpu in (0, 1)]
        self.assertEqual([config.data.num_workers for config in configs], [2, 7])
        self.assertEqual([config.training.warmup_steps for config in configs], [3, 3])
        gpu_config.write_text("defaults: [own]\nlocal_sgd: {sync_every: 7}\n")
        code, _, err = self.launch("--config", str(path), "--resume")
        self.assertEqual(code, 2)
        self.assertIn("own_gpu1.yaml sets sync_every to 7 for one job", err)
        gpu_config.write_text("defaults: [own]\nmodel: {model_size: big}\n")
        code, _, err = self.launch("--config", str(path), "--resume")
        self.assertEqual(code, 2)
        self.assertIn("own_gpu1.yaml sets model_size to big for one job", err)

    def test_all_jobs_have_the_texts_of_the_warm_start(self):
        shared = Config(teacher=TeacherConfig(teacher="runs/voice", texts="a.txt"))
        for name, value in (("texts", "b.txt"), ("teacher_fraction", 0.0)):
            job = updated(shared, teacher={name: value})
            with self.assertRaisesRegex(
                ConfigError, f"job.yaml sets {name} to {value} for one job"
            ):
                check_job_settings(shared, job, Path("job.yaml"))

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
        with self.assertRaisesRegex(
            ConfigError, "^text_frontend phonemes was given, but the teacher .* has characters"
        ):
            with_inherited_settings(other)

    def test_mistakes_are_explained_before_any_file_is_written(self):
        mistakes = {
            "--simulate-gpus 4 makes GPUs 0 to 3": ["--gpus", "0", "4"],
            "Name two different GPUs": ["--gpus", "1", "1"],
            "--model-gpu was given, but each job has a single GPU": ["--model-gpu", "0"],
            "--placement auto was given": ["--placement", "auto"],
            "Give --max-steps, and leave out --epochs": ["--epochs", "2"],
            "Give --warmstart-steps instead": ["--stop-at-step", "2"],
            "--jobs or --job was given": ["--jobs", "2"],
            "--warmstart-steps 6 was given": ["--warmstart-steps", "6"],
            "--num-syncs 2 and sync_every 3 were both given": [
                "--num-syncs",
                "2",
                "--sync-every",
                "3",
            ],
            "has no independent jobs": ["--status"],
            "nowhere has no checkpoint": ["--init-from", "nowhere"],
        }
        for message, flags in mistakes.items():
            with self.subTest(message=message):
                code, _, err = self.launch(*flags)
                self.assertEqual(code, 2)
                self.assertIn(message, err)
        self.assertFalse((self.folder / "runs").exists())

    def test_folder_of_another_run_is_not_changed(self):
        for name in ("checkpoints", "warmstart"):
            folder = self.folder / "runs" / f"of_{name}"
            (folder / name).mkdir(parents=True)
            for flags in ((), ("--resume",)):
                code, _, err = self.launch("--run", folder.name, *flags)
                self.assertEqual(code, 2)
                self.assertIn(f"{folder / name} belongs to something else", err)
            self.assertEqual([path.name for path in folder.iterdir()], [name])

    def test_damaged_state_file_is_explained(self):
        for content in (b"", b"{", b"[]", b'{"host": 7}', b"\xff"):
            self.run_folder.mkdir(parents=True, exist_ok=True)
            (self.run_folder / "launcher.json").write_bytes(content)
            for flag in ("--status", "--stop", "--resume"):
                with self.subTest(content=content, flag=flag):
                    code, _, err = self.launch(flag)
                    self.assertEqual(code, 2)
                    self.assertIn("launcher.json cannot be read", err)

    def test_simulation_beside_real_gpus_is_a_warning(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            _, out, _ = self.launch("--gpus", "1", "1")  # rejected after the warning
        self.assertRegex(out, r"^WARNING .*--simulate-gpus 4 .* real GPUs \(2\)")

    def test_a_machine_without_gpus_is_offered_simulated_ones(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            code, out, err = self.launch("--simulate-gpus", "0")
        self.assertEqual((code, out), (2, ""))
        self.assertIn(
            "sees no GPU. Make some visible, or try it on the CPU with --simulate-gpus 2", err
        )

    def test_a_resumed_run_without_its_gpus_is_not_said_to_name_them(self):
        self.run_folder.mkdir(parents=True)
        new_state(
            6, ImmutableSettings(gpus=[0, 3], warmstart_steps=2, sync_every=0, corpus={})
        ).write(self.run_folder)
        argv = [
            "--run",
            "own",
            "--runs-dir",
            str(self.folder / "runs"),
            "--resume",
            "--max-steps",
            "6",
        ]
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            code, _, err = self.launch_with(argv)
        self.assertEqual(code, 2)
        self.assertIn(
            "run 'own' has jobs on GPUs 0 3, but this process sees GPUs 0 to 1. A resumed run"
            " keeps",
            err,
        )

    def test_there_are_at_most_num_syncs_syncs(self):
        for total, warmstart, num_syncs, expected in (
            (40, 0, 4, 10),
            (40, 10, 3, 10),
            (40, 4, 3, 14),
            (7, 0, 7, 1),
            (7, 2, 1, 7),
        ):
            every = sync_interval(total, warmstart, num_syncs)
            self.assertEqual(every, expected)
            ends = {
                step
                for step in range(warmstart + 1, total + 1)
                if step % every == 0 or step == total
            }
            self.assertLessEqual(len(ends), num_syncs)

    def test_a_job_on_the_cpu_keeps_the_settings_of_its_threads(self):
        shards = CorpusShards(
            Path("train"), (Path("0"), Path("1")), None, Path(), "", (1, 1), (1.0, 1.0)
        )
        config = Config(
            placement=PlacementConfig(
                simulate_gpus=2, observer=0, enable_memory_isolation=True, intra_op_threads=1
            )
        )
        job = job_config(config, Path("run"), shards, "gpu1", 1, {"jobs": 2})
        self.assertEqual(job.placement, PlacementConfig(intra_op_threads=1))

    def test_each_job_sees_only_its_gpu(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7,9"):
            self.assertEqual(
                [device.environ["CUDA_VISIBLE_DEVICES"] for device in job_devices((2, 0), 0)],
                ["9", "4"],
            )
            with self.assertRaisesRegex(PlacementError, "sees GPUs 0 to 2"):
                job_devices((0, 3), 0)
        with mock.patch("myxtts.local_sgd.launcher.usable_cores", lambda: [1, 2, 5, 6, 7]):
            self.assertEqual([device.cores for device in job_devices((1, 0), 2)], [{5, 6}, {1, 2}])
            self.assertEqual([device.cores for device in job_devices((0, 1), 6)], [None, None])


@long
class RealTrainingTest(Case):
    def test_killed_job_ends_bit_identical_to_an_uninterrupted_run(self):
        flags = (
            "--simulate-gpus 2 --validation-fraction 0 --validate-every 0 --sample-every 0"
            " --model-size tiny"
        )
        flags += " --batch-size 2 --log-every 1 --checkpoint-every 2 --keep-checkpoints 9"
        argv = self.argv(*flags.split())
        self.assertEqual(self.launch_with(argv, ((sys.executable, "-c", "exit(2)"), MERGER))[0], 2)
        self.train("warmstart")  # in this process, which saves one import of TensorFlow
        (self.folder / "trainer.py").write_text(TOY_TRAINER)
        trainer = (sys.executable, "-u", str(self.folder / "trainer.py"))
        code, out, err = self.launch_with([*argv, "--resume"], (trainer, MERGER))
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn("gpu1 was killed by SIGKILL", out)
        parts = read_record(latest(self.run_folder / "merged/checkpoints")).merge_inputs
        inputs = [(Path(part["checkpoint"]).parts[-3], part["step"]) for part in parts]
        self.assertEqual(inputs, [("gpu0", 6), ("gpu1", 6)])

        again = self.run_folder / "again/checkpoints"
        shutil.copytree(self.run_folder / "gpu1/checkpoints/step-000002", again / "step-000002")
        self.train("gpu1", "--run", "again")
        killed, whole = (
            dict(arrays_of(latest(self.run_folder / name / "checkpoints")))
            for name in ("gpu1", "again")
        )
        self.assertEqual(killed.keys(), whole.keys())
        for name, array in killed.items():
            self.assertEqual(array.tobytes(), whole[name].tobytes(), name)

    def train(self, name: str, *flags: str) -> None:
        """Train the run of this name in this process with the toy network."""
        argv = [
            "--config",
            str(self.run_folder / f"{name}.yaml"),
            "--resume",
            "--simulate-gpus",
            str(SIMULATED),
        ]
        with toy_models(), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(train.main([*argv, *flags]), 0)


if __name__ == "__main__":
    unittest.main()
