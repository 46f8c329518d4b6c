"""Options of an evaluation. No TensorFlow."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EvaluationOptions:
    """What to measure, how, and where to write the result.

    Attributes:
        data: a corpus, as --train-data takes it; by default the held-out utterances of the run.
        audio_root: folder of the audio of `data`, as --audio-root takes it.
        utterances: maximum number of utterances to measure; by default 50 for synthesis, and all for a recogniser.
        ode_steps, guidance: of synthesis; by default as in the run.
        asr_run: run of a recogniser that transcribes the synthesized speech.
        beam_width: of a recogniser's beam search; 0 decodes greedily.
        json_file: file for the metrics.
        out: folder for plots and the list of unusable rows; by default a folder of the run.
    """

    data: Path | None = None
    audio_root: Path | None = None
    utterances: int | None = None
    ode_steps: int | None = None
    guidance: float | None = None
    asr_run: Path | None = None
    beam_width: int = 0
    json_file: Path | None = None
    out: Path | None = None
