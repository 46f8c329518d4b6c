"""The settings and models that sections run with: the demo corpus on the GPUs of the scope."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from benchmarks.proof.section import Scope
from myxtts.config.schema import (
    ASRConfig,
    AugmentationConfig,
    Config,
    DataConfig,
    ModelConfig,
    PlacementConfig,
    RunConfig,
    TrainingConfig,
    VocoderConfig,
)
from myxtts.devicefeed.routes import Placement
from myxtts.run.setup import configure_devices
from myxtts.tasks.asr import network as asr
from myxtts.tasks.tts import network as xtts
from myxtts.tasks.vocoder import network as vocoder

SMALL_BATCH, SMALL_BUCKETS = 4, 2


def placement_config(scope: Scope) -> PlacementConfig:
    """Return the settings of dual placement on the first two GPUs, or of single placement."""
    simulated = scope.gpus if scope.simulated else 0
    return PlacementConfig(simulate_gpus=simulated, data_gpu=0, model_gpu=min(1, scope.gpus - 1))


def configure(scope: Scope) -> Placement:
    """Configure the GPUs of `placement_config`, without soft placement."""
    return configure_devices(Config(placement=placement_config(scope)))


def config_of(
    scope: Scope, task: str = "tts", size: str = "tiny", **changes: dict[str, Any]
) -> Config:
    """Return the settings of a run on the demo corpus, without validation and samples.

    Args:
        changes: of single settings by section, such as training={"precision": "mixed_bfloat16"}.
    """
    data: dict[str, Any] = {"train_data": str(scope.corpus / "corpus.csv")}
    if scope.small:
        data |= {"batch_size": SMALL_BATCH, "buckets": SMALL_BUCKETS, "text_frontend": "characters"}
    never = dict.fromkeys(("validate_every", "sample_every", "checkpoint_every"), 0)
    run = {"runs_dir": str(scope.out / "runs")} | never
    return Config(
        placement=changes.get("placement") or placement_config(scope),
        data=DataConfig(**data | changes.get("data", {})),
        model=ModelConfig(**{"task": task, "model_size": size} | changes.get("model", {})),
        asr=ASRConfig(**changes.get("asr", {})),
        vocoder=VocoderConfig(**changes.get("vocoder", {})),
        augmentation=AugmentationConfig(**changes.get("augmentation", {})),
        training=TrainingConfig(**changes.get("training", {})),
        run=RunConfig(**run | changes.get("run", {})),
    )


@contextmanager
def models(scope: Scope) -> Iterator[None]:
    """Make all model sizes the smallest ones inside the context if the scope is small."""
    if not scope.small:
        yield
        return
    none = dict.fromkeys(("encoder_blocks", "decoder_blocks"), 0)
    with sized(
        replace(xtts.SIZES["tiny"], channels=16, flow_blocks=1, latents=2, **none),
        asr.ASRSize(channels=16, blocks=1, memory=4, order=4),
        vocoder.VocoderSize(channels=8, blocks=1, pitch_channels=8, pitch_blocks=1),
    ):
        yield


@contextmanager
def sized(*smallest: xtts.XTTSSize | asr.ASRSize | vocoder.VocoderSize) -> Iterator[None]:
    """Make all sizes of voices, recognisers and vocoders these inside the context."""
    all_sizes: tuple[dict[str, Any], ...] = xtts.SIZES, asr.SIZES, vocoder.SIZES
    with ExitStack() as patches:
        for sizes, size in zip(all_sizes, smallest, strict=True):
            patches.enter_context(mock.patch.dict(sizes, dict.fromkeys(sizes, size)))
        yield
