"""Text to speech: text and a reference of a speaker in, log-mel out."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import keras

from myxtts.audio.audio_file import write_wav
from myxtts.audio.format import frames_in
from myxtts.audio.vocoder import GriffinLim, LoadVocoder, VocoderProtocol, vocode
from myxtts.config.schema import Config, ModelConfig
from myxtts.config.synthesis import SynthesisOptions
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.placement.devices import xla_failure
from myxtts.report.plots import mel_and_alignment
from myxtts.report.samples import sound_file
from myxtts.tasks.base import KEPT_ARRAYS, Sampler, Task, kept_bytes
from myxtts.tasks.features import at_loudness
from myxtts.tasks.tts import aligner
from myxtts.tasks.tts import network as xtts
from myxtts.tasks.tts.alignment import sum_over_paths
from myxtts.tasks.tts.alignment_choice import choose_alignment_search, compiled
from myxtts.tasks.tts.contract import TAUGHT_TTS_FEATURES
from myxtts.tasks.tts.features import tts_extractor
from myxtts.tasks.tts.network import TEXT_INPUTS, build_xtts, option_tensors

# A step keeps 2 arrays of the size of the attention scores and of the search's scores.
KEPT_SCORES = 2


class TTSTask(Task):
    """XTTS: see tasks/tts/network.py."""

    name = "tts"
    product = "a voice"
    options = ("ode_steps", "guidance", "variety", "vocoder", "asr")
    sizes = xtts.SIZES
    components: tuple[str, ...] = ("reference_encoder", "text_encoder", "prosody", "decoder")
    supports_xla = True

    def has_small_operations(self, config: Config) -> bool:
        return config.model.model_size == "tiny"

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        extractor = tts_extractor(load_teacher=load_teacher)
        if training:
            fraction = config.teacher.teacher_fraction
            extractor = tts_extractor(config.data.vtlp, config.augmentation, load_teacher, fraction)
        return at_loudness(extractor, config.data.loudness)

    def build(
        self, config: Config, vocabulary: Vocabulary, inference="", weights: Collection[str] = ()
    ) -> keras.Model:
        model = config.model
        symbols, languages = len(vocabulary.symbols), len(vocabulary.languages)
        size, contexts = model.model_size, aligner.has_contexts(weights)
        if inference:
            return build_xtts(size, symbols, languages, precision=inference, contexts=contexts)
        return build_xtts(
            size,
            symbols,
            languages,
            precision=config.training.precision,
            dropout=model.dropout,
            reference_dropout=model.reference_dropout,
            cfg_dropout=model.cfg_dropout,
            segment_frames=_segment_frames(config),
            gradient_checkpointing=model.gradient_checkpointing,
            taught=config.teacher.teacher is not None,
            contexts=contexts,
        )

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        training = config.training
        # With --compile xla the whole step is compiled, this function included.
        if training.compile != "xla" and not xla_failure(device):
            network.sum_over_paths = compiled(sum_over_paths)
        # The batches have the path of the teacher's own search, so this network never searches.
        if "path" in network.BATCH_FIELDS:
            return {"alignment": "by the teacher"}
        network.alignment_search, line = choose_alignment_search(
            training.alignment_search, training.compile == "xla", device, sizes
        )
        return {"alignment": line}

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = self.sizes[config.model.model_size]
        frames, tokens = sizes["frames"], sizes["tokens"]
        # The decoder sees a segment of each utterance only; text and alignment are whole.
        segment = min(frames, _segment_frames(config))
        positions = segment // xtts.REDUCTION_FACTOR * (size.decoder_blocks + size.flow_blocks)
        blocks = size.channels * (positions + tokens * 2 * size.encoder_blocks)
        if not config.model.gradient_checkpointing:
            blocks *= KEPT_ARRAYS
        scores = frames * tokens + size.heads * tokens**2 * size.encoder_blocks
        kept = (blocks + KEPT_SCORES * scores) * kept_bytes(config)
        # The aligner, in float32: its layers, and log-probabilities, prior and posterior.
        kept += frames * (KEPT_ARRAYS * aligner.CHANNELS + 3 * tokens) * 4
        return sizes["batch"] * kept

    def sampler(self, config: Config, vocabulary: Vocabulary, load_vocoder: LoadVocoder):
        return partial(TTSSampler, synthesis_options(config.model), load_vocoder())


def _segment_frames(config: Config) -> int:
    return frames_in(config.model.segment_seconds)


class TTSSampler(Sampler):
    """Synthesizes held-out texts of TTS_FEATURES or TAUGHT_TTS_FEATURES, with their references.

    `report.samples` names the sounds. A trained vocoder is compared with Griffin-Lim.
    """

    FIELDS = TAUGHT_TTS_FEATURES

    def __init__(self, options: SynthesisOptions, vocoder: VocoderProtocol, *output: Any):
        super().__init__(*output)
        self._options = option_tensors(options)
        # Copies of the recording are the best that each vocoder can make of a perfect mel.
        griffin_lim = GriffinLim()
        copied_by: dict[str, VocoderProtocol] = {"griffin-lim": griffin_lim}
        self._synthesized_by: dict[str, VocoderProtocol] = {"": vocoder}
        if vocoder.variables:
            copied_by["vocoder"] = vocoder
            self._synthesized_by["synthesized-griffin-lim"] = griffin_lim
        mel, frames = self._batch["mel"], self._batch["frames"]
        self._fixed = {"recording": self._recordings}
        self._fixed |= {kind: vocode(copier, mel, frames) for kind, copier in copied_by.items()}

    def trace(self) -> None:
        # The vocoders are compiled, since they made the copies.
        self._network.synthesize_mel.get_concrete_function()
        self._network.compiled_align.get_concrete_function()

    def write(self, step: int, folder: Path) -> None:
        batch = self._batch
        texts = (batch[name] for name in TEXT_INPUTS)
        mels, frames, _ = self._network.synthesize_mel(*texts, *self._options)
        mels, frames = mels.numpy(), frames.numpy()
        recorded_mels, recorded_frames = batch["mel"].numpy(), batch["frames"].numpy()
        paths = self._network.compiled_align(batch).numpy()
        sounds = self._fixed | {
            kind: vocode(vocoder, mels, frames) for kind, vocoder in self._synthesized_by.items()
        }
        for row, name in enumerate(self._names):
            recorded = recorded_mels[row, : recorded_frames[row]]
            path = paths[row, : recorded_frames[row]]
            synthesized, text = mels[row, : frames[row]], self._texts[row]
            picture = mel_and_alignment(recorded, synthesized, path, text)
            for kind, waves in sounds.items():
                write_wav(folder / sound_file(name, kind), waves[row])
            self.write_picture(step, folder / f"{name}.png", f"mel_and_alignment/{name}", picture)
            self._tensorboard.sound(step, f"spoken/{name}", sounds[""][row])


def synthesis_options(model: ModelConfig) -> SynthesisOptions:
    """Return how a run with these settings synthesizes speech by default."""
    return SynthesisOptions(
        ode_steps=model.ode_steps, guidance=model.guidance, variety=model.variety
    )
