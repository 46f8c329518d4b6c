"""Inspects a corpus by the aligner of a voice: which texts does the sound not explain?"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import FFT_SAMPLES
from myxtts.checkpoints.files import Record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import DataConfig
from myxtts.extras.align.alignment import Aligner
from myxtts.extras.inspect.inspection import Clip, Finding, Inspection, inspect_corpus
from myxtts.placement import devices
from myxtts.report.alignment import LEAST_EVIDENCE
from myxtts.tasks import loading
from myxtts.tasks.evaluation.speech import BATCH_UTTERANCES


def inspect_with_run(
    data: DataConfig, run: Path, checkpoint: str | None = None, device: str | None = None
) -> Inspection:
    """Inspect a corpus as `inspect_corpus`, and its texts, read as by a run, with its aligner.

    Without a device, TensorFlow is configured for GPU 0 or else the CPU. Raises CheckpointError if
    the run is no voice, and as `inspect_corpus`.
    """
    trained = TrainedRun.open_for_use(run, checkpoint, "tts")
    inspection = inspect_corpus(data, trained.record.frontend)
    device = device or devices.configure_default().routes[0].model
    record = trained.record
    aligner = Aligner(
        loading.load_network(trained, device, "tts"), device, record.settings.data.loudness
    )
    inspection.evidence = dict(evidence_of(aligner, record, inspection.clips))
    for id_, value in inspection.evidence.items():
        if value < LEAST_EVIDENCE:
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
        # Clips of similar lengths share a batch, so that little is padded.
        fits = aligner(waves, tokens, np.array(rows))
        yield from ((clip.id, fit.evidence) for clip, fit in zip(batch, fits, strict=True))
