"""The batches that a vocoder trains on."""

from myxtts.audio.format import mel_bands
from myxtts.batches.contract import TEXT
from myxtts.devicefeed.contract import Field

# Frames on each side of a segment of VOCODER_FEATURES that a network sees, but is not judged by,
# since they lack neighbours.
CONTEXT_FRAMES = 4
VOCODER_FEATURES = {
    **{name: TEXT[name] for name in ("seed", "step_frames")},
    "mel": Field("float32", ("batch", "segment_frames", mel_bands)),  # silence outside
    "f0_hz": Field("float32", ("batch", "segment_frames")),  # 0 where unvoiced or outside
    "pulse_phasor": Field("float32", ("batch", "segment_frames", 2)),  # 0 where unvoiced
    "wave": Field("float32", ("batch", "segment_samples")),  # in [-1, 1]; 0 outside
    "frames": Field("int32", ("batch",)),  # of the whole utterance that the segment stands for
}
TAUGHT_VOCODER_FEATURES = VOCODER_FEATURES | {"target_mel": VOCODER_FEATURES["mel"]}
