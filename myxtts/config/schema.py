"""Every setting of a run: its default, bounds, unit and meaning.

A YAML file and the command line name only the settings that differ from these defaults. The name of
a setting is unique over all sections, because its flag does not name the section (`data.batch_size`
is `--batch-size`). A period of 0 turns its action off. A setting that has an effect only with
certain values of others declares them with `needs`, and to give it without them is an error. Marks
say what else holds of a setting, such as FIXED; every table of settings in the package is made from
them. A section may have needs and marks for all of its settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from myxtts.config.synthesis import ODE_STEPS, bounds_of


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


Condition = bool | tuple[Any, ...]
"""A tuple has the values of which one is needed; null, false, 0 and () are unset."""
SET = True
UNSET = False


# Needs are kept as alternatives, each a conjunction. So `a & b` joins every alternative of one with
# every one of the other, and a message can name the alternative that lacks least.
@dataclass(frozen=True)
class Needs:
    """Conditions by the names of settings: `a & b` needs both, `a | b` one of them as a whole."""

    alternatives: tuple[Mapping[str, Condition], ...] = ({},)

    def __and__(self, other: "Needs") -> "Needs":
        pairs = product(self.alternatives, other.alternatives)
        return Needs(tuple(_joined(mine, others) for mine, others in pairs))

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(self.alternatives + other.alternatives)

    @property
    def names(self) -> set[str]:
        return set(chain.from_iterable(self.alternatives))

    @property
    def text(self) -> str:
        """The conditions in words, to follow `only`: `with --task tts and without --val-data`."""
        texts = (" and ".join(map(_text, each, each.values())) for each in self.alternatives)
        return ", or ".join(texts)

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the conditions hold for the values of all settings, by name."""
        return not self.unmet(values)

    def unmet(self, values: Mapping[str, Any]) -> list[str]:
        """Return the settings in the way, of the alternative with the fewest; none if it is met."""
        return min((_unmet(each, values) for each in self.alternatives), key=len)


def needs(**conditions: Any) -> Needs:
    """Return conditions that must all hold: `needs(task=("tts", "asr"), teacher=SET)`."""
    for name, condition in conditions.items():
        if not isinstance(condition, bool | tuple):
            conditions[name] = (condition,)
    return Needs((conditions,))


def _joined(some: Mapping[str, Condition], others: Mapping[str, Condition]) -> dict[str, Condition]:
    joined = {**some, **others}
    for name in some.keys() & others.keys():
        first, second = some[name], others[name]
        if isinstance(first, tuple) and isinstance(second, tuple):
            joined[name] = tuple(value for value in first if value in second)
    return joined


def _text(name: str, condition: Condition) -> str:
    if isinstance(condition, tuple):
        return f"with {flag_of(name)} {' or '.join(map(str, condition))}"
    return f"with {flag_of(name)}" if condition else f"without {flag_of(name)}"


def _unmet(conditions: Mapping[str, Condition], values: Mapping[str, Any]) -> list[str]:
    return [name for name, needed in conditions.items() if not _is_met(needed, values[name])]


