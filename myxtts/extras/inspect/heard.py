"""Inspects a corpus by a recogniser: which texts does it hear otherwise than they are written?"""

from pathlib import Path

from myxtts.audio.audio_file import read_wave
from myxtts.extras.inspect.inspection import Finding, Inspection
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.evaluation.recognisers import OutsideRecogniser, open_recogniser
from myxtts.text.error_rates import error_rates

MOST_ERRORS = 0.5

Recogniser = Transcriber | OutsideRecogniser


def fault_of(
    recogniser: Recogniser, text: str, language: str, heard: str, most_errors: float = MOST_ERRORS
) -> tuple[str, float] | None:
    """Return what is wrong with a clip by what was heard of it, and its character error rate.

    None if most of it was heard so, or the recogniser cannot judge the text.
    """
    written = recogniser.normalise_reference(text, language)
    if not written:  # digits, which others than runs cannot judge
        return None
    rate = error_rates([written], [heard])["character_error_rate"]
    return (f"{heard!r}, {rate:.0%} errors", rate) if rate > most_errors else None


def hear_clips(inspection: Inspection, asr: Path) -> None:
    """Add a finding for each clip of which a recogniser hears half or more otherwise."""
    recogniser = open_recogniser(asr)
    waves = (read_wave(of.path, of.samples, start=of.start) for of in inspection.clips)
    for clip, heard in zip(inspection.clips, recogniser.transcribe(waves), strict=True):
        if fault := fault_of(recogniser, clip.text, clip.language, heard):
            inspection.findings.append(Finding(clip.id, "heard otherwise", *fault))
