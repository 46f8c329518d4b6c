"""What can be measured of one recording without its text: level, noise, bandwidth, clipping, echo.

Waves are float32 [samples] in [-1, 1] at their own sample rate. Needs NumPy alone.
"""

from typing import NamedTuple

import numpy as np

from myxtts.audio.audio_file import clipped
from myxtts.audio.k_weighting import loudness

FRAME_S, HOP_S = 0.032, 0.010
# Long windows tell hum and notes from a voice, which does not keep its pitch for NOTE_S.
LONG_S, LONG_HOP_S, NOTE_S, CHORD = 0.200, 0.050, 0.250, 2
NOTE_HZ = 100.0, 4_000.0
NOTE_DB, NOTE_RANGE_DB, HUM_RANGE_DB = 6.0, 50.0, 60.0
# A short clip may be one word, whose vowel is held for a third of it.
MIN_MUSIC_S = 3.0
# Frequencies below are left out: wind, steps, and an offset of the samples.
LOWEST_HZ = 62.5
# Frames within 25 dB of the 95th percentile are speech. At the ends, sound is heard down to 40 dB
# below it; the level of the very end is measured over 15 ms.
ACTIVE_DB, END_DB, END_S = 25.0, 40.0, 0.015
FLOOR = 1e-13  # power of -130 dB
BANDWIDTH_DB = 65.0
MAINS_HZ, HUM_PERCENTILE = (50.0, 60.0), 10
DECAY_S, DECAY_HZ = 0.1, (500.0, 4_000.0)
ECHO_S, ECHO_HZ = (0.05, 0.5), (100.0, 4_000.0)
F0_HZ, F0_FRAME_S, F0_HOP_S, MIN_VOICED = (60.0, 400.0), 0.05, 0.02, 5
VOICING, LOUD = 0.7, 0.3
BANDS_HZ = 100.0, 7_000.0
SHAPE_BANDS, SHAPE_SLICES = 12, 16
VOICE_BANDS, CEPSTRA = 20, 12
MIN_S = 0.2


class Quality(NamedTuple):
    """Measures of one recording.

    Attributes:
        bandwidth_hz: highest frequency that comes within BANDWIDTH_DB of the strongest.
        loudness: in LUFS, by ITU-R BS.1770; -inf of silence.
        peak: largest absolute sample.
        clipped: fraction of the samples inside of flat peaks, of three samples or more.
        leading_s, trailing_s: what is END_DB below the speech, or noise, before and after it.
        end_db: level of the last END_S, relative to the speech.
        snr_db: level of the speech over the 5th percentile of all levels.
        hum_db: steady lines at the mains frequency and its double, over what is beside them.
        notes: mean number of notes, of at least NOTE_S, that sound in chords of CHORD and more; a
            clip is taken to last MIN_MUSIC_S at least.
        echo: strongest repetition of the whole after 50 to 500 ms, over the median of all lags.
        decay_db: fall within 100 ms that one in twenty exceeds; reverberation limits it.
        f0_hz: median, 0 without voice.
        shape: float32 [SHAPE_BANDS * SHAPE_SLICES] of unit length, the same in copies.
        voice: float32 [3, 1 + CEPSTRA], F0 in semitones and cepstra of the mean spectrum, of the
            recording and of its halves; NaN without voice.
    """

    seconds: float
    rate_hz: int
    bandwidth_hz: float
    loudness: float
    peak: float
    clipped: float
    leading_s: float
    trailing_s: float
    end_db: float
    snr_db: float
    hum_db: float
    notes: float
    echo: float
    decay_db: float
    f0_hz: float
    shape: np.ndarray
    voice: np.ndarray


# One spectrogram of short windows gives level, noise, bandwidth, decay, shape and timbre. One of
# long windows gives hum and notes, which a voice cannot hold for so long. Pitch, echo, loudness and
# clipping are measured on the wave.
def measure(wave: np.ndarray, rate_hz: int) -> Quality:
    """Measure a recording; one of less than MIN_S is padded with silence."""
    wave = np.pad(wave, (0, max(round(MIN_S * rate_hz) - len(wave), 0)))
    power = spectrogram(wave, rate_hz, FRAME_S, HOP_S)
    power[:, : round(LOWEST_HZ * FRAME_S)] = 0.0
    level = decibel(power.sum(axis=1))
    active = np.flatnonzero(level > np.percentile(level, 95) - ACTIVE_DB)
    speech_db = float(decibel(power[active].sum(axis=1).mean()))
    noise_db = float(np.percentile(level, 5))
    audible_db = max(speech_db - END_DB, min(noise_db + 6.0, speech_db - 20.0))
    audible = np.flatnonzero(level >= min(audible_db, float(level.max())))
    first, last = int(audible[0]), int(audible[-1])
    pitch = f0(wave, rate_hz)
    long_level = decibel(spectrogram(wave, rate_hz, LONG_S, LONG_HOP_S))
    return Quality(
        seconds=len(wave) / rate_hz,
        rate_hz=rate_hz,
        bandwidth_hz=bandwidth(power[active], rate_hz),
        loudness=loudness(wave, rate_hz),
        peak=float(np.abs(wave).max()),
        clipped=clipped(wave),
        leading_s=first * HOP_S,
        trailing_s=(len(level) - 1 - last) * HOP_S,
        end_db=end_level(wave, rate_hz) - speech_db,
        snr_db=speech_db - noise_db,
        hum_db=hum(long_level),
        notes=notes(long_level),
        echo=echo(wave, rate_hz),
        decay_db=decay(power, rate_hz),
        f0_hz=median_f0(pitch, 0.0),
        shape=shape(power[first : last + 1], rate_hz),
        voice=voice(power[active], active, pitch, rate_hz),
    )


