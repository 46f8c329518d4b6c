"""Odd, broken, foreign and very long sound files: read by all readers, or rejected by name."""

import io
import os
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio import audio_file
from myxtts.audio.audio_file import (
    BLOCK_SAMPLES,
    REFERENCE,
    RecordingKind,
    check_recording,
    read_pcm,
    read_recording,
    to_pcm,
)
from myxtts.audio.sound_header import UnusableAudio, read_header
from myxtts.base.errors import DataError
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.extras.inspect.inspection import inspect_corpus
from tests.fixtures import FolderCase

FORMATS = {  # name: (format, subtype, rate in Hz)
    "sound.flac": ("FLAC", "PCM_16", 24_000),
    "vorbis.ogg": ("OGG", "VORBIS", 22_050),
    "opus.ogg": ("OGG", "OPUS", 48_000),
    "sound.mp3": ("MP3", "MPEG_LAYER_III", 22_050),
}


# Counts the samples that are decoded.
READ = mock.patch.object(
    soundfile.SoundFile, "read", autospec=True, side_effect=soundfile.SoundFile.read
)


RATE_HZ = 22_050
VOICE = np.random.default_rng(0).normal(0, 0.1, RATE_HZ).astype(np.float32)
NOTHING = np.zeros_like(VOICE)
PCM = np.rint(VOICE * 32_768).astype("<i2").tobytes()
FORM = struct.pack("<HHIIHH", 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)


def chunk(name: bytes, body: bytes, promised: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if promised is None else promised) + body


def wav(
    promised: int | None = None, pcm: bytes = PCM, riff: int | None = None, after: bytes = b""
) -> bytes:
    """Return a WAV file whose header says these lengths; by default those that it has."""
    body = b"WAVE" + chunk(b"fmt ", FORM) + chunk(b"data", pcm, promised) + after
    return chunk(b"RIFF", body, riff)


def sound(wave: np.ndarray, container: str = "WAV", subtype: str | None = None) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, wave, RATE_HZ, subtype, format=container)
    return content.getvalue()


def channels(*waves: np.ndarray) -> bytes:
    return sound(np.stack(waves, axis=1))


def without_length(mp3: bytes) -> bytes:
    """Return an MP3 file without its first frame."""
    return mp3[mp3.index(mp3[:2], 4) :]


