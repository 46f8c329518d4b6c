"""Broken, foreign and very long sound files: rejected by name, and never read or decoded whole."""

import io
import os
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.data import audio_file
from myxtts.data.audio_file import (
    BLOCK_SAMPLES,
    REFERENCE,
    UnusableAudio,
    check_recording,
    read_header,
    read_pcm,
    read_recording,
    to_pcm,
)
from myxtts.errors import DataError
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
            check_recording(path, "recording", 0.001, "")

    def test_of_a_reference_only_the_beginning_is_decoded(self):
        path = self.sound("a.flac", 4.0, 16_000)
        whole = read_recording(path, *REFERENCE)
        with READ as read:
            beginning = read_recording(path, *REFERENCE, 22_050)
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
                    read(path, "recording", 0.1, "")
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
