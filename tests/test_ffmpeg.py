"""Files that libsndfile cannot read are decoded by ffmpeg, once."""

import os
import shutil
import subprocess
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.audio_file import RECORDING, check_recording, read_pcm
from myxtts.audio.ffmpeg import FFMPEG_SUFFIXES
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.sound_header import UnusableAudio, read_header
from myxtts.base.errors import DataError
from tests.fixtures import FolderCase

# File: rate, and what ffmpeg is asked to encode.
ENCODED = {
    # What speech services and `ffmpeg -f mp3 -` stream: no header says how long they are.
    "streamed.mp3": (44_100, ("-write_xing", "0", "-ar", "44100", "-b:a", "64k")),
    "untagged.mp3": (22_050, ("-write_xing", "0", "-id3v2_version", "0")),
    "a.g722": (16_000, ("-ar", "16000")),
    "opus.mp4": (48_000, ("-c:a", "libopus", "-ar", "48000")),
    "a.M4A": (44_100, ("-c:a", "aac", "-ar", "44100", "-f", "ipod")),
    "-film.mkv": (22_050, ("-c:a", "flac")),
}


@unittest.skipUnless(shutil.which("ffmpeg"), "ffmpeg is not installed")
class Decoded(FolderCase):
    def setUp(self):
        super().setUp()
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        self.enterContext(mock.patch.dict(os.environ, cache))
        self.wave = np.sin(np.arange(SAMPLE_RATE_HZ) * 0.1) * 0.5
        soundfile.write(self.folder / "a.wav", self.wave, SAMPLE_RATE_HZ)
        self.pcm = read_pcm(self.folder / "a.wav")

    def encoded(self, name: str) -> Path:
        command = "ffmpeg", "-y", "-v", "error", "-i", "a.wav", *ENCODED[name][1], f"file:{name}"
        subprocess.run(command, cwd=self.folder, check=True)
        return self.folder / name

    def cached(self) -> list[Path]:
        return sorted((self.folder / "cache").rglob("*.*"))

    def test_each_format_is_decoded_once(self):
        for name, (rate_hz, _) in ENCODED.items():
            with self.subTest(name):
                path = self.encoded(name)
                before = len(self.cached())
                header = read_header(str(path))
                self.assertEqual((header.rate_hz, header.native), (rate_hz, False))
                pcm = read_pcm(path)
                # The tone is there, whatever the delay of the codec.
                level = np.std(pcm[4_000:18_000]) / np.std(self.pcm)
                self.assertAlmostEqual(level, 1.0, delta=0.06)
                self.assertEqual(np.abs(np.fft.rfft(pcm[4_000:18_000])).argmax(), 223)
                with mock.patch("subprocess.run") as run:
                    np.testing.assert_array_equal(read_pcm(path), pcm)
                run.assert_not_called()
                self.assertEqual(len(self.cached()), before + 1)
        np.testing.assert_array_equal(pcm, self.pcm)

    def test_a_file_that_changes_is_decoded_again(self):
        path = self.encoded("-film.mkv")
        read_header(str(path))
        soundfile.write(self.folder / "a.wav", self.wave[:11_025], SAMPLE_RATE_HZ)
        self.encoded("-film.mkv")
        self.assertEqual(read_header(str(path)).samples, 11_025)

    def test_what_cannot_be_decoded_says_why(self):
        path = self.write("a.m4a", b"\0" * 100)
        with self.assertRaisesRegex(UnusableAudio, "unreadable: ffmpeg cannot decode it: ."):
            read_header(str(path))
        self.assertEqual(self.cached(), [])
        path = self.encoded("a.M4A")
        (self.folder / "full").write_text("")
        with (
            mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.folder / "full")}),
            self.assertRaisesRegex(UnusableAudio, "Not a directory. Free .* XDG_CACHE_HOME"),
        ):
            read_header(str(path))


class Missing(FolderCase):
    def test_without_ffmpeg_the_message_says_what_to_do(self):
        advice = "is read by ffmpeg, which is not installed. Install it, or convert"
        for suffix in FFMPEG_SUFFIXES:
            path = self.write(f"a{suffix}", b"x")
            with mock.patch("shutil.which", return_value=None):
                with self.assertRaisesRegex(UnusableAudio, f"unreadable: {suffix} {advice}"):
                    read_header(str(path))
                with self.assertRaisesRegex(DataError, f"a{suffix} cannot be used: .*{advice}"):
                    check_recording(path, RECORDING)
