"""Options of an evaluation. No TensorFlow."""

from dataclasses import dataclass
from pathlib import Path

from myxtts.errors import ConfigError


@dataclass(frozen=True)
class EvaluationOptions:
    """What to measure, how, and where to write the result.

    Attributes:
        data: a corpus, as --train-data takes it; by default the held-out utterances of the run.
        audio_root: folder of the audio of `data`, as --audio-root takes it.
        columns: of `data`, as --columns takes them.
        utterances: maximum number of utterances to measure; by default all for a recogniser, and 50
            otherwise.
        ode_steps, guidance: of synthesis; by default as in the run.
        vocoder: of synthesis, as --vocoder takes it; by default the run's.
        asr_run: run of a recogniser that transcribes the synthesized speech.
        beam_width: of a recogniser's beam search; 0 decodes greedily.
        noise_snr_db, rt60: signal-to-noise ratios and reverberation times (s) that a recogniser is
            also measured at.
        seeds: of a vocoder's noise and of Griffin-Lim's phases, in the evaluation of a vocoder; by
            default 0, 1 and 2.
        perceptual: measure PESQ and STOI, if their packages are installed.
        json_file: file for the metrics.
        out: folder for plots and the list of unusable rows; by default a folder of the run.
    """

    data: Path | None = None
    audio_root: Path | None = None
    columns: tuple[str, ...] = ()
    utterances: int | None = None
    ode_steps: int | None = None
    guidance: float | None = None
    vocoder: str | None = None
    asr_run: Path | None = None
    beam_width: int = 0
    noise_snr_db: tuple[float, ...] | None = None
    rt60: tuple[float, ...] | None = None
    seeds: tuple[int, ...] | None = None
    perceptual: bool = True
    json_file: Path | None = None
    out: Path | None = None


# Flags that not every task has, with its task.
FLAGS = {
    "ode_steps": ("--ode-steps", "tts"),
    "guidance": ("--guidance", "tts"),
    "vocoder": ("--vocoder", "tts"),
    "asr_run": ("--asr", "tts"),
    "noise_snr_db": ("--noise-snr-db", "asr"),
    "rt60": ("--rt60", "asr"),
    "seeds": ("--seeds", "vocoder"),
}
RUN_NAMES = {"tts": "a voice", "asr": "a recogniser", "vocoder": "a vocoder"}


def check_options(run: Path, task: str, options: EvaluationOptions) -> None:
    """Raise ConfigError if an option was given that the evaluation of this task does not have."""
    # An option without an effect would let a user believe that it had one.
    given = {
        flag: of
        for field, (flag, of) in FLAGS.items()
        if of != task and getattr(options, field) is not None
    }
    if given:
        owners = " and ".join(dict.fromkeys(RUN_NAMES[of] for of in given.values()))
        raise ConfigError(
            f"{', '.join(given)} was given, but {run} is {RUN_NAMES[task]}, and only the evaluation"
            f" of {owners} has that option. Leave it out."
        )
