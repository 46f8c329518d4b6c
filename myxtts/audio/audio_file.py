"""The samples of audio files: PCM of a corpus and of single recordings at one rate.

What `read_header` of `sound_header` and `check_finite` accept can be read by all readers.
"""

import io
import logging
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import WIDE, UnusableAudio, open_audio, open_sound, read_header
from myxtts.base.errors import DataError
from myxtts.base.files import attach_path_to_errors

# Per channel: all channels of a long recording may not fit into memory.
BLOCK_SAMPLES = 65_536
# A megabyte of FLAC may hold days of silence.
MAX_RECORDING_S = 4 * 3600.0
# Margin of a stretch, more than the resampling filter sees: a cut changes no sample near it.
FILTER_S = 1.0
# Longest silence that is skipped at the start of a reference; people leave less.
TRIMMED_S = 30.0
# Stands for the whole file, where a stretch has its first sample.
WHOLE = -1
# Silence at the ends is cut off in pieces of this length, of which the inner ones are kept.
END_SAMPLES = 512
KEPT_ENDS = 2
# A peak below MIN_PEAK was divided twice. A peak above MAX_PEAK was not divided, if more than the
# fraction CLICK of the samples is beyond 1.0.
MIN_PEAK, MAX_PEAK, CLICK = 1e-3, 4.0, 1e-3
# A channel is heard above this fraction of the loudest one's power; every 7th sample tells it.
SILENT_CHANNEL, EVERY = 1e-3, 7
# Levels at which nothing is heard, and below which speech may come later, which is LATE_DB above.
SILENT, QUIET, LATE_DB = 1e-3, 2e-2, 30.0
# More of the samples in flat peaks is heard.
MAX_CLIPPED = 0.005

log = logging.getLogger(__name__)
_said: set[str] = set()


class RecordingKind(NamedTuple):
    """What a recording is for: its role in messages, and what it must have; `check_recording`."""

    role: str
    min_s: float  # shortest length
    advice: str  # at the end of messages
    heard: bool = False  # whether it must have sound


RECORDING = RecordingKind("recording", 0.1, "Give audio files, each with at least 0.1 s of speech.")
REFERENCE = RecordingKind(
    "reference",
    0.5,
    "Give audio files of the speaker with --reference, each with at least 0.5 s of speech.",
    heard=True,
)


def check_finite(path: str) -> None:
    """Read all samples; raise UnusableAudio at a NaN or infinity, or for another scale."""
    peaks: list[float] = []
    samples = beyond = 0
    try:
        with open_audio(path) as file, open_sound(file) as sound:
            for block in sound.blocks(BLOCK_SAMPLES, dtype="float32", always_2d=True):
                peaks.append(float(np.abs(block).max()))
                if not math.isfinite(peaks[-1]):
                    sample = samples + int(np.isfinite(block).all(axis=1).argmin())
                    raise UnusableAudio("not finite", f"sample {sample}")
                samples += len(block)
                if peaks[-1] > 1.0:
                    beyond += int((np.abs(block) > 1.0).any(axis=1).sum())
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error
    if fault := _scale_fault(max(peaks, default=0.0), beyond / max(samples, 1)):
        raise UnusableAudio("another scale", fault)
    if beyond > CLICK * samples:
        _say_once("samples beyond 1.0 are clipped", path)


def _scale_fault(peak: float, beyond: float) -> str | None:
    """Return the fault of a wave with this peak and this fraction of samples beyond 1.0."""
    if 0.0 < peak < MIN_PEAK:
        return f"nearly silent, with a peak of {peak:.1e} of 1.0; was it divided twice?"
    if peak <= MAX_PEAK or beyond <= CLICK:
        return None
    bits = next((bits for bits in (16, 24) if peak <= 2 ** (bits - 1)), 32)
    return f"a peak of {peak:,.1f} of 1.0, as of integers of {bits} bits; divide by their range"


