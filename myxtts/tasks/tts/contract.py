"""The batches that a voice trains on."""

from myxtts.audio.format import mel_bands
from myxtts.batches.contract import TAUGHT_TTS_INPUTS
from myxtts.devicefeed.contract import Field
from myxtts.tasks.contract import ASR_FEATURES

TTS_FEATURES = ASR_FEATURES | {
    "f0_hz": Field("float32", ("batch", "frames")),  # 0 where unvoiced or padded
    "reference": Field("float32", ("batch", "reference_frames", mel_bands)),  # log-mel
    "reference_frames": Field("int32", ("batch",)),  # without padding
}
TAUGHT_TTS_FEATURES = TTS_FEATURES | {
    **{name: TAUGHT_TTS_INPUTS[name] for name in ("frames", "utterance_tokens")},
    "path": Field("int64", ("batch", "frames")),  # the token of each frame; -1 for padding
}
