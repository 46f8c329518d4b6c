"""Every setting of a run: its default, bound, unit and meaning.

A YAML file and the command line name only what differs from these defaults. A setting's name is
unique over all sections, since its flag carries no section (`data.batch_size` is `--batch-size`).
A period of 0 turns its action off.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Period = Annotated[int, Field(ge=0, le=1_000_000_000)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
GpuIndex = Annotated[int, Field(ge=0, le=1023)]
MemoryMib = Annotated[int, Field(ge=256, le=1_000_000)]


class Section(BaseModel):
    """A group of settings: frozen, and closed to names that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class PlacementConfig(Section):
    """Which device makes batches and which one trains on them."""

    placement: Literal["manual", "auto"] = "manual"
    """`auto` measures some steps and takes the placement that is predicted to be the fastest."""
    data_gpu: GpuIndex | None = None
    """Physical GPU that makes batches. Goes with model_gpu or model_gpus."""
    model_gpu: GpuIndex | None = None
    """Physical GPU that holds the model and trains. Goes with data_gpu."""
    model_gpus: tuple[GpuIndex, ...] = ()
    """Physical GPUs that hold one replica of the model each. Each makes its own batches, unless data_gpu does."""
    simulate_gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """Split the CPU into this many logical devices and use them as GPUs; 0 uses real ones."""
    enable_memory_isolation: bool = False
    """Give each GPU a fixed memory limit instead of letting its use grow."""
    data_gpu_memory: MemoryMib | None = None
    """Memory limit of the data GPU in MiB; implies isolation, in which 8192 is the default."""
    model_gpu_memory: MemoryMib | None = None
    """Memory limit of a model GPU in MiB; implies isolation, in which 16384 is the default."""


class DataConfig(Section):
    """The corpus, and how batches are made of it."""

    train_data: str | None = None
    """LJSpeech folder, or CSV/TSV file with columns path, text[, speaker][, language]. Without it: the demo corpus."""
    val_data: str | None = None
    """Held-out corpus of the same forms. Without it, validation_fraction of train_data is held out."""
    audio_root: str | None = None
    """Folder that the paths of CSV and TSV files start from and must lie in. Without it: the folder of each file."""
    validation_fraction: Share = 0.05
    """Share of the utterances that is held out where val_data is not given."""
    max_rejected: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Largest share of unusable rows with which a run still starts."""
    min_seconds: Annotated[float, Field(ge=0.05)] = 0.3
    """Shorter utterances are rejected."""
    max_seconds: Annotated[float, Field(gt=0.05, le=120.0)] = 20.0
    """Longer utterances are rejected."""
    text_frontend: Literal["phonemes", "characters"] = "phonemes"
    """What a token is: an IPA symbol by espeak-ng, or a character of the text."""
    language: str = "en"
    """Language of the utterances whose corpus names none (an espeak-ng code: en, ka, fa, …)."""
    batch_size: Count = 16
    """Utterances in a batch of one replica: a step of several replicas takes so many for each."""
    batch_seconds: Annotated[float, Field(ge=0.0, le=86400.0)] = 0.0
    """Audio seconds in a batch, padding included, instead of batch_size: short buckets get larger batches. 0 is off."""
    buckets: Annotated[int, Field(ge=1, le=64)] = 8
    """Duration buckets. More of them pad less and hold fewer utterances each."""
    reference_seconds: Annotated[float, Field(ge=0.5, le=30.0)] = 3.0
    """Longest stretch of the reference utterance that the model hears."""
    num_workers: Count = 2
    """Batches that are read and decoded at the same time, for each data device."""
    use_tf_native_loading: bool = True
    """Decode 16-bit WAV with TensorFlow's own operations; off reads everything with soundfile."""
    data_service: str | None = None
    """Address of a tf.data service whose workers read and decode instead of this machine: grpc://HOST:PORT."""
    buffer_size: Count = 8
    """Batches kept ready on the host, for each data device."""
    prefetch_buffer_size: Count = 3
    """Batches kept ready on the data device, and again on the model device."""
    vtlp: Annotated[float, Field(ge=0.0, le=0.3)] = 0.0
    """Each utterance and its reference are heard in another voice: all frequencies times one random factor from exp(-x)
    to exp(x), the spectrum raised and lowered by a random smooth curve. 0 is off; for unseen speakers try 0.1."""
    cache_dataset: bool = False
    """Decode the corpus once into a memory-mapped file in the run folder."""
    enable_static_shapes: bool = False
    """Trace the step once for each bucket, with known shapes, instead of once with symbolic ones."""
    model_start_delay: Annotated[float, Field(ge=0.0, le=3600.0)] = 2.0
    """Longest time in seconds that the first step waits for the feed to fill."""


class ModelConfig(Section):
    """The network."""

    task: Literal["tts", "asr"] = "tts"
    """What is trained: a voice, from text to speech, or a recogniser, from speech to text."""
    model_size: Literal["tiny", "small", "normal", "big"] = "normal"
    """About 3, 10, 25 or 80 million parameters; of a recogniser 1.3, 3, 7 or 20."""
    dropout: Share = 0.05
    """Share of activations dropped in training."""
    reference_dropout: Share = 0.1
    """Share of the utterances that are learnt without a reference, so that one can be left out in synthesis."""
    cfg_dropout: Share = 0.1
    """Share of the utterances whose flow is trained without text and voice, which guidance needs."""
    segment_seconds: Annotated[float, Field(ge=0.25, le=120.0)] = 1.5
    """Decoder and flow are trained on a random stretch of this length of each utterance."""
    gradient_checkpointing: bool = False
    """Compute activations a second time in the backward pass instead of keeping them: less memory, more time."""
    ode_steps: Annotated[int, Field(ge=1, le=1000)] = 4
    """Steps from noise to speech in synthesis; more are finer and slower."""
    guidance: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """How much synthesis exaggerates what text and voice ask for; 1 is plain, other values take twice the time."""


