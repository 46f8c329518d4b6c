"""`myxtts evaluate`: metrics of a run on held-out utterances or on another corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.errors import ConfigError
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag, bounded
from myxtts.config.schema import flag_of
from myxtts.config.settings_parser import add_columns_flag
from myxtts.config.synthesis import BOUNDS

NAME = "evaluate"
HELP = "Measure the quality of a trained run on its held-out utterances or on another corpus."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    run = "folder of the run; work in the folder where it was started"
    add_flag(parser, "--run", run, Path, required=True)
    flags.add_checkpoint_flag(parser)
    data = "corpus to measure on; by default the held-out utterances"
    add_flag(parser, "--data", data, Path, "CORPUS")
    add_flag(parser, "--audio-root", "folder that contains all audio of --data", Path, "DIR")
    add_columns_flag(parser, "--data")
    utterances = "utterances to measure at most; by default all for a recogniser, else 50"
    add_flag(parser, "--utterances", utterances, bounded(int, 1))
    asr = "recogniser of the synthesized speech: a run, pocketsphinx or onnx:MODEL of onnx-asr"
    add_flag(parser, "--asr", asr, Path, "RUN")
    for name in ("ode_steps", "guidance", "variety"):
        flags.add_option(parser, flag_of(name), name, f"{name} of synthesis; by default the run's")
    vocoder = "run of a vocoder, or griffin-lim; by default the vocoder that the run names"
    add_flag(parser, "--vocoder", vocoder, metavar="RUN")
    seeds = "seeds of a vocoder's noise and of Griffin-Lim's phases; by default 0 1 2"
    add_flag(parser, "--seeds", seeds, bounded(*BOUNDS["seed"]), "N", nargs="+")
    beam = "prefixes that the beam search of a recogniser keeps; by default it decodes greedily"
    add_flag(parser, "--beam-width", beam, bounded(int, 0, 1000), "N")
    noise = "also measure a recogniser at these signal-to-noise ratios, in noises it never heard"
    add_flag(parser, "--noise-snr-db", noise, bounded(float, -30.0, 100.0), "DB", nargs="+")
    rooms = "also measure a recogniser at these reverberation times, in rooms it never heard"
    add_flag(parser, "--rt60", rooms, bounded(float, 0.05, 10.0), "SECONDS", nargs="+")
    flags.add_json_flag(parser)
    add_flag(parser, "--out", "folder for pictures; by default RUN/evaluation/CHECKPOINT", Path)
    return parser.parse(argv)


# The flags become EvaluationOptions by their names, and lists become tuples, as its fields are.
def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    for name in ("columns", "seeds", "noise_snr_db", "rt60"):
        options[name] = options[name] and tuple(options[name])
    if (options["audio_root"] or options["columns"]) and options["data"] is None:
        raise ConfigError("--audio-root and --columns need --data. Leave them out.")
    # Imports TensorFlow, which takes seconds.
    from myxtts.tasks.evaluation.evaluate import evaluate_run
    from myxtts.tasks.evaluation.held_out import EvaluationOptions

    run, checkpoint = options.pop("run"), options.pop("checkpoint")
    evaluate_run(run, checkpoint, EvaluationOptions(**options))
    return 0
