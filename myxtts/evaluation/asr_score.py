"""How well a recogniser hears: error rates of a corpus, and of each of its languages and speakers."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import PlacementConfig
from myxtts.data.manifest import Manifest
from myxtts.evaluation.held_out import load_again, other_recordings, spread, wave_of
from myxtts.evaluation.report import folder_for, tell
from myxtts.files import check_writable
from myxtts.placement import devices
from myxtts.placement.routes import plan_routes
from myxtts.recognition.transcriber import Transcriber
from myxtts.text.edit_distance import error_rates
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.select_checkpoint import select_checkpoint, settings_of


class Transcript(NamedTuple):
    """An utterance, what is said in it and what was heard; both as the run writes texts."""

    id: str
    speaker: str
    language: str
    text: str
    heard: str


@dataclass(frozen=True)
class ErrorRates:
    """Edits over the length of the true texts, in characters and in words, of so many utterances."""

    utterances: int
    character_error_rate: float
    word_error_rate: float


@dataclass(frozen=True)
class ASRScore:
    """What was measured of a recogniser's checkpoint.

    Attributes:
        languages, speakers: where there are several.
        notes: what the figures rest on.
    """

    run: str
    checkpoint: str
    rates: ErrorRates
    languages: dict[str, ErrorRates]
    speakers: dict[str, ErrorRates]
    real_time_factor: float
    notes: tuple[str, ...]
    transcripts: tuple[Transcript, ...]

    def table(self) -> str:
        """Markdown."""
        named = {"all": self.rates}
        named |= {f"language {name}": rates for name, rates in self.languages.items()}
        named |= {f"speaker {name}": rates for name, rates in self.speakers.items()}
        lines = ["| | utterances | character error rate, % | word error rate, % |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {rates.utterances} | {100 * rates.character_error_rate:.2f} | "
            f"{100 * rates.word_error_rate:.2f} |"
            for name, rates in named.items()
        ]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """The same, rates as shares, and every text."""
        return asdict(self) | {"transcripts": [one._asdict() for one in self.transcripts]}


def write_asr_score(
    run: Path,
    checkpoint: str | None = None,
    data: Path | None = None,
    utterances: int | None = None,
    beam_width: int = 0,
    json_file: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure a recogniser on GPU 0 or, without one, on the CPU; print a table, write JSON.

    Args:
        data: a corpus as of --train-data; the held-out utterances of the run without it.
        utterances: the most to measure; all of them without it.
        out: gets the list of what cannot be used of `data`.

    Raises:
        UserError: the run, a corpus or an output cannot be used.
    """
    chosen = select_checkpoint(run, checkpoint)
    check_writable("--json", json_file)
    folder = folder_for(run, chosen, data, out)
    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    transcriber = Transcriber(run, placement.routes[0].model, chosen.name, beam_width)
    metadata = read_metadata(chosen)
    if data is None:
        _, _, held_out = load_again(chosen, metadata, run)
        manifest, speakers, source = held_out.manifest, tuple(metadata["speakers"]), "held-out utterances"
    else:
        manifest, vocabulary = other_recordings(data, settings_of(chosen, metadata), metadata, folder)
        speakers, source = vocabulary.speakers, f"utterances of {data}"
    tell(asr_score(transcriber, manifest, speakers, utterances or len(manifest), source), json_file)


def asr_score(
    transcriber: Transcriber, manifest: Manifest, speakers: Sequence[str], most: int, source: str
) -> ASRScore:
    """Measure at most so many utterances, spread over a manifest.

    Args:
        manifest: whose languages are the transcriber's.
        speakers: their names.
        source: what the utterances are, for the notes.

    Raises:
        DataError: a file cannot be read.
    """
    rows = spread(np.arange(len(manifest)), most)
    started_s = time.perf_counter()
    heard = list(transcriber.transcribe(wave_of(manifest, row) for row in rows))
    took_s, speech_s = time.perf_counter() - started_s, float(manifest.samples[rows].sum()) / SAMPLE_RATE_HZ
    transcripts = []
    for row, said in zip(rows, heard, strict=True):
        language = transcriber.vocabulary.languages[manifest.language[row]]
        text = transcriber.normalise_reference(manifest.texts[row], language)
        transcripts.append(Transcript(manifest.ids[row], speakers[manifest.speaker[row]], language, text, said))
    return ASRScore(
        run=str(transcriber.run),
        checkpoint=transcriber.checkpoint.name,
        rates=rates_of(transcripts),
        languages=rates_by("language", transcripts),
        speakers=rates_by("speaker", transcripts),
        real_time_factor=took_s / speech_s,
        notes=(
            f"{len(rows)} {source}, {speech_s:.1f} s of speech, {transcriber.decoding}",
            f"from file to text in {took_s:.2f} s on {transcriber.device}, after a warm-up: "
            f"real-time factor {took_s / speech_s:.4f}",
        ),
        transcripts=tuple(transcripts),
    )


def rates_by(name: str, transcripts: Sequence[Transcript]) -> dict[str, ErrorRates]:
    """The rates of each `language` or `speaker`, by its name; nothing where there is only one."""
    groups = defaultdict(list)
    for one in transcripts:
        groups[getattr(one, name)].append(one)
    return {group: rates_of(own) for group, own in sorted(groups.items())} if len(groups) > 1 else {}


def rates_of(transcripts: Sequence[Transcript]) -> ErrorRates:
    figures = error_rates([one.text for one in transcripts], [one.heard for one in transcripts])
    return ErrorRates(len(transcripts), **figures)
