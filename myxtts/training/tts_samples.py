"""What the model can say so far: sounds and pictures of a few held-out utterances."""

import os
import shutil
from pathlib import Path

import soundfile
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import griffin_lim_waves
from myxtts.batch import TTS_FEATURES, Field
from myxtts.config.schema import ModelConfig
from myxtts.models.xtts import SynthesisOptions
from myxtts.observe.metrics import TensorBoard
from myxtts.observe.plots import mel_and_alignment, png_bytes
from myxtts.training.state import TrainingState

UTTERANCES = 4


class TTSSamples:
    """Speaks the same held-out utterances whenever it is called.

    Args:
        folder: gets `step-000500/` with a WAV and a PNG for each utterance.
        batch: TTS_FEATURES on the model device; its first rows are spoken, each with its own reference.
        ids, texts: of its rows.
        manner: in which they are spoken.
    """

    def __init__(
        self,
        folder: Path,
        batch: dict,
        ids: list[str],
        texts: list[str],
        options: SynthesisOptions,
        tensorboard: TensorBoard,
    ):
        count = min(UTTERANCES, len(ids))
        self._batch = first_rows(batch, TTS_FEATURES, count)
        self._ids, self._texts = ids[:count], texts[:count]
        self._folder = folder
        self._manner = options
        self._tensorboard = tensorboard

    def __call__(self, state: TrainingState) -> None:
        batch = self._batch
        with state.averaged_weights(), tf.device(state.device):
            spoken, frames, _ = state.model.speak(
                batch["tokens"],
                batch["token_count"],
                batch["language"],
                batch["reference"],
                batch["reference_frames"],
                self._manner,
            )
            _, outputs = state.model(batch, training=False)
            waves = griffin_lim_waves(spoken, frames)
        target = self._folder / f"step-{state.step:06d}"
        temporary = self._folder / f".partial-{state.step:06d}"
        temporary.mkdir(parents=True, exist_ok=True)
        columns = (self._ids, self._texts, waves, spoken.numpy(), frames.numpy(), batch["mel"].numpy())
        rows = zip(*columns, batch["frames"].numpy(), outputs["path"].numpy(), strict=True)
        for number, (utterance, text, wave, mel, length, recorded, recorded_length, path) in enumerate(rows, 1):
            picture = mel_and_alignment(recorded[:recorded_length], mel[:length], path[:recorded_length], text)
            name = f"{number}-{Path(utterance).stem}"  # stems of several folders may be equal
            soundfile.write(temporary / f"{name}.wav", wave, SAMPLE_RATE_HZ, subtype="PCM_16")
            (temporary / f"{name}.png").write_bytes(png_bytes(picture))
            self._tensorboard.picture(state.step, f"mel_and_alignment/{name}", picture)
            self._tensorboard.sound(state.step, f"spoken/{name}", wave)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)


def synthesis_options(model: ModelConfig) -> SynthesisOptions:
    """How a run with these settings speaks where nothing else is asked for."""
    return SynthesisOptions(steps=model.ode_steps, guidance=model.guidance)


def first_rows(batch: dict, fields: dict[str, Field], count: int) -> dict:
    """The first rows of a batch of a contract."""
    return {name: value[:count] if fields[name].dims[:1] == ("batch",) else value for name, value in batch.items()}
