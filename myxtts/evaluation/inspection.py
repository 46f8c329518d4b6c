"""Inspects a corpus with a voice that was trained on it: its aligner finds wrong texts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from myxtts.audio.format import FFT_SAMPLES
from myxtts.config.schema import DataConfig
from myxtts.data.audio_file import read_wave
from myxtts.data.inspection import Clip, Finding, Inspection, inspect_corpus
from myxtts.evaluation.forced_alignment import Aligner
from myxtts.evaluation.speech import BATCH_UTTERANCES
from myxtts.placement import devices
from myxtts.training.checkpoint_files import Record
from myxtts.training.runs import TrainedRun

# Of a wrong text the sound explains less than its place does. Of right ones it explains 0.35 and
# more, whether the run was trained on wrong texts or not.
MIN_EVIDENCE = 0.3


def inspect_with_run(
    data: DataConfig, run: Path, checkpoint: str | None = None, device: str | None = None
) -> Inspection:
    """Inspect a corpus as `inspect_corpus`, and its texts with the aligner of a run.

    Texts are read as by the run. Without a device, TensorFlow is configured for GPU 0 or else the
    CPU. Raises CheckpointError if the run is no voice, and as `inspect_corpus`.
    """
    trained = TrainedRun.open(run, checkpoint)
    trained.check_task("tts")
    inspection = inspect_corpus(data, trained.record.frontend)
    device = device or devices.configure_default().routes[0].model
    record = trained.record
    aligner = Aligner(trained.load_network(device, "tts"), device, record.settings.data.loudness)
    inspection.evidence = dict(evidence_of(aligner, record, inspection.clips))
    for id_, value in inspection.evidence.items():
        if value < MIN_EVIDENCE:
            detail = f"{value:.2f} of it is explained by the sound, other texts by more"
            inspection.findings.append(Finding(id_, "text", detail, -value))
    return inspection


def evidence_of(aligner: Aligner, record: Record, clips: list[Clip]) -> Iterator[tuple[str, float]]:
    """Yield the id of each clip, and how far the aligner explains its sound by its text.

    See `alignment.evidence`. Clips with symbols or languages that the run does not know are left
    out.
    """
    symbols, languages = record.vocabulary.symbols, list(record.languages)
    known = []
    for clip in sorted(clips, key=lambda clip: clip.samples):
        text = record.frontend.symbols(clip.text, clip.language)
        is_known = clip.language in languages and not symbols.unknown(text)
        if clip.samples >= FFT_SAMPLES and is_known:
            known.append((clip, symbols.encode(text), languages.index(clip.language)))
    for first in range(0, len(known), BATCH_UTTERANCES):
        batch, tokens, rows = zip(*known[first : first + BATCH_UTTERANCES], strict=True)
        waves = [read_wave(clip.path, clip.samples, start=clip.start) for clip in batch]
        fits = aligner(waves, tokens, np.array(rows))
        yield from ((clip.id, fit.evidence) for clip, fit in zip(batch, fits, strict=True))
