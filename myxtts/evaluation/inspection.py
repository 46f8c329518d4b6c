"""Inspects a corpus with a voice that was trained on it: its aligner finds wrong texts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES
from myxtts.audio.mel import log_mel
from myxtts.config.schema import DataConfig
from myxtts.data.audio_file import read_wave
from myxtts.data.inspection import Clip, Finding, Inspection, inspect_corpus
from myxtts.evaluation.speech import BATCH_UTTERANCES, pad_rows
from myxtts.models import alignment
from myxtts.models.layers import length_mask
from myxtts.models.xtts import XTTS, normalised_mel
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
    network = trained.load_network(device, "tts")
    with tf.device(device):
        inspection.evidence = dict(evidence_of(network, trained.record, inspection.clips))
    for id_, value in inspection.evidence.items():
        if value < MIN_EVIDENCE:
            detail = f"{value:.2f} of it is explained by the sound, other texts by more"
            inspection.findings.append(Finding(id_, "text", detail, -value))
    return inspection


def evidence_of(network: XTTS, record: Record, clips: list[Clip]) -> Iterator[tuple[str, float]]:
    """Yield the id of each clip, and how far the aligner explains its sound by its text.

    See `alignment.evidence`. Clips with symbols that the run does not know are left out.
    """
    symbols = record.vocabulary.symbols
    aligned = _evidence_function(network)
    known = []
    for clip in sorted(clips, key=lambda clip: clip.samples):
        text = record.frontend.symbols(clip.text, clip.language)
        if clip.samples >= FFT_SAMPLES and not symbols.unknown(text):
            known.append((clip, symbols.encode(text)))
    for first in range(0, len(known), BATCH_UTTERANCES):
        batch = known[first : first + BATCH_UTTERANCES]
        waves = [read_wave(clip.path, clip.samples, start=clip.start) for clip, _ in batch]
        values = aligned(
            *pad_rows(waves, 0.0), *pad_rows([tokens for _, tokens in batch], 0)
        ).numpy()
        yield from zip((clip.id for clip, _ in batch), values.tolist(), strict=True)


def _evidence_function(network: XTTS) -> Callable[..., tf.Tensor]:
    ints = tf.TensorSpec([None], tf.int32)
    signature = tf.TensorSpec([None, None]), ints, tf.TensorSpec([None, None], tf.int32), ints

    def aligned(waves, samples, tokens, token_count):
        mel = normalised_mel(log_mel(waves, samples))
        frames = samples // HOP_SAMPLES
        real = length_mask(frames, tf.shape(mel)[1], tf.float32)[:, :, 0]
        scores, prior = network.aligner(mel, real, tokens, token_count)
        path = alignment.search_by_frames(scores, token_count, frames)
        return alignment.evidence(scores, prior, tf.cast(path, tf.int64))

    return tf.function(aligned, input_signature=signature, autograph=False)