def _is_met(condition: Condition, value: Any) -> bool:
    if isinstance(condition, tuple):
        return value in condition
    return bool(value) is condition


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Period = Annotated[int, Field(ge=0, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Decibels = Annotated[float, Field(ge=-30.0, le=100.0)]
GpuIndex = Annotated[int, Field(ge=0, le=1023)]
ObserverPlace = GpuIndex | Literal["auto", "data", "model", "cpu"]
MemoryMib = Annotated[int, Field(ge=256, le=1_000_000)]
ModelSize = Literal["tiny", "small", "normal", "big"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Reference = Annotated[float, Field(ge=0.5, le=30.0)]
TeacherFraction = Annotated[float, Field(ge=0.0, le=0.95)]
Silence = Annotated[float, Field(ge=15.0, le=80.0)]
Loudness = Annotated[float, Field(ge=-50.0, le=-10.0)]
SampleRate = Literal[16000, 22050, 24000]
Frontend = Annotated[str, Field(max_length=100)]
Normaliser = Literal["none", "words-1"]
Share = Annotated[float, Field(ge=1e-3, le=1e9)]
WaitSeconds = Annotated[int, Field(ge=1, le=86400)]
ThreadCount = Annotated[int, Field(ge=1, le=1024)] | Literal["auto"]
MIN_SECONDS = 0.05
MAX_SECONDS = 120.0
Column = Literal["path", "text", "normalized_text", "speaker", "language", "ignored"]
TTSPart = Literal["reference_encoder", "text_encoder", "prosody", "decoder"]
ASRPart = Literal["subsampling", "encoder", "output"]
Component = Literal[TTSPart, ASRPart, "pitch_head", "filter"]

BY_TEACHER = needs(task="vocoder", teacher=SET)
DISTILLING = needs(task="tts", teacher=SET)
WITH_TEXTS = needs(task=("tts", "asr")) | BY_TEACHER
WITH_PHONEMES = WITH_TEXTS & needs(text_frontend="phonemes")
IN_VOICES = needs(task="tts") | BY_TEACHER
SYNCING = needs(sync_every=SET)
EVALUATING = needs(evaluate_every=SET)
SELECTING = needs(select_by="loss", validate_every=SET) | (
    needs(select_by=("dnsmos", "cer")) & EVALUATING
)
OBSERVING = needs(validate_every=SET) | needs(sample_every=SET) | EVALUATING
DECODING = needs(cache_dataset=UNSET)
SPLITTING = needs(val_data=UNSET)


@dataclass(frozen=True)
class Mark:
    """What holds of a setting beyond its own value."""

    meaning: str


# Training, local SGD, evaluation, profiler and report make their tables of settings from these
# marks (`flags.marked`). Before, there were 13 tables in ten files. A new setting needed up to
# three of them, and nothing failed where one was forgotten.
FIXED = Mark("cannot change within a run: the plan, the symbols or the weights depend on it")
INHERITED = Mark("comes with the weights that a run starts from, which have no meaning without it")
FROM_TEACHER = Mark("comes from the teacher of a run, which reads the symbols of the run")
PER_MACHINE = Mark("may differ between workers: a device, a path, or how batches are read")
IN_SHARDS = Mark("determines the shards of a corpus")
IN_ALL_JOBS = Mark("is the same in all jobs of local SGD, or their models could not be merged")
IN_MERGE = Mark("is the same in all checkpoints of a merge that are of a task that it belongs to")
IN_SYNC = Mark("is the same in all checkpoints of a sync")
OF_FOLDER = Mark("says where the files of a run are, and nothing of how it trains")
NAMES_GPUS = Mark("names GPUs, so that a flag replaces all GPUs of a resumed run")
OFF_IN_TRIAL = Mark("is off in a profile, and where a corpus is only split")
OFF_IN_EVALUATION = Mark("is off in an evaluation, which reads each utterance once")
IN_SCORES = Mark("changes the scores of an evaluation, so that only equal ones are compared")
OFF_IN_MERGE = Mark("is off in the run that a merge makes")


class Section(BaseModel):
    """A group of settings, with needs and marks of all of them."""

    all_need: ClassVar[Needs] = Needs()
    all_marks: ClassVar[tuple[Mark, ...]] = ()

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class PlacementConfig(Section):
    """Which devices make batches and which train on them."""

    all_marks: ClassVar[tuple[Mark, ...]] = (PER_MACHINE,)
    placement: Literal["manual", "auto"] = "manual"
    """`auto` measures some steps and uses the placement with the highest predicted throughput."""
    data_gpu: Annotated[GpuIndex | None, NAMES_GPUS] = None
    """Physical GPU that makes batches. Requires model_gpu or model_gpus."""
    data_gpus: Annotated[tuple[GpuIndex, ...], NAMES_GPUS] = ()
    """Physical GPUs that make batches in turn. Requires model_gpu or model_gpus."""
    data_shares: Annotated[tuple[Share, ...], NAMES_GPUS] = ()
    """Share of each data GPU in the batches, such as their speeds: 3 1. Default: equal shares."""
    model_gpu: Annotated[GpuIndex | None, NAMES_GPUS] = None
    """Physical GPU that trains the model. Requires data_gpu or data_gpus."""
    model_gpus: Annotated[tuple[GpuIndex, ...], NAMES_GPUS] = ()
    """Physical GPUs with a replica each, which makes its own batches without a data GPU."""
    observer: Annotated[ObserverPlace, OBSERVING] = "auto"
    """Device that validates, writes samples and evaluates a snapshot: the data GPU, the CPU, or
    a GPU by its index. On the model GPU training pauses. `auto`: a data GPU that does not train, or
    else the model GPU."""
    simulate_gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """Split the CPU into this number of logical devices and use them as GPUs; 0 uses real GPUs."""
    enable_memory_isolation: bool = False
    """Give each GPU a fixed memory limit instead of letting its memory grow as needed."""
    data_gpu_memory: MemoryMib | None = None
    """Memory limit of each data GPU in MiB; turns on memory isolation (default there: 8192)."""
    model_gpu_memory: MemoryMib | None = None
    """Memory limit of each model GPU in MiB; turns on memory isolation (default there: 16384)."""
    intra_op_threads: ThreadCount = "auto"
    """CPU threads of one operation. `auto`: one a core, but 1 for a tiny `tts` on up to 2 cores;
    with GPUs, TensorFlow's default."""
    inter_op_threads: ThreadCount = "auto"
    """CPU operations at the same time. `auto`: one a core; with GPUs, TensorFlow's default."""


class DataConfig(Section):
    """The corpus, and how batches are made from it."""

    train_data: Annotated[str | None, PER_MACHINE, IN_SHARDS, IN_ALL_JOBS] = None
    """Corpus in one of the forms of docs/guides/data.md: LJSpeech, Festvox, Kaldi, LibriTTS, Common
    Voice, JSON lines, CSV or TSV with columns path, text[, speaker][, language], packed by `myxtts
    pack`, …; for `vocoder` also a folder of audio without texts. Default: the demo corpus."""
    val_data: Annotated[str | None, PER_MACHINE, IN_SHARDS, IN_ALL_JOBS] = None
    """Validation corpus, in the same forms. Default: validation_fraction of train_data."""
    audio_root: Annotated[str | None, PER_MACHINE, IN_SHARDS, IN_ALL_JOBS] = None
    """Folder that paths in CSV and TSV files are relative to. Default: the folder of the file."""
    columns: Annotated[tuple[Column, ...], PER_MACHINE, IN_SHARDS, IN_ALL_JOBS] = ()
    """Columns of a metadata file without a header, in order. LJSpeech's lines need none."""
    exclude: Annotated[str | None, PER_MACHINE, IN_SHARDS, IN_ALL_JOBS] = None
    """CSV file, as `inspect` writes, whose column path names utterances to leave out."""
    validation_fraction: Annotated[Fraction, SPLITTING, FIXED, IN_SHARDS, IN_ALL_JOBS] = 0.05
    """Fraction of the utterances to hold out for validation."""
    max_rejected: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Abort above this fraction of unusable rows."""
    min_seconds: Annotated[float, Field(ge=MIN_SECONDS), FIXED, IN_SHARDS] = 0.3
    """Reject shorter utterances."""
    max_seconds: Annotated[float, Field(gt=MIN_SECONDS, le=MAX_SECONDS), FIXED, IN_SHARDS] = 20.0
    """Reject longer utterances."""
    trim: Annotated[Silence | None, FIXED, IN_SHARDS, IN_ALL_JOBS] = None
    """Cut off the ends of utterances and references that are this many dB below their loudest 23
    ms, but for 46 ms. Try 40."""
    loudness: Annotated[Loudness | None, FIXED, INHERITED, FROM_TEACHER, IN_ALL_JOBS, IN_MERGE] = (
        None
    )
    """Loudness of all utterances and references in LUFS (EBU R 128), such as -23, less where the
    peak would be clipped."""
    sample_rate: Annotated[
        SampleRate, FIXED, INHERITED, FROM_TEACHER, IN_SHARDS, IN_ALL_JOBS, IN_MERGE
    ] = 22050
    """Samples a second of what the run hears and makes; recordings of other rates are resampled.
    24000 has mels of 100 bands up to 12 kHz; 22050 and 16000 of 80 up to 8 kHz."""
    text_frontend: Annotated[
        Frontend, WITH_TEXTS, FIXED, INHERITED, FROM_TEACHER, IN_SHARDS, IN_ALL_JOBS
    ] = "phonemes"
    """What makes tokens of texts: `phonemes`, IPA symbols from espeak-ng; `characters`; or the
    front end of a package. With --init-from another one keeps the weights of symbols of both."""
    text_normaliser: Annotated[
        Normaliser, WITH_PHONEMES, FIXED, INHERITED, FROM_TEACHER, IN_SHARDS, IN_ALL_JOBS
    ] = "words-1"
    """What reads numbers, dates, money and abbreviations: the libraries of `words-1`, one for each
    of en, de, es, fr, ru and fa; or `none`, which leaves them to espeak-ng as for other languages.
    """
    lexicon: Annotated[str | None, WITH_TEXTS, FIXED, IN_SHARDS, IN_ALL_JOBS] = None
    """File with a word, a tab and its reading in each line: words, or phonemes as [[təmˈɑːtoʊ]].
    Its words are kept in the checkpoint, which reads them so in synthesis."""
    language: Annotated[str, WITH_TEXTS, IN_SHARDS, IN_ALL_JOBS] = "en"
    """Language of utterances without one in the corpus (an espeak-ng code: en, ka, fa, …)."""
    batch_size: Annotated[Count, needs(batch_seconds=UNSET), FIXED] = 16
    """Utterances in a batch of each replica."""
    batch_seconds: Annotated[float, Field(ge=0.0, le=86400.0), FIXED] = 0.0
    """Audio seconds in a batch, with padding, instead of batch_size. 0 is off."""
    batch_shares: Annotated[tuple[Share, ...] | Literal["auto"], OFF_IN_TRIAL] = ()
    """Share of each replica in the rows of a step, such as the speeds of its GPUs: 1 2. `auto`
    starts with equal shares, and deals the rows anew in the first steps and at the end of an epoch
    where a GPU waits for the others for more than 5 % of a step. Default: equal shares."""
    buckets: Annotated[int, Field(ge=1, le=64), FIXED] = 8
    """Number of duration buckets. More buckets need less padding, but each has fewer utterances."""
    reference_seconds: Annotated[Reference, IN_VOICES, FIXED, IN_ALL_JOBS, IN_MERGE] = 3.0
    """Maximum duration of the reference audio that the model receives."""
    num_workers: Annotated[Count, PER_MACHINE] = 2
    """Batches read and decoded in parallel for each data device."""
    use_tf_native_loading: Annotated[bool, DECODING, PER_MACHINE] = True
    """Decode 16-bit WAV with TensorFlow operations; if off, read all files with soundfile."""
    buffer_size: Annotated[Count, PER_MACHINE] = 8
    """Batches buffered on the host for each data device."""
    prefetch_buffer_size: Annotated[Count, PER_MACHINE] = 3
    """Batches of audio buffered on the data device, and as many batches of features."""
    vtlp: Annotated[float, Field(ge=0.0, le=0.3), needs(task="tts")] = 0.0
    """Vocal tract length perturbation: scale the frequencies of an utterance and its reference by a
    random factor from exp(-x) to exp(x), and shape the spectrum. For unseen speakers try 0.1."""
    cache_dataset: Annotated[bool, PER_MACHINE, OFF_IN_EVALUATION] = False
    """Decode the corpus once, into a memory-mapped file in the run folder."""
    shard_cache_gb: Annotated[float, PER_MACHINE, Field(ge=0.0, le=1_000_000.0)] = 10.0
    """Keep so many GB of a corpus in an object store on the local disk (~/.cache/myxtts/stores)."""
    enable_static_shapes: bool = False
    """Trace the training step once per bucket, instead of once with symbolic shapes."""
    model_start_delay: Annotated[float, Field(ge=0.0, le=3600.0), PER_MACHINE] = 2.0
    """Maximum time in seconds that the first step waits for the feed to fill."""


class AugmentationConfig(Section):
    """Random distortions of waves in training: utterances of `asr`, references of `tts`."""

    all_need: ClassVar[Needs] = needs(task=("tts", "asr"))
    reverb_probability: Probability = 0.0
    """Fraction of the utterances that get the reverberation of a random synthetic room."""
    reverb_max_rt60: Annotated[float, Field(ge=0.1, le=3.0), needs(reverb_probability=SET)] = 0.6
    """Longest reverberation time (a fall by 60 dB) in seconds; the shortest is 0.1."""
    noise_probability: Probability = 0.0
    """Fraction of the utterances that get noise."""
    noise_min_snr_db: Annotated[Decibels, needs(noise_probability=SET)] = 0.0
    """Lowest signal-to-noise ratio in dB."""
    noise_max_snr_db: Annotated[Decibels, needs(noise_probability=SET)] = 20.0
    """Highest signal-to-noise ratio in dB."""
    babble_fraction: Annotated[Probability, needs(noise_probability=SET)] = 0.3
    """Fraction of these noises that are babble of the batch; the others are white to brown."""
    equaliser_probability: Probability = 0.0
    """Fraction of the utterances that pass an equaliser of three random peaks of up to 9 dB."""
    band_limit_probability: Probability = 0.0
    """Fraction of the utterances that lose low or high frequencies, as on a telephone."""
    codec_probability: Probability = 0.0
    """Fraction of the utterances that are quantised as by a codec: mu-law with 4 to 8 bits."""
    speed_perturbation: Annotated[float, Field(ge=0.0, le=0.2), needs(task="asr")] = 0.0
    """Largest change of speed, pitch included: 0.1 is a factor from 0.9 to 1.1."""


class ModelConfig(Section):
    """The network."""

    task: Annotated[Literal["tts", "asr", "vocoder"], FIXED, INHERITED, IN_ALL_JOBS] = "tts"
    """The task: `tts`, text to speech; `asr`, speech recognition; or `vocoder`, log-mel to wave."""
    model_size: Annotated[ModelSize, FIXED, INHERITED, IN_ALL_JOBS] = "normal"
    """About 3, 10, 25 or 80 million parameters for `tts`, 1.2, 3, 7 or 22 million for `asr`,
    and 3, 6, 14 or 34 million for `vocoder`."""
    dropout: Annotated[Fraction, needs(task=("tts", "asr"))] = 0.05
    """Dropout rate."""
    reference_dropout: Annotated[Fraction, needs(task="tts")] = 0.1
    """Fraction of the utterances trained without a reference; synthesis then needs none."""
    cfg_dropout: Annotated[Fraction, needs(task="tts")] = 0.1
    """Fraction of the utterances trained without conditions, for classifier-free guidance."""
    segment_seconds: Annotated[float, Field(ge=0.25, le=120.0), needs(task="tts")] = 1.5
    """Train decoder and flow on a random segment of this duration from each utterance."""
    gradient_checkpointing: Annotated[bool, needs(task=("tts", "vocoder"))] = False
    """Recompute activations in the backward pass: less memory, more time."""
    ode_steps: Annotated[int, bounds_of("ode_steps"), needs(task="tts"), IN_SCORES] = ODE_STEPS
    """Steps of the ODE solver from noise to speech; more are more accurate and slower."""
    guidance: Annotated[float, bounds_of("guidance"), needs(task="tts"), IN_SCORES] = 1.0
    """Scale of classifier-free guidance in synthesis; all but 1 (off) take twice the time."""
    variety: Annotated[float, bounds_of("variety"), needs(task="tts"), IN_SCORES] = 0.5
    """Variety of pitch and energy in synthesis, as a fraction of how much people vary them, and
    half as much of durations; 0 speaks the means."""
    vocoder: Annotated[str | None, needs(task="tts"), PER_MACHINE, IN_SCORES] = None
    """Run of a vocoder, which computes the waves of a `tts`; else Griffin-Lim (`griffin-lim`)."""


class ASRConfig(Section):
    """Settings of the task `asr`."""

    all_need: ClassVar[Needs] = needs(task="asr")
    encoder: Annotated[Literal["lmu", "gru"], FIXED, INHERITED, IN_ALL_JOBS, IN_MERGE] = "lmu"
    """Encoder blocks: Legendre memory units or gated recurrent units, of about equal size."""
    subsampling: Annotated[Literal[1, 2, 4], FIXED, INHERITED, IN_ALL_JOBS, IN_MERGE] = 2
    """Factor by which frames are subsampled. Each symbol of the text needs one frame afterwards."""
    time_masks: Annotated[int, Field(ge=0, le=20)] = 2
    """Number of time masks of SpecAugment per utterance."""
    time_mask_fraction: Annotated[float, Field(ge=0.0, le=1.0), needs(time_masks=SET)] = 0.05
    """Maximum length of a time mask, as a fraction of the utterance."""
    frequency_masks: Annotated[int, Field(ge=0, le=20)] = 2
    """Number of frequency masks of SpecAugment per utterance."""
    frequency_mask_bands: Annotated[int, Field(ge=1, le=80), needs(frequency_masks=SET)] = 15
    """Maximum width of a frequency mask, in mel bands."""


class VocoderConfig(Section):
    """Settings of the task `vocoder`."""

    all_need: ClassVar[Needs] = needs(task="vocoder")
    vocoder_segment_seconds: Annotated[float, Field(ge=0.15, le=10.0)] = 0.65
    """Train on a random segment of this duration from each utterance."""


class TeacherConfig(Section):
    """A frozen voice that makes part of the features, on the data device."""

    all_need: ClassVar[Needs] = needs(task=("tts", "vocoder"))
    teacher: Annotated[str | None, PER_MACHINE, IN_ALL_JOBS] = None
    """Run of a `tts`. A `vocoder` learns from mels that this voice makes of the recordings, with
    their durations, pitch and energy; a `tts` from what it speaks, and recordings it aligned."""
    teacher_fraction: Annotated[
        TeacherFraction, DISTILLING, FIXED, IN_ALL_JOBS, OFF_IN_EVALUATION
    ] = 0.5
    """Fraction of the rows of a batch of a `tts` that the teacher speaks, with voices of random
    references; the rest are recordings. An incomplete batch lacks rows of the teacher first."""
    texts: Annotated[
        str | None, DISTILLING & needs(teacher_fraction=SET), PER_MACHINE, IN_ALL_JOBS
    ] = None
    """Text file that the teacher speaks, a sentence in each line. Default: the corpus' texts."""
    produce_precision: Annotated[Precision, needs(teacher=SET), FIXED] = "float32"
    """Number format in which the teacher computes; its weights stay float32."""


class TrainingConfig(Section):
    """Optimizer, length and precision of training."""

    max_steps: Annotated[Period, IN_ALL_JOBS] = 100_000
    """End after this number of steps; 0 leaves it to epochs, which replaces the default."""
    epochs: Annotated[Period, IN_ALL_JOBS] = 0
    """End after this number of passes over the corpus, or at max_steps if that is earlier."""
    stop_at_step: Annotated[Period | None, OFF_IN_MERGE] = None
    """Stop early at this step, for a shared warm start; 0 saves the initial weights."""
    patience: Annotated[Period, SELECTING & needs(sync_every=UNSET)] = 0
    """Stop early when so many results in a row were no better than the best by select_by; 0 is
    off."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """Peak learning rate, reached after the warm-up."""
    scale_learning_rate: bool = False
    """Multiply the learning rate by the number of replicas (linear scaling, Goyal et al. 2017)."""
    warmup_steps: Period = 500
    """Steps over which the learning rate rises from 0."""
    final_lr_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Learning rate at the last step divided by the peak (cosine decay)."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """Decoupled weight decay of AdamW on kernels, without biases, norms and embeddings."""
    gradient_clip: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    """Clip the gradient to this global norm; 0 turns clipping off."""
    gradient_accumulation: Annotated[Count, FIXED] = 1
    """Number of batches whose gradients are summed for one step."""
    precision: Annotated[Precision, FIXED, IN_ALL_JOBS] = "float32"
    """Number format of the computation; variables stay float32."""
    tf32: bool = True
    """Let GPUs since Ampere round factors of float32 products and convolutions in the step and in a
    teacher to TF32 (faster; 10 bits of mantissa). Features and targets are never rounded."""
    ema_decay: Annotated[Fraction, FIXED, IN_ALL_JOBS] = 0.999
    """Decay of the averaged weights, which validation and inference use; 0 turns it off."""
    seed: Annotated[int, Field(ge=0, lt=2**31), FIXED, IN_SHARDS, IN_ALL_JOBS] = 0
    """Seed of all randomness: initial weights, order of the utterances, dropout."""
    init_from: Annotated[str | None, FIXED, PER_MACHINE, IN_ALL_JOBS] = None
    """Folder of a run, or URL of a published one, whose weights initialise this one; new symbols
    and languages get rows."""
    # Fixed, because a checkpoint holds moments and averages of the trained weights only.
    freeze: Annotated[tuple[Component, ...], FIXED, IN_ALL_JOBS] = ()
    """Parts of the network to freeze: four of `tts`, then three of `asr` and two of `vocoder`."""
    deterministic: bool = False
    """Use deterministic kernels (slower): a run repeats bit for bit also on GPUs."""
    compile: Literal["off", "xla"] = "off"
    """Compile the training step with XLA; requires enable_static_shapes."""
    alignment_search: Annotated[Literal["auto", "xla", "host", "loop"], needs(task="tts")] = "auto"
    """Where the alignment search of `tts` runs: compiled by XLA for the model device or host, or
    as TensorFlow operations; all find the same. auto measures on a GPU, and is xla on a CPU."""


class RunConfig(Section):
    """The run folder, and how often files are written to it (periods in steps)."""

    run: Annotated[RunName, IN_ALL_JOBS, OF_FOLDER] = "default"
    """Name of the run: its folder under runs_dir."""
    runs_dir: Annotated[str, PER_MACHINE, IN_ALL_JOBS, OF_FOLDER] = "runs"
    """Folder of all runs."""
    resume: Annotated[bool, IN_ALL_JOBS, OF_FOLDER, OFF_IN_TRIAL, OFF_IN_MERGE] = False
    """Continue the run of this name from its newest checkpoint, if it has one. Without --config
    and train_data, it takes the settings of its config.yaml, which flags replace."""
    lock: Annotated[bool, PER_MACHINE] = True
    """Lock the run folder. Without, on a file system that has no locks, nothing prevents a second
    start from training the same run, which would damage it."""
    log_every: Count = 50
    """Steps between two reports."""
    checkpoint_every: Period = 1000
    """Steps between two checkpoints; the end of the run always writes one."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints to keep, in addition to the best one."""
    validate_every: Annotated[Period, OFF_IN_TRIAL] = 1000
    """Steps between two validations."""
    sample_every: Annotated[Period, OFF_IN_TRIAL] = 1000
    """Steps between two sets of samples: speech, transcripts or copies, and pictures."""
    evaluate_every: Annotated[Period, OFF_IN_TRIAL] = 0
    """Steps between two evaluations: scores of held-out utterances as `evaluate` measures them."""
    evaluate_utterances: Annotated[Count, EVALUATING, IN_SCORES] = 16
    """Maximum number of held-out utterances that an evaluation measures."""
    evaluate_asr: Annotated[str | None, EVALUATING & needs(task="tts"), IN_SCORES] = None
    """Run of a recogniser, for error rates on the synthesized speech in an evaluation."""
    evaluate_pesq: Annotated[bool, EVALUATING & needs(task="vocoder")] = False
    """Also measure PESQ-WB and STOI, if installed; `pesq` halts all threads of the run."""
    select_by: Literal["loss", "dnsmos", "cer"] = "loss"
    """What makes a checkpoint the best: `loss`, the lowest validation loss; or what is heard,
    measured by evaluate_every: `dnsmos`, the highest DNSMOS of a `tts`, or `cer`, the lowest
    character error rate of an `asr`, or of a `tts` by evaluate_asr."""

    @property
    def folder(self) -> Path:
        return Path(self.runs_dir, self.run)

    @property
    def uses_held_out(self) -> bool:
        """Whether the run measures or plays held-out utterances."""
        return bool(self.validate_every or self.sample_every or self.evaluate_every)


class WorkersConfig(Section):
    """How long several workers wait for each other, in seconds."""

    start_timeout: WaitSeconds = 600
    """Maximum time until all workers have started; a node may have to fetch an image first."""
    register_timeout: WaitSeconds = 60
    """Maximum time for CUDA and TensorFlow's server to start after that."""
    heartbeat_timeout: WaitSeconds = 20
    """Time without a heartbeat after which a worker counts as lost."""


class LocalSGDConfig(Section):
    """Local SGD: independent jobs that average their weights through a shared folder."""

    all_marks: ClassVar[tuple[Mark, ...]] = (IN_ALL_JOBS,)
    sync_every: Annotated[Period, FIXED, IN_SYNC] = 0
    """Steps between two syncs with the other jobs; 0 is off."""
    sync_dir: Annotated[str | None, SYNCING] = None
    """Folder that all jobs share, for the weights that they exchange at each sync."""
    jobs: Annotated[int, Field(ge=1, le=1024), SYNCING, FIXED, IN_SYNC] = 1
    """Number of jobs."""
    job: Annotated[int, Field(ge=0, le=1023), SYNCING, FIXED] = 0
    """Index of this job, from 0."""
    sync_timeout: Annotated[float, Field(gt=0.0, le=86400.0), SYNCING] = 600.0
    """Maximum time in seconds that a sync waits for the other jobs."""
    sync_quorum: Annotated[int | None, Field(ge=1, le=1024), SYNCING] = None
    """Fewest jobs that average; with fewer after sync_timeout, a job ends with exit code 138.
    Default: more than half of the jobs."""
    outer_learning_rate: Annotated[float, Field(gt=0.0, le=2.0), SYNCING, IN_SYNC] = 1.0
    """Learning rate of the outer optimizer at each sync; 1 without momentum averages."""
    outer_momentum: Annotated[Fraction, SYNCING, IN_SYNC] = 0.0
    """Nesterov momentum of the outer optimizer (DiLoCo, Douillard et al. 2023: 0.9 at 0.7)."""
    sync_optimizer: Annotated[Literal["keep", "average", "reset"], SYNCING, IN_SYNC] = "average"
    """What a sync does with the state of each job's optimizer."""


class Config(Section):
    """All settings of a run."""

    placement: PlacementConfig = PlacementConfig()
    data: DataConfig = DataConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    model: ModelConfig = ModelConfig()
    asr: ASRConfig = ASRConfig()
    vocoder: VocoderConfig = VocoderConfig()
    teacher: TeacherConfig = TeacherConfig()
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    workers: WorkersConfig = WorkersConfig()
    local_sgd: LocalSGDConfig = LocalSGDConfig()
