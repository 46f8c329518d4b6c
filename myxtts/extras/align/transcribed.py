"""Long recordings without a text → a corpus of what a recogniser heard where it was sure."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tqdm import tqdm

from myxtts.audio.format import frames_in
from myxtts.base.errors import ConfigError, DataError
from myxtts.corpus.rows import DEFAULT_SPEAKER
from myxtts.extras.align.recordings import files_of, is_recording
from myxtts.extras.align.tape import Stretch, Tape, make_corpus_folder, runs, write_corpus
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.evaluation.recognisers import open_recogniser

# A stretch ends at a long pause, or at the last one that makes it no longer than this.
LONG_PAUSE_S, MOST_S, LEAST_S = 0.5, 12.0, 1.0
MARGIN_FRAMES = 4


def transcribe_recordings(
    audio: Path,
    out: Path,
    asr: Path,
    language: str | None = None,
    speaker: str = DEFAULT_SPEAKER,
    keep: float = 0.5,
) -> None:
    """Write a corpus of the stretches of recordings between pauses, with what is heard in them.

    `keep` is the share of them, the surest, that is kept. Raises UserError if the recogniser or a
    recording is unusable, or nothing is heard.
    """
    recogniser = open_recogniser(asr)
    if isinstance(recogniser, Transcriber):
        language = recogniser.record.choose_language(language)
    elif not (language := language or recogniser.language):
        raise ConfigError("the language of the recordings is not known. Give it as --language.")
    make_corpus_folder(out)
    tapes = [Tape([file]) for file in files_of(audio, "--audio", is_recording)]
    heard = []
    for tape in tqdm(tapes, "hearing", disable=None):
        spans = [*spans_between_pauses(tape.quiet)]
        texts = recogniser.transcribe_scored(tape.wave(*span) for span in spans)
        heard.append([Stretch(*span, *of) for span, of in zip(spans, texts, strict=True)])
    sureties = [of.surety for of in chain.from_iterable(heard) if of.text.strip()]
    if not sureties:
        raise DataError(f"--asr {asr} hears no word in --audio {audio}. Give recordings of speech.")
    least = float(np.quantile(sureties, 1.0 - keep))
    found = []
    for tape, stretches in zip(tapes, heard, strict=True):
        found.append((tape, [*judged(stretches, least)]))
    facts = {
        "texts": f"heard by {recogniser.run} {recogniser.checkpoint.name}, guessed",
        "kept": keep,
    }
    write_corpus(out, found, {"speaker": speaker, "language": language}, facts)


def spans_between_pauses(quiet: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first frame and the end of stretches of speech, with some frames of their pauses.

    Speech without a pause is cut every MOST_S.
    """
    most, least = frames_in(MOST_S), frames_in(LEAST_S)
    spans: list[list[int]] = []
    for first, end in runs(~quiet).tolist():
        if spans and first - spans[-1][1] < frames_in(LONG_PAUSE_S) and end - spans[-1][0] <= most:
            spans[-1][1] = end
        else:
            spans += [[of, min(of + most, end)] for of in range(first, end, most)]
    for first, end in spans:
        if end - first >= least:
            yield max(first - MARGIN_FRAMES, 0), min(end + MARGIN_FRAMES, len(quiet))


def judged(stretches: Sequence[Stretch], least: float) -> Iterator[Stretch]:
    """Yield the stretches with the reason why one is left out."""
    for of in stretches:
        if not of.text.strip():
            yield of._replace(reason="no word heard")
        elif of.surety < least:
            yield of._replace(reason="heard unsurely")
        else:
            yield of