def _say_once(what: str, path: str | Path) -> None:
    """Log what holds of a file, and perhaps of others, of which no more is said."""
    if what not in _said:
        _said.add(what)
        log.warning("%-14s %s: %s (said once)", "audio", path, what)


def resampled_length(samples, rate_hz):
    """Return the resampled length, rounded half up as by soxr; for integers or int64 arrays."""
    return (2 * samples * sample_rate_hz() + rate_hz) // (2 * rate_hz)


def read_pcm(
    path: str | Path,
    samples: int | None = None,
    max_s: float = MAX_RECORDING_S,
    start: int = WHOLE,
    content: bytes | None = None,
) -> np.ndarray:
    """Read a file as mono, int16 [samples]: averaged, resampled by soxr and clipped.

    With `start`, the `samples` from there on are read, as they come out; nothing else of the
    file is decoded but what the resampling filter sees. Raises DataError if the file cannot be
    read, contains a NaN or an infinity there, or does not have the expected length `samples`, from
    which it may differ by one sample after resampling. Nothing after `max_s` is decoded. `content`
    has the bytes of the file, if it was read already.
    """
    mono, rate_hz, skipped = read_sound(path, samples, max_s, start, content)
    if not np.isfinite(mono).all():
        raise DataError(f"{path} contains samples that are not finite")
    if rate_hz != sample_rate_hz() and len(mono):
        mono = soxr.resample(mono, rate_hz, sample_rate_hz())
    pcm = to_pcm(mono)
    if samples is None:
        return pcm
    if start != WHOLE:
        pcm = pcm[skipped : skipped + samples]
    _check_length(path, len(pcm), samples, tolerance=int(rate_hz != sample_rate_hz()))
    return np.pad(pcm[:samples], (0, samples - min(len(pcm), samples)))


