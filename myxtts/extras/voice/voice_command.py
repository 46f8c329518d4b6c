"""`myxtts voice`: a corpus → its inspection, a vocoder, a voice, their scores, and a page.

Each stage is another command in a process of its own, which resumes. What they do is decided once
and kept in `runs/NAME/voice/`, so the command can be killed and typed again at any point:

    excluded.csv, inspection.html     as `myxtts inspect` writes them
    vocoder.yaml, voice.yaml          the settings of both runs
    plan.json                         what was decided; written last
    log.txt, scores.json              all lines of the stages; the scores of the voice
"""

import argparse
import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from myxtts.base.clock import format_duration
from myxtts.base.errors import ConfigError
from myxtts.base.files import make_folder, write_json, write_whole
from myxtts.base.names import base_language
from myxtts.base.processes import (
    ChildProcess,
    ProgramSpec,
    StopSignals,
    Supervisor,
    exit_at_sigterm,
    visible_gpus,
)
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config import parser as flags
from myxtts.config.checks import reset_inactive
from myxtts.config.flags import SETTINGS, command_line, with_values
from myxtts.config.schema import Config
from myxtts.config.settings_parser import add_settings, read_settings
from myxtts.devicefeed.times import Timeline
from myxtts.extras.inspect import inspect_command as inspect
from myxtts.extras.inspect.inspection import EXCLUDED, Clip, Inspection, inspect_corpus
from myxtts.report.metrics import read_last_report
from myxtts.report.page import RunPage
from myxtts.speak.voices import voices

NAME = "voice"
HELP = "Make a voice of a corpus: inspect it, train a vocoder and a voice, and measure them."
EXTRA = "train"
GPUS = "data_gpu", "model_gpu"
OF_RUN = "run", "runs_dir", *GPUS, "simulate_gpus", "model_size", "batch_size", "init_from"
OF_COMMAND = (*inspect.OF_CORPUS, *inspect.OF_CLIPS, "sample_rate", *OF_RUN)
# As in configs/human*.yaml: 15 and 31 minutes.
SHARES = {"vocoder": 1 / 3, "voice": 2 / 3}
# Fraction of these shares that is for steps. The rest is for trials, starts, validations, samples
# and ratings by DNSMOS: 7 of 62 minutes with 0.9.
STEPPING = 0.85
# Steps 16 to 30 of a voice took 1.6 times as long as those from 41 on (configs/human.yaml).
TRIAL = "--max-steps 80 --log-every 40 --validate-every 0 --sample-every 0".split()
# configs/human*.yaml; the larger sizes, for GPUs, have the defaults of the schema.
TINY = {"learning_rate": 2e-3, "warmup_steps": 100, "cache_dataset": True}
OF_TASK: dict[str, dict[str, Any]] = {
    "vocoder": {"task": "vocoder", "final_lr_ratio": 0.02, "sample_every": 0},
    "voice": {"task": "tts", "guidance": 1.5},
}
VOICE_BATCH = 6
# The voice to start from, and the rate with which prompts were learnt: docs/experiments/tts.md.
BASE, NOTHING = "base", "none"  # of --init-from
OF_BASE = ("model_size", "text_frontend", "sample_rate")
FROM_BASE = {"learning_rate": 1e-3}
SMALL_S = 30 * 60  # docs/guides/voices.md
SPOKEN_S = 3.0, 9.0


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = flags.CommandParser(prog, HELP)
    add_settings(parser, OF_COMMAND)
    minutes = "time to train, on this machine (default 60)"
    flags.add_flag(parser, "--minutes", minutes, flags.bounded(float, 0.1), "N", default=60.0)
    config, options = read_settings(parser, argv)
    if config.data.train_data is None:
        raise ConfigError(
            "a voice is to be made of a corpus, but none was given. Give one with --train-data;"
            " `myxtts corpus` makes one for trials."
        )
    return config, options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    work = Work(config, options.minutes)
    with exit_at_sigterm():
        work.prepare()
    with StopSignals() as stop:
        code = work.measure(stop) or work.train("vocoder", stop) or work.train("voice", stop)
        code = code or work.evaluate(stop)
    if not code:
        work.close()
    return code


