"""`myxtts evaluate`: metrics of a run on held-out utterances or on another corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import (
    CommandParser,
    add_checkpoint_flag,
    add_columns_flag,
    add_json_flag,
    bounded,
)
from myxtts.errors import ConfigError
from myxtts.evaluation.options import EvaluationOptions

NAME = "evaluate"
HELP = "Measure the quality of a trained run on its held-out utterances or on another corpus."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    add = parser.add_argument
    run_help = "folder of the run; work in the folder where it was started"
    add("--run", type=Path, required=True, help=run_help)
    add_checkpoint_flag(parser)
    data_help = "corpus to measure on; by default the held-out utterances"
    add("--data", metavar="CORPUS", type=Path, help=data_help)
    add("--audio-root", metavar="DIR", type=Path, help="folder that contains all audio of --data")
    add_columns_flag(parser, "--data")
    utterances_help = "utterances to measure at most; by default all for a recogniser, else 50"
    add("--utterances", type=bounded(int, 1), help=utterances_help)
    asr_help = "run of a recogniser that transcribes the synthesized speech"
    add("--asr", dest="asr_run", metavar="RUN", type=Path, help=asr_help)
    steps_help = "ODE steps of synthesis; by default the run's"
    add("--ode-steps", type=bounded(int, 1, 1000), help=steps_help)
    guidance_help = "guidance of synthesis (0 to 10); by default the run's"
    add("--guidance", type=bounded(float, 0.0, 10.0), help=guidance_help)
    vocoder_help = "run of a vocoder, or griffin-lim; by default the vocoder that the run names"
    add("--vocoder", metavar="RUN", help=vocoder_help)
    seeds_help = "seeds of a vocoder's noise and of Griffin-Lim's phases; by default 0 1 2"
    add("--seeds", metavar="N", nargs="+", type=bounded(int, 0, 2**31 - 1), help=seeds_help)
    snr = bounded(float, -30.0, 100.0)
    snr_help = "also measure a recogniser at these signal-to-noise ratios, in noises it never heard"
    add("--noise-snr-db", metavar="DB", nargs="+", type=snr, help=snr_help)
    rt60 = bounded(float, 0.05, 10.0)
    rt60_help = "also measure a recogniser at these reverberation times, in rooms it never heard"
    add("--rt60", metavar="SECONDS", nargs="+", type=rt60, help=rt60_help)
    add_json_flag(parser)
    add("--out", type=Path, help="folder for pictures; by default RUN/evaluation/CHECKPOINT")
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    for name in ("columns", "seeds", "noise_snr_db", "rt60"):
        options[name] = options[name] and tuple(options[name])
    if (options["audio_root"] or options["columns"]) and options["data"] is None:
        raise ConfigError(
            "--audio-root and --columns describe a corpus, but there is no --data. Leave them out."
        )
    # Imports TensorFlow, which takes seconds.
    from myxtts.evaluation.evaluate import evaluate_run

    run, checkpoint = options.pop("run"), options.pop("checkpoint")
    evaluate_run(run, checkpoint, EvaluationOptions(**options))
    return 0