MP3, FLAC, OGG = (sound(VOICE, name) for name in ("MP3", "FLAC", "OGG"))
CLICK = np.where(np.arange(RATE_HZ) == 9_000, 1.5, VOICE)
READABLE = {  # name: content, which is heard as VOICE
    **{f"{size:x}": wav(size) for size in (0x7FFFFFFF, 0x7FFFF000, 2 * 10**9, 0x80000000)},
    **{f"{size:x}": wav(size, riff=size) for size in (0xFFFFFFFE, 0xFFFFFFFF, 0x7FFFFFFE)},
    "not closed": wav(0, riff=0),
    "not closed, RIFF was": wav(0),
    "one byte short": wav(len(PCM) + 1),
    "as long as RIFF": wav(len(PCM) + 36),
    "as long as the file": wav(len(PCM) + 44),
    "RIFF of nothing": wav(riff=0),
    "LIST": wav(after=chunk(b"LIST", b"abcd")),
    "unknown chunk": wav(after=chunk(b"abcd", b"abcd")),
    "au of -1": b".snd"
    + struct.pack(">5I", 24, 2**32 - 1, 3, RATE_HZ, 1)
    + sound(VOICE, "AU")[24:],
    "telephone": sound(VOICE, subtype="GSM610"),
    "g721": sound(VOICE, "AU", "G721_32"),
    "opposite": channels(VOICE, -VOICE),
    "opposite, softer": channels(VOICE, -0.5 * VOICE),
    "one of two": channels(NOTHING, VOICE),
    "one of six": channels(*[NOTHING] * 4, VOICE, NOTHING),
    "beside a constant": channels(VOICE, NOTHING + 0.3),
    "of opposite constants": channels(VOICE + 0.5, 0.3 - VOICE),
    "click": sound(CLICK, subtype="FLOAT"),
    "tagged": b"ID3\3\0\0\0\0\10\0" + bytes(1_024) + MP3 + b"TAG" + bytes(125),
}
REJECTED = {  # name: content, and reason
    "cut": (wav()[:-1_000], "truncated"),
    "cut gsm": (sound(VOICE, subtype="GSM610")[:-1_000], "truncated"),
    "cut aiff": (sound(VOICE, "AIFF")[:-1_000], "truncated"),
    "cut au": (sound(VOICE, "AU")[:-1_000], "truncated"),
    "cut w64": (sound(VOICE, "W64")[:-1_000], "truncated"),
    "cut rf64": (sound(VOICE, "RF64")[:-1_000], "truncated"),
    "cut ogg": (OGG[: len(OGG) // 2], "truncated"),
    "cut mp3": (MP3[: len(MP3) // 2], "truncated"),
    "au of 0": (sound(VOICE, "AU").replace(len(PCM).to_bytes(4, "big"), bytes(4)), "unreadable"),
    "no length": (without_length(MP3), "unreadable"),
    "two wav": (wav() * 2, "joined"),
    "two of odd length": (sound(VOICE[1:], subtype="PCM_U8")[:-1] * 2, "joined"),
    "two streams": (wav(0xFFFFFFFF) * 2, "joined"),
    "two data": (wav(after=chunk(b"data", PCM)), "joined"),
    "two mp3": (MP3 * 2, "joined"),
    "mp3 and another": (MP3 + without_length(MP3), "joined"),
    "two ogg": (OGG * 2, "joined"),
    "two flac": (FLAC * 2, "joined"),
    "two aiff": (sound(VOICE, "AIFF") * 2, "joined"),
    "two au": (sound(VOICE, "AU") * 2, "joined"),
    "not WAVE": (wav().replace(b"WAVE", b"WAVX"), "unreadable"),
    "RIFX": (wav() + chunk(b"RIFX", bytes(8)), "unreadable"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "unreadable"),
    "16 bits": (sound(32_767 * VOICE, subtype="FLOAT"), "another scale"),
    "24 bits": (sound(2.0**23 * VOICE, subtype="DOUBLE"), "another scale"),
    "far too loud": (sound(20 * VOICE, subtype="FLOAT"), "another scale"),
    "divided twice": (sound(VOICE / 32_768, subtype="FLOAT"), "another scale"),
    "16 bits of 32": (sound((32_767 * VOICE).astype(np.int32), subtype="PCM_32"), "another scale"),
}


def compressed(name: str) -> bytes:
    """Return 0.7 s of noise."""
    container, subtype, rate_hz = FORMATS[name]
    wave = np.random.default_rng(0).normal(0, 0.1, (round(0.7 * rate_hz), 1))
    content = io.BytesIO()
    soundfile.write(content, wave, rate_hz, format=container, subtype=subtype)
    data = content.getvalue()
    # The serial number that libsndfile writes is random.
    return with_checksums(data) if container == "OGG" else data


def with_checksums(data: bytes) -> bytes:
    """Return OGG pages with the serial number 1 and right checksums."""
    changed, at = bytearray(data), 0
    while changed[at : at + 4] == b"OggS":
        segments = changed[at + 26]
        end = at + 27 + segments + sum(changed[at + 27 : at + 27 + segments])
        changed[at + 14 : at + 18] = struct.pack("<I", 1)
        changed[at + 22 : at + 26] = bytes(4)
        changed[at + 22 : at + 26] = struct.pack("<I", _ogg_checksum(changed[at:end]))
        at = end
    return bytes(changed)


def _ogg_checksum(page: bytes) -> int:
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = value << 1 ^ (0x104C11DB7 if value & 0x80000000 else 0)
    return value


class OddFiles(FolderCase):
    def setUp(self):
        super().setUp()
        # ffmpeg reads an MP3 file without a length.
        self.enterContext(mock.patch("shutil.which", return_value=None))

    def corpus(self) -> dict[str, str]:
        """Write all files and their metadata; return the reason of those to be rejected."""
        contents = {name: content for name, (content, _) in REJECTED.items()} | READABLE
        for name, content in contents.items():
            self.write(f"wavs/{name}.wav", content)
        self.write("metadata.csv", "".join(f"{name}|{name}\n" for name in contents))
        return {f"{name}.wav": reason for name, (_, reason) in REJECTED.items()}

    def test_a_file_is_read_by_all_readers_or_rejected_by_name(self):
        expected = self.corpus()
        data = DataConfig(train_data=str(self.folder), text_frontend="characters")
        rows = read_corpus(self.folder / "metadata.csv", "en")
        manifest, _, rejected = build_manifest(rows, data, LengthRule())
        self.assertEqual({row.audio: row.reason for row in rejected}, expected)
        with (
            mock.patch.object(audio_file, "_said", set()),
            self.assertLogs("myxtts.audio.audio_file") as said,
        ):
            for row, path in enumerate(manifest.paths):
                with self.subTest(Path(path).name):
                    pcm = read_pcm(path, int(manifest.samples[row]))
                    self.assertAlmostEqual(len(pcm), RATE_HZ, delta=700)
                    self.assertAlmostEqual(pcm.std() / 32_768, 0.1, delta=0.015)
                    stretch = read_pcm(path, 5_000, start=9_000)
                    np.testing.assert_allclose(stretch, pcm[9_000:14_000], atol=2_000)
        self.assertEqual(len(said.output), 1)
        self.assertIn("opposite.wav: channels that are silent, or cancel", said.output[0])
        inspection = inspect_corpus(data)
        self.assertEqual({row.audio: row.reason for row in inspection.rejected}, expected)
        self.assertEqual([clip.path for clip in inspection.clips], [*manifest.paths])

    def test_references_are_read_or_rejected_with_the_reason(self):
        self.corpus()
        for name in READABLE:
            with self.subTest(name):
                path = self.folder / "wavs" / f"{name}.wav"
                check_recording(path, REFERENCE)
                self.assertAlmostEqual(read_recording(path, REFERENCE).std(), 0.1, delta=0.015)
        for name, (_, reason) in REJECTED.items():
            with self.subTest(name), self.assertRaisesRegex(DataError, f"{reason}.* --reference"):
                check_recording(self.folder / "wavs" / f"{name}.wav", REFERENCE)

    def test_a_reference_is_what_is_heard_of_a_recording(self):
        pause = [NOTHING] * 6
        hiss = [VOICE[::-1] / 20] * 6
        for name, waves, expected in (
            ("silent", [NOTHING], "no sound in its first .*"),
            ("constant", [NOTHING + 0.3], "no sound in its first .*"),
            ("too late", pause * 7 + [VOICE], "no sound in its first .*"),
            ("late", [*pause, VOICE], VOICE),
            ("late in noise", [*hiss, 5 * VOICE], 5 * VOICE),
            ("soft", [VOICE / 50], VOICE / 50),
        ):
            path = self.write(name, sound(np.concatenate(waves)))
            for trim in (None, 60.0):
                with self.subTest(name, trim=trim):
                    if isinstance(expected, str):
                        with self.assertRaisesRegex(DataError, f"{name} has {expected}. Give"):
                            read_recording(path, REFERENCE, RATE_HZ // 2, trim)
                        with self.assertRaisesRegex(DataError, f"{name} has {expected}. Give"):
                            check_recording(path, REFERENCE)
                    else:
                        found = read_recording(path, REFERENCE, RATE_HZ // 2, trim)
                        level = np.clip(expected, -1, 1).std()
                        self.assertAlmostEqual(found.std() / level, 1.0, delta=0.1)

    def test_a_clipped_reference_is_named(self):
        path = self.write("a.wav", sound(np.clip(50 * VOICE, -1, 1)))
        with self.assertLogs("myxtts.audio.audio_file") as said:
            read_recording(path, REFERENCE)
        self.assertIn("a.wav is clipped: ", said.output[0])


class BrokenFiles(FolderCase):
    def sound(self, name: str, seconds: float, rate_hz: int) -> Path:
        wave = np.random.default_rng(0).normal(0, 0.1, round(seconds * rate_hz))
        soundfile.write(self.folder / name, wave, rate_hz, subtype="PCM_16")
        return self.folder / name

    def test_a_promised_length_that_is_another_takes_no_memory(self):
        path = self.sound("a.flac", 0.5, 22_050)
        data = bytearray(path.read_bytes())
        data[21] |= 0x0F  # the length has 36 bits in STREAMINFO
        data[22:26] = b"\xff" * 4
        path.write_bytes(data)
        message = "has 68719476735 samples at 22050 Hz, but had 11025"
        with self.assertRaisesRegex(DataError, message):
            read_pcm(path, 11_025)

    def rejected(self, path: Path) -> str:
        with self.assertRaises(UnusableAudio) as caught:
            read_header(str(path))
        return str(caught.exception)

    def test_an_mp3_file_that_is_positioned_elsewhere_is_rejected(self):
        data = bytearray(compressed("sound.mp3"))
        data[3331:3334] = b"\xed\x49\xde"  # a frame becomes one of another layer and rate
        self.assertIn("truncated", self.rejected(self.write("a.mp3", bytes(data))))

    def test_a_vorbis_file_with_damaged_codebooks_does_not_end_the_process(self):
        data = bytearray(compressed("vorbis.ogg"))
        data[data.index(b"\x05vorbis") + 100] ^= 0xFF
        path = self.write("a.ogg", with_checksums(bytes(data)))
        self.assertIn("truncated", self.rejected(path))

    def test_names_that_are_not_utf8_reach_libsndfile(self):
        name = os.fsdecode(b"\xff.flac")
        samples = read_header(str(self.write(name, compressed("sound.flac")))).samples
        self.assertEqual(samples, 16_800)

    def test_infinite_floats_are_rejected(self):
        path = self.folder / "a.wav"
        soundfile.write(path, np.full(100, 1e300), 16_000, subtype="DOUBLE")
        with self.assertRaisesRegex(DataError, "not finite"):
            check_recording(path, RecordingKind("recording", 0.001, ""))

    def test_of_a_reference_only_the_beginning_is_decoded(self):
        path = self.sound("a.flac", 4.0, 16_000)
        whole = read_recording(path, REFERENCE)
        with READ as read:
            beginning = read_recording(path, REFERENCE, 22_050)
        np.testing.assert_array_equal(beginning, whole[:22_050])
        actual = sum(call.args[1] for call in read.call_args_list if call.args[1] > 1)
        self.assertEqual(actual, 2 * 16_000)

    def test_a_recording_of_days_is_rejected_by_its_header(self):
        path = self.sound("a.wav", 1.5, 22_050)
        soundfile.write(path, np.zeros(33_000), 22_050, subtype="FLOAT")
        with (
            mock.patch.object(audio_file, "MAX_RECORDING_S", 1.0),
            mock.patch.object(audio_file, "check_finite") as check_finite,
        ):
            for read in (check_recording, read_recording):
                with self.assertRaisesRegex(DataError, "Split it"):
                    read(path, RecordingKind("recording", 0.1, ""))
        check_finite.assert_not_called()

    def test_only_a_block_of_all_channels_is_in_memory(self):
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, (70_000, 6)).astype(np.float32)
        path = self.folder / "a.wav"
        soundfile.write(path, wave, 22_050, subtype="FLOAT")
        with READ as read:
            samples = read_pcm(path)
        np.testing.assert_array_equal(samples, to_pcm(wave.mean(axis=1)))
        self.assertLessEqual(max(call.args[1] for call in read.call_args_list), BLOCK_SAMPLES)
        wave[69_999, 5] = np.inf
        soundfile.write(path, wave, 22_050, subtype="FLOAT")
        with self.assertRaisesRegex(DataError, "not finite"):
            read_pcm(path)