class ASRConfig(Section):
    """What a recogniser has beside or instead of what a voice has."""

    encoder: Literal["lmu", "gru", "conv"] = "lmu"
    """Kind of its blocks: Legendre memory units, gated recurrent units or convolutions, of about equal size."""
    subsampling: Annotated[int, Field(ge=1, le=4)] = 2
    """Frames that become one: 1, 2 or 4. Each letter needs one of those that are left."""
    time_masks: Annotated[int, Field(ge=0, le=20)] = 2
    """Stretches of time that SpecAugment hides in each utterance."""
    time_mask_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Longest of them, as a share of the utterance."""
    frequency_masks: Annotated[int, Field(ge=0, le=20)] = 2
    """Stretches of frequency that SpecAugment hides in each utterance."""
    frequency_mask_bands: Annotated[int, Field(ge=1, le=80)] = 15
    """Widest of them, in mel bands."""
    sync_batch_norm: bool = False
    """Normalise by the mean and variance of the batches of all replicas, where the encoder has batch normalisation."""


class TrainingConfig(Section):
    """How the weights are learnt."""

    max_steps: Period = 100_000
    """Optimizer steps after which the run is done; 0 leaves it to epochs."""
    epochs: Period = 0
    """Passes over the corpus after which the run is done; 0 leaves it to max_steps."""
    stop_at_step: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Step at which to stop before that, as a common start of several runs does: at 0 with the first weights."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """Peak learning rate, reached after the warm-up."""
    scale_learning_rate: bool = False
    """Multiply the learning rate by the number of replicas (linear scaling, Goyal et al. 2017)."""
    warmup_steps: Period = 500
    """Steps over which the learning rate rises from 0."""
    final_lr_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Learning rate at the last step, as a share of the peak (cosine decay)."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """Decoupled weight decay of AdamW on kernels (not on biases, norms and embeddings)."""
    gradient_clip: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest global norm of the gradient; 0 does not clip."""
    gradient_accumulation: Count = 1
    """Batches whose gradients are summed into one step."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Number format of the computation; variables stay float32."""
    ema_decay: Share = 0.999
    """Decay of the moving average of the weights, used for validation and whatever the model is for; 0 turns it off."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Source of all randomness: initial weights, order of the utterances, dropout."""
    init_from: str | None = None
    """Folder of a run whose weights this one starts from; new symbols and languages get new rows."""
    freeze: tuple[
        Literal["reference_encoder", "text_encoder", "prosody", "decoder", "subsampling", "encoder", "output"], ...
    ] = ()
    """Parts of the network that keep their weights: of a voice the first four, of a recogniser the others."""
    deterministic: bool = False
    """Use deterministic kernels only (slower; meant for GPUs, the CPU repeats a run without it)."""
    compile: Literal["off", "xla"] = "off"
    """Compile the step with XLA; needs enable_static_shapes."""


class RunConfig(Section):
    """The run folder, and what is written to it when (periods in steps)."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "default"
    """Name of the run: its folder under runs_dir."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    resume: bool = False
    """Continue the run of this name from its newest checkpoint; starts anew where there is none."""
    log_every: Count = 50
    """Steps between two reports."""
    checkpoint_every: Period = 1000
    """Steps between two checkpoints; one is always written at the end."""
    keep_checkpoints: Count = 3
    """Newest checkpoints to keep, beside the best one."""
    validate_every: Period = 1000
    """Steps between two validations."""
    sample_every: Period = 1000
    """Steps between two sets of samples: speech of a voice, texts of a recogniser, and pictures."""


class LocalSGDConfig(Section):
    """The run as one of several jobs that do not talk, but merge their weights every so many steps, by files."""

    sync_every: Period = 0
    """Steps between two merges with the other jobs; 0 is off."""
    sync_dir: str | None = None
    """Folder that all jobs share, on any storage: what they give and take at each merge."""
    jobs: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many jobs there are."""
    job: Annotated[int, Field(ge=0, le=1023)] = 0
    """Which of them this run is."""
    sync_timeout: Annotated[float, Field(gt=0.0, le=86400.0)] = 600.0
    """Longest time in seconds that a merge waits for the others."""
    outer_learning_rate: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Share of the mean change of a round that is taken over; 1 without momentum is plain averaging."""
    outer_momentum: Share = 0.0
    """Nesterov momentum of the mean changes over rounds (DiLoCo, Douillard et al. 2023, has 0.9 with a rate of 0.7)."""
    sync_optimizer: Literal["keep", "average", "reset"] = "average"
    """What becomes of each job's own optimizer at a merge."""


class Config(Section):
    """One run, whole."""

    placement: PlacementConfig = PlacementConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    asr: ASRConfig = ASRConfig()
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    local_sgd: LocalSGDConfig = LocalSGDConfig()
