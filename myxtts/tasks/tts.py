"""Text to speech: text and a reference of a speaker in, log-mel out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol, vocode
from myxtts.batch import TAUGHT_TTS_FEATURES
from myxtts.config.schema import Config, ModelConfig
from myxtts.data.audio_file import read_wave, write_wav
from myxtts.data.features import FeatureExtractor, LoadFrozen, tts_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.files import numbered_name, replaced_folder, tolerate_full_disk
from myxtts.models import xtts
from myxtts.models.xtts import TEXT_INPUTS, SynthesisOptions, build_xtts
from myxtts.report.plots import mel_and_alignment, png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.report.samples import sound_file
from myxtts.tasks.alignment_choice import choose_alignment_search
from myxtts.tasks.base import KEPT_ARRAYS, Examples, Task, dimensions, kept_bytes

# A step keeps 2 arrays of the size of the attention scores and of the search's scores.
KEPT_SCORES = 2


class TTSTask(Task):
    """XTTS: see models/xtts.py."""

    name = "tts"
    components: tuple[str, ...] = ("reference_encoder", "text_encoder", "prosody", "decoder")
    supports_xla = True

    def has_small_operations(self, config: Config) -> bool:
        return config.model.model_size == "tiny"

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        if not training:
            return tts_extractor(load_teacher=load_teacher)
        fraction = config.teacher.teacher_fraction
        return tts_extractor(config.data.vtlp, config.augmentation, load_teacher, fraction)

    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        model = config.model
        settings: dict[str, Any] = {
            "precision": config.training.precision,
            "dropout": model.dropout,
            "reference_dropout": model.reference_dropout,
            "cfg_dropout": model.cfg_dropout,
            "segment_frames": round(model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES),
            "gradient_checkpointing": model.gradient_checkpointing,
            "taught": config.teacher.teacher is not None,
        }
        if not training:
            settings = {"precision": precision}
        return build_xtts(
            model.model_size, len(vocabulary.symbols), len(vocabulary.languages), **settings
        )

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        # The batches have the path of the teacher's own search, so this network never searches.
        if "path" in network.BATCH_FIELDS:
            return {"alignment": "by the teacher"}
        training = config.training
        choice = choose_alignment_search(
            training.alignment_search, training.compile == "xla", device, sizes
        )
        network.alignment_search = choice.search
        return {"alignment": choice.line}

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = xtts.SIZES[config.model.model_size]
        frames = sizes["frames"]
        tokens = sizes["tokens"]
        # The decoder sees a segment of each utterance only; text and alignment are whole.
        segment = min(frames, round(config.model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES))
        positions = segment // xtts.REDUCTION_FACTOR * (size.decoder_blocks + size.flow_blocks)
        blocks = size.channels * (positions + tokens * 2 * size.encoder_blocks)
        if not config.model.gradient_checkpointing:
            blocks *= KEPT_ARRAYS
        scores = frames * tokens + size.heads * tokens**2 * size.encoder_blocks
        return sizes["batch"] * (blocks + KEPT_SCORES * scores) * kept_bytes(config)

    def describe(self, config: Config) -> str:
        return dimensions(self.name, config, xtts.SIZES)

    def sampler(
        self,
        config: Config,
        vocabulary: Vocabulary,
        network: keras.Model,
        examples: Examples,
        folder: Path,
        tensorboard: TensorBoard,
        load_vocoder: Callable[[], VocoderProtocol],
    ) -> "TTSSampler":
        return TTSSampler(
            network, examples, synthesis_options(config.model), load_vocoder(), folder, tensorboard
        )


class TTSSampler:
    """Synthesizes the same held-out utterances at each call; see `tasks.base.Sampler`.

    Args:
        network: an `XTTS`.
        examples: TTS_FEATURES or TAUGHT_TTS_FEATURES; the first rows are synthesized, each with its
            own reference.
        options: how the texts are synthesized.
        vocoder: computes the waves. A trained one is compared with Griffin-Lim.
        folder: gets `step-000500/` with the sounds and a picture of each utterance: `1-NAME.wav` is
            synthesized, and `report.samples` names the others, such as
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
        self._batch = examples.batch
        self._texts = examples.texts
        # Files of several folders may have the same stem.
        self._names = [numbered_name(number, name) for number, name in enumerate(examples.ids, 1)]
        self._folder = folder
        self._tensorboard = tensorboard
        self._network = network
        self._options = options.tensors()
        self._align = network.compiled_align
        # Copies of the recording are the best that each vocoder can make of a perfect mel.
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
        mels = mels.numpy()
        frames = frames.numpy()
        recorded_mels = batch["mel"].numpy()
        recorded_frames = batch["frames"].numpy()
        paths = self._align(batch).numpy()
        sounds = self._fixed | {
            kind: vocode(vocoder, mels, frames) for kind, vocoder in self._synthesized_by.items()
        }
        # A run that is killed here leaves no half folder, which the page would show as samples.
        samples = replaced_folder(self._folder / f"step-{step:06d}")
        with tolerate_full_disk(f"the samples of step {step}"), samples as folder:
            for row, name in enumerate(self._names):
                length = recorded_frames[row]
                picture = mel_and_alignment(
                    recorded_mels[row, :length],
                    mels[row, : frames[row]],
                    paths[row, :length],
                    self._texts[row],
                )
                for kind, waves in sounds.items():
                    write_wav(folder / sound_file(name, kind), waves[row])
                (folder / f"{name}.png").write_bytes(png_bytes(picture))
                self._tensorboard.picture(step, f"mel_and_alignment/{name}", picture)
                self._tensorboard.sound(step, f"spoken/{name}", sounds[""][row])


def synthesis_options(model: ModelConfig) -> SynthesisOptions:
    """Return how a run with these settings synthesizes speech by default."""
    return SynthesisOptions(ode_steps=model.ode_steps, guidance=model.guidance)
