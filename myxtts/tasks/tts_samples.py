"""Synthesized speech of a few held-out utterances beside their recordings and copies of these, with
pictures.
"""

from pathlib import Path

import keras

from myxtts.audio.griffin_lim import GriffinLim
from myxtts.audio.vocoder import VocoderProtocol, vocode
from myxtts.audio.wav import write_wav
from myxtts.batch import TAUGHT_TTS_FEATURES
from myxtts.config.schema import ModelConfig
from myxtts.data.audio_file import read_wave
from myxtts.files import numbered_name, replaced_folder, tolerate_full_disk
from myxtts.models.xtts import TEXT_INPUTS, SynthesisOptions
from myxtts.report.plots import mel_and_alignment, png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.report.samples import sound_file
from myxtts.tasks.base import Examples


class TTSSampler:
    """Synthesizes the same held-out utterances at each call; see `tasks.base.Sampler`.

    Args:
        network: an `XTTS`.
        examples: TTS_FEATURES or TAUGHT_TTS_FEATURES; the first rows are synthesized, each with its
            own reference.
        options: how the texts are synthesized.
        vocoder: computes the waves. A trained one is compared with Griffin-Lim.
        folder: gets `step-000500/` with the sounds and a picture of each utterance: `1-NAME.wav` is
            synthesized, and `observe.page.samples` names the others, such as
            `1-NAME.recording.wav`.
        tensorboard: gets the synthesized sounds and the pictures.
    """

    def __init__(
        self,
        network: keras.Model,
        examples: Examples,
        options: SynthesisOptions,
        vocoder: VocoderProtocol,
        folder: Path,
        tensorboard: TensorBoard,
    ):
        examples = examples.sampled(TAUGHT_TTS_FEATURES)
        self._batch, self._ids, self._texts = examples.batch, examples.ids, examples.texts
        self._folder, self._tensorboard = folder, tensorboard
        self._network, self._options = network, options.tensors()
        self._align = network.compiled_align
        griffin_lim = GriffinLim()
        copied_by: dict[str, VocoderProtocol] = {"griffin-lim": griffin_lim}
        self._synthesized_by: dict[str, VocoderProtocol] = {"": vocoder}
        if vocoder.variables:
            copied_by["vocoder"] = vocoder
            self._synthesized_by["synthesized-griffin-lim"] = griffin_lim
        mel, frames = self._batch["mel"], self._batch["frames"]
        self._fixed = {"recording": [read_wave(file) for file in examples.files]}
        self._fixed |= {kind: vocode(copier, mel, frames) for kind, copier in copied_by.items()}

    def trace(self) -> None:
        """Compile synthesis and alignment; the vocoders are, since they made the copies."""
        self._network.synthesize_mel.get_concrete_function()
        self._align.get_concrete_function()

    def __call__(self, step: int) -> None:
        batch = self._batch
        mels, frames, _ = self._network.synthesize_mel(
            *(batch[name] for name in TEXT_INPUTS), *self._options
        )
        mels, frames = mels.numpy(), frames.numpy()
        synthesized = zip(self._ids, self._texts, mels, frames, strict=True)
        recorded = zip(
            batch["mel"].numpy(), batch["frames"].numpy(), self._align(batch).numpy(), strict=True
        )
        sounds = self._fixed | {
            kind: vocode(by, mels, frames) for kind, by in self._synthesized_by.items()
        }
        samples = replaced_folder(self._folder / f"step-{step:06d}")
        with tolerate_full_disk(f"the samples of step {step}"), samples as folder:
            for row, (utterance, recording) in enumerate(zip(synthesized, recorded, strict=True)):
                identity, text, mel, length = utterance
                recorded_mel, recorded_length, path = recording
                picture = mel_and_alignment(
                    recorded_mel[:recorded_length], mel[:length], path[:recorded_length], text
                )
                name = numbered_name(
                    row + 1, identity
                )  # files of several folders may have the same stem
                for kind, waves in sounds.items():
                    write_wav(folder / sound_file(name, kind), waves[row])
                (folder / f"{name}.png").write_bytes(png_bytes(picture))
                self._tensorboard.picture(step, f"mel_and_alignment/{name}", picture)
                self._tensorboard.sound(step, f"spoken/{name}", sounds[""][row])


def synthesis_options(model: ModelConfig) -> SynthesisOptions:
    """Return how a run with these settings synthesizes speech by default."""
    return SynthesisOptions(ode_steps=model.ode_steps, guidance=model.guidance)
