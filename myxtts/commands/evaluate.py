"""`myxtts evaluate`: metrics of a run on held-out utterances or on another corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser, add_checkpoint_flag, add_columns_flag, bounded
from myxtts.errors import ConfigError
from myxtts.evaluation.options import EvaluationOptions

NAME = "evaluate"
HELP = "Measure the quality of a trained run on its held-out utterances or on another corpus."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        help="folder of the run; work in the folder where it was started",
    )
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--data",
        metavar="CORPUS",
        type=Path,
        help="corpus to measure on; by default the held-out utterances",
    )
    parser.add_argument(
        "--audio-root", metavar="DIR", type=Path, help="folder that contains all audio of --data"
    )
    add_columns_flag(parser, "--data")
    parser.add_argument(
        "--utterances",
        type=bounded(int, 1),
        help=(
            "maximum number of utterances to measure; by default all for a recogniser, and 50"
            " otherwise"
        ),
    )
    parser.add_argument(
        "--asr",
        dest="asr_run",
        metavar="RUN",
        type=Path,
        help="run of a recogniser that transcribes the synthesized speech",
    )
    parser.add_argument(
        "--ode-steps",
        type=bounded(int, 1, 1000),
        help="ODE steps of synthesis; by default the run's",
    )
    parser.add_argument(
        "--guidance",
        type=bounded(float, 0.0, 10.0),
        help="guidance of synthesis (0 to 10); by default the run's",
    )
    parser.add_argument(
        "--vocoder",
        metavar="RUN",
        help=(
            "run of a vocoder for synthesis, or griffin-lim; by default the vocoder that the"
            " settings of the run name"
        ),
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        nargs="+",
        type=bounded(int, 0, 2**31 - 1),
        help=(
            "seeds of the noise of a vocoder's run and of the phases of Griffin-Lim; by default"
            " 0 1 2"
        ),
    )
    parser.add_argument(
        "--noise-snr-db",
        metavar="DB",
        nargs="+",
        type=bounded(float, -30.0, 100.0),
        help=(
            "signal-to-noise ratios at which a recogniser is measured, too, in fixed noises unlike"
            " those of training"
        ),
    )
    parser.add_argument(
        "--rt60",
        metavar="SECONDS",
        nargs="+",
        type=bounded(float, 0.05, 10.0),
        help=(
            "reverberation times at which a recogniser is measured, too, in fixed rooms unlike"
            " those of training"
        ),
    )
    parser.add_argument(
        "--json", dest="json_file", metavar="FILE", type=Path, help="write the figures as JSON"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for pictures; by default RUN/evaluation/CHECKPOINT"
    )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    for name in ("columns", "seeds", "noise_snr_db", "rt60"):
        options[name] = options[name] and tuple(options[name])
    if (options["audio_root"] or options["columns"]) and options["data"] is None:
        raise ConfigError(
            "--audio-root and --columns describe a corpus, but there is no --data. Leave them out."
        )
    from myxtts.evaluation.evaluate import evaluate_run  # imports TensorFlow, which takes seconds

    run, checkpoint = options.pop("run"), options.pop("checkpoint")
    evaluate_run(run, checkpoint, EvaluationOptions(**options))
    return 0