class Work:
    """The stages of a voice. Each returns an exit code, and is skipped once its result exists."""

    def __init__(self, config: Config, minutes: float):
        self._config, self._minutes = config, minutes
        runs, name = Path(config.run.runs_dir), config.run.run
        self._runs = {"vocoder": runs / f"{name}_vocoder", "voice": runs / name}
        self._folder = runs / name / "voice"
        self._plan: dict[str, Any] = {}

    # If plan.json exists, a previous call has decided everything, and other flags are an error.
    # Otherwise the corpus is inspected, the settings of both runs are written, and plan.json last,
    # so that a call that was killed before it begins again.
    def prepare(self) -> None:
        """Inspect the corpus and write the settings of both runs, unless that was done.

        Raises ConfigError if the runs exist already or were made of other flags.
        """
        corpus = str(self._config.data.train_data)
        asked: dict[str, Any] = {"minutes": self._minutes}
        for name in OF_COMMAND:
            if name not in (*GPUS, "run", "runs_dir"):
                asked[name] = SETTINGS[name].of(self._config)
        # Lists instead of tuples, as in the file.
        asked = json.loads(json.dumps(asked))
        plan = self._folder / "plan.json"
        if plan.exists():
            self._plan = json.loads(plan.read_text("utf-8"))
            for name, begun in self._plan["flags"].items():
                if asked[name] != begun:
                    raise ConfigError(
                        f"--{name.replace('_', '-')} is {asked[name]}, but"
                        f" {self._runs['voice']} was begun with {begun}. Give that, or"
                        " choose another name with --run."
                    )
            print(f"inspect: done before, see {self._folder / 'inspection.html'}")
            return
        for run in self._runs.values():
            RunFolder(run).check_not_existing(resume=False)
        make_folder(self._folder, "--runs-dir")
        inspection = inspect_corpus(self._config.data)
        inspect.report(inspection, corpus, self._folder)
        names = inspection.excluded()
        excluded = {"exclude": str(self._folder / EXCLUDED)} if names else {}
        base, reason = self._choose_base({clip.language for clip in inspection.clips})
        for stage in OF_TASK:
            self._write_settings(stage, excluded, base)
        used = [clip for clip in inspection.clips if clip.id not in names]
        seconds = sum(clip.quality.seconds for clip in used)
        faulty = {finding.id for finding in inspection.findings}
        best = [clip for clip in used if clip.id not in faulty] or used
        self._plan = {"flags": asked, "hours": seconds / 3600} | _spoken(best)
        write_json(plan, self._plan)
        self._announce(inspection, reason)

    # A run that the user names is the start, whatever it is. Otherwise it is the installed voice
    # `base`, if the runs may have its size, rate, front end and languages.
    def _choose_base(self, languages: set[str]) -> tuple[TrainedRun | None, str]:
        """Return the voice to start from, or None, and a line that says why."""
        asked = self._config.training.init_from
        if asked == NOTHING:
            return None, "from nothing, as --init-from says"
        if asked is not None:
            return TrainedRun.open(Path(asked)), f"from {asked}, as --init-from says"
        found = voices().get(BASE)
        if found is None or found.folder is None:
            return None, f"from nothing: the voice `{BASE}` is not installed"
        run = TrainedRun.open(found.folder)
        for name in OF_BASE:
            of_base = SETTINGS[name].of(run.record.settings)
            value = self._size() if name == "model_size" else SETTINGS[name].of(self._config)
            if (name != "sample_rate" or self._is_given(name)) and value != of_base:
                return None, f"from nothing: {name} is {value}, and that of `{BASE}` {of_base}"
        known = {base_language(code) for code in run.record.languages}
        if others := {base_language(code) for code in languages} - known:
            unknown, spoken = " ".join(sorted(others)), " ".join(sorted(known))
            return None, f"from nothing: `{BASE}` speaks {spoken}, not {unknown}"
        return run, f"from the voice `{BASE}`; --init-from none starts from nothing"

    def _is_given(self, name: str) -> bool:
        return name in getattr(self._config, SETTINGS[name].section).model_fields_set

    def _size(self) -> str:
        size = self._config.model.model_size
        if size == SETTINGS["model_size"].default and not visible_gpus():
            return "tiny"
        return size

    def _write_settings(self, stage: str, values: dict[str, Any], base: TrainedRun | None) -> None:
        config, size = self._config, self._size()
        of_stage = OF_TASK[stage] | {"run": self._runs[stage].name, "model_size": size} | values
        # GPUs are given to each command, so that a run may go on with others.
        of_stage |= dict.fromkeys((*GPUS, "init_from"))
        if size == "tiny":
            of_stage |= TINY
        if stage == "voice" and config.data.batch_size == SETTINGS["batch_size"].default:
            of_stage["batch_size"] = VOICE_BATCH
        if base is not None:
            # A base may have no vocoder of its own; one from nothing then has its rate.
            source = base if stage == "voice" else base.select_vocoder().trained
            settings = (source or base).record.settings
            fixed = {name: SETTINGS[name].of(settings) for name in OF_BASE}
            # What was given stays, and `train` says where it differs.
            of_stage |= {name: fixed[name] for name in OF_BASE if not self._is_given(name)}
            if source is not None:
                of_stage |= {"init_from": str(source.path)} | FROM_BASE
        settings = reset_inactive(with_values(config, of_stage))
        self._write(stage, settings.model_dump(mode="json", exclude_defaults=True))

    def _write(self, stage: str, settings: dict[str, Any]) -> None:
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        write_whole(self._folder / f"{stage}.yaml", text.encode())

    def _announce(self, inspection: Inspection, start: str) -> None:
        size = self._settings("voice")["model"].get("model_size", "normal")
        hours, of = self._plan["hours"], self._config.placement
        place = "on one device"
        if of.data_gpu is not None:
            place = f"with batches on GPU {of.data_gpu} and training on GPU {of.model_gpu}"
        stages = [f"{self._time(stage)} for a {size} {stage}" for stage in OF_TASK]
        print(f"\nplan: {hours:.2f} h of speech; {', then '.join(stages)}, {place}")
        print(f"      They start {start}.")
        if hours * 3600 < SMALL_S and start.startswith("from nothing"):
            print(
                "      This is little speech for a voice from scratch. Record more, or start from"
                " another voice with --init-from."
            )
        if len({clip.speaker for clip in inspection.clips}) > 1:
            print("      One voice learns all speakers; a reference chooses who speaks.")

    def _time(self, stage: str) -> str:
        return format_duration(SHARES[stage] * self._minutes * 60)

    def _settings(self, stage: str) -> dict[str, Any]:
        return yaml.safe_load((self._folder / f"{stage}.yaml").read_text("utf-8"))

    # A short trial of each stage tells the time of a step on this machine. The stage's share of the
    # minutes over that time is its number of steps, which is written into its settings. A stage
    # that has the number already is not measured again.
    def measure(self, stop: StopSignals) -> int:
        """Decide the number of steps of both runs from the measured time of a step."""
        for stage in OF_TASK:
            settings = self._settings(stage)
            if "training" in settings and "max_steps" in settings["training"]:
                continue
            trial = f"{stage}_speed"
            place = ["--runs-dir", str(self._folder), "--run", trial]
            if code := self._train(stage, stop, *place, *TRIAL):
                return code
            step_s = read_last_report(self._folder / trial / "metrics.jsonl")["step_s"]
            steps = max(round(STEPPING * SHARES[stage] * self._minutes * 60 / step_s), 1)
            self._set_steps(stage, steps)
            shutil.rmtree(self._folder / trial)
            print(f"{stage}: {steps} steps of {step_s:.3f} s, about {self._time(stage)}")
        return 0

    def _set_steps(self, stage: str, steps: int) -> None:
        period = max(steps // 10, 1)
        values: dict[str, Any] = {"max_steps": steps}
        values |= {"validate_every": period, "checkpoint_every": period}
        if stage == "voice":
            values |= {"vocoder": str(self._runs["vocoder"]), "sample_every": 2 * period}
            # The least loss is not what sounds best: docs/guides/voices.md.
            if all(map(importlib.util.find_spec, ("speechmos", "onnxruntime"))):
                values |= {"evaluate_every": 2 * period, "select_by": "dnsmos"}
        settings = self._settings(stage)
        for name, value in values.items():
            settings.setdefault(SETTINGS[name].section, {})[name] = value
        self._write(stage, settings)

    def train(self, stage: str, stop: StopSignals) -> int:
        """Train the run of a stage to its last step."""
        newest = TrainedRun.newest(self._runs[stage])
        steps = self._settings(stage)["training"]["max_steps"]
        if newest and newest.record.step >= steps and not newest.record.pending_observations:
            print(f"{stage}: done before, {steps} steps in {self._runs[stage]}")
            return 0
        return self._train(stage, stop)

    def _train(self, stage: str, stop: StopSignals, *flags: str) -> int:
        """Train with the settings of a stage, and with flags besides; return the exit code."""
        words = ["train", "--config", str(self._folder / f"{stage}.yaml")]
        for name in GPUS:
            if (gpu := SETTINGS[name].of(self._config)) is not None:
                words.append(f"{SETTINGS[name].flag}={gpu}")
        return self._run([*words, *flags, "--resume"], stop)

    def evaluate(self, stop: StopSignals) -> int:
        """Measure the voice on held-out sentences."""
        scores = self._folder / "scores.json"
        if scores.exists():
            print(f"evaluate: done before, see {scores}")
            return 0
        run = str(self._runs["voice"])
        return self._run(["evaluate", "--run", run, "--json", str(scores)], stop)

    def close(self) -> None:
        """Write the page again, with the scores, and say how to hear the voice."""
        run = self._runs["voice"]
        settings = TrainedRun.open(run).record.settings
        page = RunPage(run, settings, Timeline()).write("finished")
        print(f"\nListen:  {page.resolve().as_uri()}")
        words = ["--run", str(run), "--text", self._plan["text"], "--language"]
        words += [self._plan["language"], "--reference", self._plan["reference"]]
        print(f"Speak:   {command_line('synthesize')} {shlex.join(words)} --out hello.wav")

    def _run(self, words: Sequence[str], stop: StopSignals) -> int:
        """Run a command to its end, or to a request to stop, and return its exit code."""
        if stop.count:
            return stop.exit_code
        print(f"\n{words[0]}: myxtts {shlex.join(words)}", flush=True)
        command = (sys.executable, "-m", "myxtts", *words)
        program = ProgramSpec(words[0], command, self._folder / "log.txt")
        code = _Shown(stop, end_together=True).run([program])[0].code
        if code < 0:
            return 128 - code
        return code


class _Shown(Supervisor):
    """Prints the lines of a command, which gets the requests to stop."""

    def on_line(self, process: ChildProcess, line: str) -> None:
        print(line, flush=True)


def _spoken(clips: Sequence[Clip]) -> dict[str, str]:
    """Return a recording that is a good reference, its language, and the text of another."""
    fitting = [clip for clip in clips if SPOKEN_S[0] <= clip.quality.seconds <= SPOKEN_S[1]]
    first, *others = fitting or clips
    other = next((clip for clip in others if clip.language == first.language), first)
    return {"reference": first.path, "language": first.language, "text": other.text}
