"""Synthesized speech of a few held-out utterances, with pictures."""

from pathlib import Path

import keras
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import griffin_lim_waves
from myxtts.batch import TTS_FEATURES, first_rows
from myxtts.config.schema import ModelConfig
from myxtts.files import replaced_folder
from myxtts.models.xtts import SynthesisOptions
from myxtts.observe.metrics import TensorBoard
from myxtts.observe.plots import mel_and_alignment, png_bytes
from myxtts.tasks.base import Examples

UTTERANCES = 4


class TTSSampler:
    """Synthesizes the same held-out utterances at each call; see `tasks.base.Sampler`.

    Args:
        examples: TTS_FEATURES; the first rows are synthesized, each with its own reference.
        options: how the texts are synthesized.
        folder: gets `step-000500/` with a WAV and a PNG for each utterance.
        tensorboard: gets the same sounds and pictures.
    """

    def __init__(self, examples: Examples, options: SynthesisOptions, folder: Path, tensorboard: TensorBoard):
        count = min(UTTERANCES, len(examples.ids))
        self._batch = first_rows(examples.batch, TTS_FEATURES, count)
        self._ids, self._texts = examples.ids[:count], examples.texts[:count]
        self._folder = folder
        self._options = options
        self._tensorboard = tensorboard

    def __call__(self, model: keras.Model, step: int) -> None:
        batch = self._batch
        mels, frames, _ = model.synthesize(
            batch["tokens"],
            batch["token_count"],
            batch["language"],
            batch["reference"],
            batch["reference_frames"],
            self._options,
        )
        _, outputs = model(batch, training=False)
        waves = griffin_lim_waves(mels, frames)
        synthesized = zip(self._ids, self._texts, waves, mels.numpy(), frames.numpy(), strict=True)
        recorded = zip(batch["mel"].numpy(), batch["frames"].numpy(), outputs["path"].numpy(), strict=True)
        with replaced_folder(self._folder / f"step-{step:06d}") as folder:
            for number, (utterance, recording) in enumerate(zip(synthesized, recorded, strict=True), 1):
                identity, text, wave, mel, length = utterance
                recorded_mel, recorded_length, path = recording
                picture = mel_and_alignment(recorded_mel[:recorded_length], mel[:length], path[:recorded_length], text)
                name = f"{number}-{Path(identity).stem}"  # files of several folders may have the same stem
                soundfile.write(folder / f"{name}.wav", wave, SAMPLE_RATE_HZ, subtype="PCM_16")
                (folder / f"{name}.png").write_bytes(png_bytes(picture))
                self._tensorboard.picture(step, f"mel_and_alignment/{name}", picture)
                self._tensorboard.sound(step, f"spoken/{name}", wave)


def synthesis_options(model: ModelConfig) -> SynthesisOptions:
    """Return how a run with these settings synthesizes speech by default."""
    return SynthesisOptions(ode_steps=model.ode_steps, guidance=model.guidance)
