"""Players of others speak an exported voice, with the waves of the graph itself.

They are not installed for `make test`: `make test-outside` runs this.

VOICE=FOLDER tests an export of one's own, of a language that espeak-ng has, instead of a voice of
random weights.
"""

import asyncio
import socket
import subprocess
import sys
import unittest

import numpy as np
import onnxruntime
import piper
import sherpa_onnx
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from myxtts.audio.format import sample_rate_hz
from myxtts.speak.chunks import voice_inputs
from tests.fixtures import DEADLINE_S
from tests.players.voice import TEXT, exported_voice


class PlayersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        speaker, cls.model = exported_voice()
        cls.voice = piper.PiperVoice.load(cls.model)
        (cls.phonemes,) = cls.voice.phonemize(TEXT)
        cls.ids = cls.voice.phonemes_to_ids(cls.phonemes)
        session = onnxruntime.InferenceSession(cls.model, providers=["CPUExecutionProvider"])
        inputs = voice_inputs(cls.ids, len(speaker.speakers))
        cls.wave = session.run(None, inputs)[0].ravel()

    def test_wave_has_sound(self):
        self.assertGreater(np.abs(self.wave).max(), 0.01)
        self.assertGreater(len(self.ids), len(TEXT))

    def test_piper(self):
        wave = self.voice.phoneme_ids_to_audio(self.ids)
        np.testing.assert_allclose(wave, self.wave, atol=1e-5)

    def test_piper_aligns_its_ids_with_the_wave(self):
        wave, samples = self.voice.phoneme_ids_to_audio(self.ids, include_alignments=True)
        self.assertEqual((len(samples), samples.sum()), (len(self.ids), len(wave)))

    def test_sherpa_onnx(self):
        vits = sherpa_onnx.OfflineTtsVitsModelConfig(
            model=str(self.model), tokens=str(self.model.with_name("tokens.txt"))
        )
        config = sherpa_onnx.OfflineTtsConfig(sherpa_onnx.OfflineTtsModelConfig(vits=vits))
        options = sherpa_onnx.GenerationConfig()
        options.phoneme_codepoints = [[*map(ord, self.phonemes)]]
        options.silence_scale = 1.0  # or else pauses are cut
        audio = sherpa_onnx.OfflineTts(config).generate(TEXT, options)
        self.assertEqual(audio.sample_rate, sample_rate_hz())
        # It lets onnxruntime compute with 8 bits where a graph has 8 bits.
        error = np.sqrt(np.mean(np.square(np.array(audio.samples) - self.wave)))
        self.assertLess(error, 0.1 * np.sqrt(np.mean(np.square(self.wave))))

    def test_wyoming(self):
        """It plays as loud as 16 bits can be."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder, uri = str(self.model.parent), f"tcp://127.0.0.1:{port}"
        command = [sys.executable, "-m", "wyoming_piper", "--voice", self.model.stem]
        command += ["--data-dir", folder, "--uri", uri, "--no-streaming"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        pcm = asyncio.run(asyncio.wait_for(spoken(port), DEADLINE_S))
        expected = np.clip(self.wave / np.abs(self.wave).max(), -1.0, 1.0) * 32767.0
        np.testing.assert_allclose(pcm, expected, atol=2.0)


async def spoken(port: int) -> np.ndarray:
    """Return what a Wyoming server says, int16 [samples], as soon as it listens."""
    while True:
        try:
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Synthesize(TEXT).event())
                sound = b""
                while not AudioStop.is_type((event := await client.read_event()).type):
                    if AudioChunk.is_type(event.type):
                        sound += AudioChunk.from_event(event).audio
                return np.frombuffer(sound, np.int16)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