def spectrogram(wave: np.ndarray, rate_hz: int, window_s: float, hop_s: float) -> np.ndarray:
    """Return the power in each bin, whose sum is the mean square: float32 [frames, bins]."""
    size, hop = round(window_s * rate_hz), round(hop_s * rate_hz)
    wave = np.pad(wave, (0, max(size - len(wave), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[::hop]
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    spectrum = np.fft.rfft(frames * window)
    return 2 * (spectrum.real**2 + spectrum.imag**2) / (size * np.square(window).sum())


def decibel(power: np.ndarray) -> np.ndarray:
    return 10 * np.log10(np.maximum(power, FLOOR))


def bandwidth(power: np.ndarray, rate_hz: int) -> float:
    """Return the bandwidth in Hz of power [frames, bins], smoothed, that is reached at times."""
    peaks = np.convolve(np.percentile(power, 97, axis=0), np.ones(5) / 5, "same")
    reached = np.flatnonzero(peaks > peaks.max() * 10 ** (-BANDWIDTH_DB / 10))
    return float(reached[-1] + 1 if len(reached) else 0) * rate_hz / 2 / len(peaks)


def end_level(wave: np.ndarray, rate_hz: int) -> float:
    """Return the level of the last END_S in dB, without an offset or slope of the samples."""
    end = wave[-round(END_S * rate_hz) :].astype(np.float64)
    place = np.arange(len(end))
    end -= np.polyval(np.polyfit(place, end, 1), place)
    return float(decibel(np.square(end).mean()))


def hum(level: np.ndarray) -> float:
    """Return how far lines at the mains frequency and its double stand out of a spectrum, in dB.

    Hum never pauses, so the spectrum is what each bin of levels in dB [frames, 1 / LONG_S]
    exceeds nine times in ten. A line, with the main lobe of the window, takes five bins.
    """
    loudest = level.max(axis=1)
    spectrum = np.percentile(level[loudest > loudest.max() - HUM_RANGE_DB], HUM_PERCENTILE, axis=0)
    lines = np.rint(np.outer(MAINS_HZ, (1, 2)) * LONG_S).astype(int)
    sides = spectrum[lines[..., None] + (-4, -3, 3, 4)].max(axis=-1)
    return float((spectrum[lines] - sides).mean(axis=1).max())


def notes(level: np.ndarray) -> float:
    """Return the number of notes in chords, from levels in dB [frames, 1 / LONG_S]: see `Quality`.

    As Seyerlehner et al. 2007 ("Automatic Music Detection in Television Productions") find music
    under speech by frequencies that stay active. A held sound of speech has one, at most times.
    """
    low, high = (round(hz * LONG_S) for hz in NOTE_HZ)
    level = level[:, low:high]
    level = np.maximum(level, level.max() - NOTE_RANGE_DB)
    middle = level[:, 4:-4]
    is_peak = (middle > level[:, 3:-5]) & (middle > level[:, 5:-3])
    is_peak &= middle > np.maximum(level[:, :-8], level[:, 8:]) + NOTE_DB
    frames = round((NOTE_S - LONG_HOP_S) / LONG_HOP_S)
    sums = np.cumsum(np.pad(is_peak, ((1, 0), (0, 0))), axis=0)
    count: np.ndarray = (sums[frames:] - sums[:-frames] == frames).sum(axis=1)
    return float(count[count >= CHORD].sum() / max(len(level), MIN_MUSIC_S / LONG_HOP_S))


def echo(wave: np.ndarray, rate_hz: int) -> float:
    """Return the largest value of the cepstrum of a whole recording at lags of ECHO_S, in medians.

    A repetition is a ripple of the log spectrum (Bogert et al. 1963); speech has none that lasts.
    """
    size = 2 ** int(np.ceil(np.log2(len(wave) + rate_hz)))
    low, high = (int(min(hz, rate_hz / 2) * size / rate_hz) for hz in ECHO_HZ)
    log_power = np.log(np.abs(np.fft.rfft(wave, size)[low:high]) ** 2 + FLOOR)
    ripple = np.abs(np.fft.rfft((log_power - log_power.mean()) * np.hanning(high - low)))
    lag_s = np.arange(len(ripple)) * size / rate_hz / (high - low)
    span = ripple[(lag_s > ECHO_S[0]) & (lag_s < min(ECHO_S[1], len(wave) / rate_hz / 2))]
    return float(span.max() / max(np.median(span), FLOOR))


def decay(power: np.ndarray, rate_hz: int) -> float:
    low, high = (int(hz / (rate_hz / 2) * power.shape[1]) for hz in DECAY_HZ)
    level = decibel(power[:, low:high].sum(axis=1))
    frames = round(DECAY_S / HOP_S)
    return float(np.percentile(level[:-frames] - level[frames:], 95))


# The autocorrelation of each frame, without the window's own, peaks at the period. Frames with a
# weak peak, or much below the loud ones, are unvoiced.
def f0(wave: np.ndarray, rate_hz: int) -> np.ndarray:
    """Return F0 in Hz every F0_HOP_S by autocorrelation, float [frames]; NaN without voice.

    The autocorrelation is divided by the window's own (Boersma 1993).
    """
    size, hop = round(F0_FRAME_S * rate_hz), round(F0_HOP_S * rate_hz)
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[::hop]
    frames = frames - frames.mean(axis=1, keepdims=True)
    window = np.hanning(size)
    spectra = [np.abs(np.fft.rfft(x, 2 * size)) ** 2 for x in (frames * window, window)]
    of_frames, of_window = (np.fft.irfft(spectrum)[..., :size] for spectrum in spectra)
    of_frames /= np.maximum(of_window / of_window[0], 0.05)
    low, high = (int(rate_hz / hz) for hz in F0_HZ[::-1])
    lag = of_frames[:, low:high].argmax(axis=1) + low
    strength = of_frames[np.arange(len(lag)), lag] / np.maximum(of_frames[:, 0], FLOOR)
    loud = frames.std(axis=1)
    is_voiced = (strength > VOICING) & (loud > LOUD * np.percentile(loud, 90))
    return np.where(is_voiced, rate_hz / lag, np.nan)


def median_f0(pitch: np.ndarray, unvoiced: float = np.nan) -> float:
    voiced = pitch[~np.isnan(pitch)]
    if len(voiced) < MIN_VOICED:
        return unvoiced
    return float(np.median(voiced))


def bands(power: np.ndarray, rate_hz: int, count: int) -> np.ndarray:
    """Return the power in dB in logarithmic bands of BANDS_HZ: [frames, count]."""
    top_hz = min(BANDS_HZ[1], rate_hz / 2)
    edges = np.geomspace(BANDS_HZ[0], top_hz, count + 1) / (rate_hz / 2) * (power.shape[1] - 1)
    places = np.maximum(edges.round().astype(int), np.arange(count + 1))
    places = np.minimum(places, power.shape[1] - 1)
    return decibel(np.add.reduceat(power, places, axis=1)[:, :-1])


def shape(power: np.ndarray, rate_hz: int) -> np.ndarray:
    """Return what two copies of a recording share, whatever their level: see `Quality`."""
    level = bands(power, rate_hz, SHAPE_BANDS)
    places = np.linspace(0, len(level), SHAPE_SLICES, endpoint=False).astype(int)
    counts = np.maximum(np.diff(places, append=len(level)), 1)
    values = (np.add.reduceat(level, places, axis=0) / counts[:, None]).ravel()
    values -= values.mean()
    return (values / max(float(np.linalg.norm(values)), FLOOR)).astype(np.float32)


def voice(power: np.ndarray, active: np.ndarray, pitch: np.ndarray, rate_hz: int) -> np.ndarray:
    """Return F0 and timbre of the active frames, and of their halves: see `Quality`."""
    level = bands(power, rate_hz, VOICE_BANDS)
    middle = (np.arange(VOICE_BANDS) + 0.5) * np.pi / VOICE_BANDS
    cosines = np.cos(np.arange(1, CEPSTRA + 1)[:, None] * middle)
    cepstra = level @ cosines.T / VOICE_BANDS
    half, turn = len(active) // 2, round(active[len(active) // 2] * HOP_S / F0_HOP_S)
    values = []
    parts = (cepstra, pitch), (cepstra[:half], pitch[:turn]), (cepstra[half:], pitch[turn:])
    for frames, f0_hz in parts:
        semitones = 12 * np.log2(median_f0(f0_hz) / 100)
        timbre = frames.mean(axis=0) if len(frames) else np.full(CEPSTRA, np.nan)
        values.append([semitones, *timbre])
    return np.array(values, np.float32)