def read_sound(
    path: str | Path,
    samples: int | None = None,
    max_s: float = MAX_RECORDING_S,
    start: int = WHOLE,
    content: bytes | None = None,
) -> tuple[np.ndarray, int, int]:
    """Read a file as `read_pcm`, but neither resampled nor checked: float32, and its rate.

    Of a stretch, with what the resampling filter sees; the last value is where it begins after
    resampling.
    """
    first, begin = 0, 0
    try:
        with open_audio(path, content) as file, open_sound(file) as sound:
            rate_hz = sound.samplerate
            end = round(max_s * rate_hz)
            if start != WHOLE:
                assert samples is not None
                margin_s = FILTER_S if rate_hz != sample_rate_hz() else 0.0
                first = max(start - int(margin_s * sample_rate_hz()), 0)
                # The first sample read is one that falls on a sample of the result.
                first -= first % (sample_rate_hz() // math.gcd(rate_hz, sample_rate_hz()))
                begin = first * rate_hz // sample_rate_hz()
                end = math.ceil((start + samples) * rate_hz / sample_rate_hz() + margin_s * rate_hz)
            elif samples is not None:
                # Another length than expected may be more than the memory takes.
                promised = int(resampled_length(sound.frames, rate_hz))
                _check_length(path, promised, samples, tolerance=1)
            end = min(end, sound.frames)
            mono = _mean_of_channels(sound, min(begin, end), end, path)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{path} cannot be read: {error.error_string.rstrip('.')}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    # A stretch is not checked, since a click may fill it.
    if start == WHOLE and sound.subtype in WIDE:
        peak = float(np.abs(mono).max(initial=0.0))
        if peak > MAX_PEAK and (fault := _scale_fault(peak, (np.abs(mono) > 1.0).mean())):
            raise DataError(f"{path} has another scale: {fault}")
    return mono, rate_hz, max(start, 0) - first


# All channels are read once, for their mean and their covariance. Silent channels would halve the
# level, and a channel that is another one inverted would cancel it. If either is found, the stretch
# is read again with the channels that are left.
@np.errstate(invalid="ignore")
def _mean_of_channels(
    sound: soundfile.SoundFile, begin: int, end: int, path: str | Path
) -> np.ndarray:
    """Return the mean of the channels that are heard, or one of them if others cancel it."""
    mono, covariance = _mean_and_covariance(sound, begin, end, slice(None))
    power = covariance.diagonal()
    heard = power > SILENT_CHANNEL * power.max()
    # The sum of n unrelated channels has n times their power.
    if 2 * covariance[heard][:, heard].sum() < heard.sum() * power.max():
        # The first of those that are nearly as loud: the same channel in each stretch.
        heard = np.arange(len(power)) == (power > power.max() / 2).argmax()
    # None is of one channel, and if all are silent, or a sample is not finite.
    if heard.any() and not heard.all():
        _say_once("channels that are silent, or cancel another one, are left out", path)
        mono, _ = _mean_and_covariance(sound, begin, end, heard)
    return mono


def _mean_and_covariance(
    sound: soundfile.SoundFile, begin: int, end: int, channels: np.ndarray | slice
) -> tuple[np.ndarray, np.ndarray]:
    """Read the mean of some channels, float32 [samples], and the covariance of all of several."""
    skipped = 0
    if not sound.seekable():
        skipped = begin
    elif sound.tell() != begin:
        sound.seek(begin)
    frames = end - begin + skipped
    mono, offset = np.empty(frames, np.float32), np.zeros(0)
    read = count = 0
    sums, products = np.zeros(sound.channels), np.zeros((sound.channels, sound.channels))
    for block in sound.blocks(BLOCK_SAMPLES, frames=frames, dtype="float32", always_2d=True):
        mono[read : read + len(block)] = block[:, channels].mean(axis=1)
        read += len(block)
        if sound.channels > 1:
            # As many tell. BLAS is fast, but its float32 sums are exact only without an offset.
            if not len(offset):
                offset = block[0]
            some = block[::EVERY] - offset
            count += len(some)
            sums += np.ones(len(some), np.float32) @ some
            products += some.T @ some
    return mono[skipped:read], products * count - np.outer(sums, sums)


def _check_length(path: str | Path, found: int, expected: int, tolerance: int) -> None:
    if abs(found - expected) > tolerance:
        raise DataError(
            f"{path} has {found} samples at {sample_rate_hz()} Hz, but had {expected} when the"
            " manifest was made"
        )


def to_pcm(wave: np.ndarray) -> np.ndarray:
    """Round a wave in [-1, 1] to 16 bits, int16 [samples]; samples beyond the range are clipped."""
    return np.clip(np.rint(wave * 32768.0), -32768, 32767).astype(np.int16)


def speech_span(wave: np.ndarray, below_db: float) -> tuple[int, int]:
    """Return first sample and end of a wave without the silence at its ends.

    Pieces of END_SAMPLES are silent if they are `below_db` below the loudest one. KEPT_ENDS of them
    stay next to the speech, so a wave that was cut once stays as it is, and so does a silent one.
    """
    pieces = np.pad(wave.astype(np.float64), (0, -len(wave) % END_SAMPLES))
    power = np.square(pieces).reshape(-1, END_SAMPLES).mean(axis=1)
    heard = np.flatnonzero(power > power.max(initial=0.0) * 10.0 ** (-below_db / 10.0))
    if not len(heard):
        return 0, len(wave)
    first = max(int(heard[0]) - KEPT_ENDS, 0) * END_SAMPLES
    return first, min((int(heard[-1]) + 1 + KEPT_ENDS) * END_SAMPLES, len(wave))


def read_wave(
    path: str | Path, samples: int | None = None, max_s: float = MAX_RECORDING_S, start: int = WHOLE
) -> np.ndarray:
    """Read a file as by `read_pcm`, but as float32 [samples] in [-1, 1]."""
    return read_pcm(path, samples, max_s, start).astype(np.float32) / 32768.0


def check_recording(path: Path, kind: RecordingKind) -> None:
    """Check the header of a recording, the scale of its samples, and whether something is heard.

    Raises DataError if it is missing, unreadable, too short or too long, of another scale, or, for
    a kind that must be heard, silent where `read_recording` reads it.
    """
    role, min_s, advice, heard = kind
    try:
        header = read_header(str(path))
        length_s = header.samples / header.rate_hz
        if length_s < min_s:
            raise DataError(f"the {role} {path} has {length_s:.2f} s. {advice}")
        if length_s > MAX_RECORDING_S:
            limit = f"may have {MAX_RECORDING_S / 3600:g} h. Split it."
            raise DataError(f"the {role} {path} has {length_s / 3600:,.1f} h, but {limit}")
        if header.wide:
            check_finite(str(path))
    except UnusableAudio as error:
        fault = str(error).rstrip(".")
        raise DataError(f"the {role} {path} cannot be used: {fault}. {advice}") from error
    if heard:
        _check_heard(path, read_wave(path, max_s=TRIMMED_S), kind)


def _check_heard(path: Path, wave: np.ndarray, kind: RecordingKind) -> None:
    if level(wave) < SILENT:
        role, _, advice, _ = kind
        seconds = len(wave) / sample_rate_hz()
        raise DataError(f"the {role} {path} has no sound in its first {seconds:.1f} s. {advice}")


def level(wave: np.ndarray) -> float:
    """Return the root mean square of the loudest piece of END_SAMPLES, without its mean."""
    pieces = wave[: len(wave) - len(wave) % END_SAMPLES].reshape(-1, END_SAMPLES)
    return float(pieces.std(axis=1).max(initial=0.0))


def read_recording(
    path: Path, kind: RecordingKind, max_samples: int | None = None, trim: float | None = None
) -> np.ndarray:
    """Read the beginning of a recording as float32 [samples] in [-1, 1], by default of 4 h.

    `trim` cuts the silence off its ends, as `speech_span`, up to TRIMMED_S of it; of a kind that
    must be heard, a beginning without speech is cut off as well. Raises DataError as
    `check_recording` does, or if the samples cannot be read.
    """
    role, _, advice, heard = kind
    # Whether it is heard is decided below, on the samples that are read anyway.
    check_recording(path, kind._replace(heard=False))
    most = max_samples or int(MAX_RECORDING_S * sample_rate_hz())

    def beginning(below_db: float | None) -> np.ndarray:
        margin_s = FILTER_S if below_db is None else TRIMMED_S
        try:
            wave = read_wave(path, max_s=most / sample_rate_hz() + margin_s)
        except DataError as error:
            raise DataError(f"{error}. {advice}") from error
        if below_db is not None:
            first, end = speech_span(wave, below_db)
            wave = wave[first:end]
        return wave[:most]

    wave = beginning(trim)
    if not heard:
        return wave
    if level(wave) < QUIET:
        wave = beginning(LATE_DB)
    _check_heard(path, wave, kind)
    if (share := clipped(wave)) > MAX_CLIPPED:
        log.warning("the %s %s is clipped: %.0f %% in flat peaks", role, path, 100 * share)
    return wave


def write_wav(path: Path, wave: np.ndarray) -> None:
    """Write a wave, float32 [samples] in [-1, 1], as 16-bit WAV; an OSError names the file."""
    # soundfile would report any refusal of the disk as "System error".
    content = io.BytesIO()
    soundfile.write(content, wave, sample_rate_hz(), format="WAV", subtype="PCM_16")
    with attach_path_to_errors(path):
        path.write_bytes(content.getvalue())


class BlockwiseFile(soundfile.SoundFile):
    """A sound file that is written in blocks."""

    def write(self, data: np.ndarray) -> None:
        # libvorbis puts a whole write on the stack: one of 97 s crashes a process whose stack has 8
        # MiB.
        for first in range(0, len(data), BLOCK_SAMPLES):
            super().write(data[first : first + BLOCK_SAMPLES])


def clipped(wave: np.ndarray) -> float:
    """Return the fraction of the samples in flat peaks."""
    count = 0
    for half in (wave, -wave):
        is_peak = half > 0.995 * max(half.max(), 1e-4)
        count += (is_peak[2:] & is_peak[1:-1] & is_peak[:-2]).sum()
    return float(count / len(wave))
