"""A server of a voice: OpenAI's interface and Wyoming, with a speaker that hums."""

import asyncio
import base64
import io
import socket
import unittest
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.commands.serve import PACKAGES
from myxtts.errors import CheckpointError, DataError
from myxtts.serving import run_speaker
from myxtts.serving.run_speaker import RunSpeaker
from myxtts.serving.sound import FORMS, Encoder
from myxtts.serving.speakers import ExportedSpeaker, choose_speaker
from tests.fixtures import DEADLINE_S, temporary_folder

HAS_PACKAGES = all(map(find_spec, (*PACKAGES, "httpx")))
SENTENCE_S = 0.6


class Humming:
    """Hums for each sentence; see `Speaker`."""

    name, language, speakers, takes_reference, threads = "hum", "en", ["low", "high"], True, 2

    def speak(self, text, speaker="", speed=1.0, reference=None):
        hz = (110.0, 220.0)[choose_speaker(speaker, self.speakers)]
        if "①" in text:
            raise DataError("nothing in it is spoken")
        self.reference = reference and soundfile.info(reference).frames
        seconds = np.arange(int(SENTENCE_S / speed * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
        wave = 0.3 * np.sin(2 * np.pi * hz * seconds).astype(np.float32)
        return iter([wave] * text.count("."))


class SoundTest(unittest.TestCase):
    def test_every_form_has_the_whole_sound(self):
        wave = next(Humming().speak("."))
        for name, form in FORMS.items():
            with self.subTest(form=name):
                encoder = Encoder(name)
                parts = [encoder.encode(wave), encoder.encode(wave), encoder.end()]
                self.assertEqual(bool(parts[0]), form.is_streamed)
                self.assertFalse(encoder._sink._kept)
                raw = {"format": "RAW", "subtype": "PCM_16", "channels": 1, "samplerate": 24_000}
                options = raw if name == "pcm" else {}
                sound, rate_hz = soundfile.read(io.BytesIO(b"".join(parts)), **options)
                self.assertAlmostEqual(len(sound) / rate_hz, 2 * SENTENCE_S, delta=0.11)
                self.assertAlmostEqual(np.abs(sound).std(), np.abs(wave).std(), delta=0.02)


class SpeakersTest(unittest.TestCase):
    def test_a_folder_without_a_voice_is_an_error(self):
        folder = temporary_folder(self.addCleanup)
        with self.assertRaisesRegex(CheckpointError, "--format onnx"):
            ExportedSpeaker(folder)
        (folder / "a.onnx").write_bytes(b"")
        with self.assertRaisesRegex(CheckpointError, "Export the voice again"):
            ExportedSpeaker(folder)

    def test_a_run_takes_each_new_checkpoint(self):
        loaded = []
        speaker = RunSpeaker.__new__(RunSpeaker)
        attributes = {"_run": Path("run"), "_device": "/CPU:0", "_vocoder": None}
        vars(speaker).update(attributes, _fixed=None, _checkpoint="")
        synthesizer = SimpleNamespace(Synthesizer=lambda *_, checkpoint: loaded.append(checkpoint))
        modules = {"myxtts.synthesis.synthesizer": synthesizer}
        for name in ("step-000001", "step-000001", "step-000002"):
            with (
                mock.patch.object(run_speaker, "latest", return_value=Path(name)),
                mock.patch.dict("sys.modules", modules),
            ):
                speaker.refresh()
        self.assertEqual(loaded, ["step-000001", "step-000002"])


@unittest.skipUnless(HAS_PACKAGES, "starlette, uvicorn, python-multipart, wyoming and httpx")
class HttpTest(unittest.TestCase):
    def setUp(self):
        from starlette.testclient import TestClient

        from myxtts.serving import server

        self.server = server
        self.speaker = Humming()
        self.desk = server.Desk(self.speaker, lambda wave: f"{len(wave)} samples")
        self.client = TestClient(server.Web(self.desk).application())

    def tearDown(self):
        self.assertEqual(self.desk._requests, 0)

    def speech(self, **body):
        return self.client.post("/v1/audio/speech", json=body)

    def test_speech(self):
        answer = self.speech(input="One. Two.", voice="high", response_format="wav", speed=2.0)
        self.assertEqual((answer.status_code, answer.headers["content-type"]), (200, "audio/wav"))
        sound, rate_hz = soundfile.read(io.BytesIO(answer.content))
        self.assertEqual((len(sound), rate_hz), (2 * int(SENTENCE_S / 2 * SAMPLE_RATE_HZ), 22_050))

    def test_a_reference_in_base64(self):
        file = io.BytesIO()
        soundfile.write(file, np.zeros(SAMPLE_RATE_HZ), SAMPLE_RATE_HZ, format="WAV")
        text = base64.b64encode(file.getvalue()).decode()
        self.assertEqual(self.speech(input="One.", reference=text).status_code, 200)
        self.assertEqual(self.speaker.reference, SAMPLE_RATE_HZ)

    def test_unusable_requests_are_4xx_with_a_message(self):
        too_long = "a" * (self.server.MAX_CHARACTERS + 1)
        for body, expected in (
            ({}, "input: Field required"),
            ({"input": ""}, "input: String should have"),
            ({"input": too_long}, "input: String should have at most 4096"),
            ({"input": "①."}, "nothing in it is spoken"),
            ({"input": "One.", "voice": "alloy"}, "Use one of low, high"),
            ({"input": "One.", "speed": 9}, "speed: Input should be less than or equal to 4"),
            ({"input": "One.", "response_format": "aac"}, "response_format: Input should be"),
            ({"input": "One.", "reference": "?"}, "reference"),
            ({"input": "One.", "reference": "AAAA"}, "reference"),
        ):
            with self.subTest(expected=expected):
                answer = self.speech(**body)
                self.assertEqual(answer.status_code, 400)
                self.assertIn(expected, answer.json()["error"]["message"])
        answer = self.client.post("/v1/audio/speech", content=b"{")
        self.assertIn("Invalid JSON", answer.json()["error"]["message"])
        self.assertEqual(self.client.get("/v1/audio/speech").status_code, 405)

    def test_what_is_too_much_is_rejected(self):
        with mock.patch.object(self.server, "MAX_REQUESTS", 0):
            answer = self.speech(input="One.")
        self.assertEqual((answer.status_code, answer.headers["retry-after"]), (429, "1"))
        with mock.patch.object(self.server, "MAX_BODY_BYTES", 10):
            self.assertEqual(self.speech(input="One. Two.").status_code, 413)
            files = {"file": b"0123456789"}
            answer = self.client.post("/v1/audio/transcriptions", files=files)
            self.assertEqual(answer.status_code, 413)

    def test_transcriptions(self):
        wav = Encoder("wav")
        files = {"file": ("a.wav", wav.encode(np.zeros(30_000, np.float32)) + wav.end())}
        post = self.client.post
        answer = post("/v1/audio/transcriptions", files=files, data={"model": "any"})
        self.assertEqual(answer.json(), {"text": "30000 samples"})
        answer = post("/v1/audio/transcriptions", files=files, data={"response_format": "text"})
        self.assertEqual(answer.text, "30000 samples")
        self.desk.transcriber = None
        for given, expected in ((files, "--recogniser RUN"), ({"other": b"a"}, "field `file`")):
            answer = post("/v1/audio/transcriptions", files=given)
            self.assertEqual(answer.status_code, 400)
            self.assertIn(expected, answer.json()["error"]["message"])

    def test_models_and_page(self):
        (model,) = self.client.get("/v1/models").json()["data"]
        self.assertEqual((model["id"], model["voices"]), ("hum", ["low", "high"]))
        self.assertIn("<title>MyXTTS</title>", self.client.get("/").text)


@unittest.skipUnless(HAS_PACKAGES, "wyoming")
class WyomingTest(unittest.TestCase):
    def test_describe_synthesize_and_transcribe(self):
        asyncio.run(asyncio.wait_for(self.conversation(), DEADLINE_S))

    async def conversation(self):
        from wyoming.audio import AudioChunk, AudioStart, AudioStop
        from wyoming.client import AsyncTcpClient
        from wyoming.error import Error
        from wyoming.info import Describe, Info
        from wyoming.tts import Synthesize, SynthesizeVoice

        from myxtts.serving.server import Desk
        from myxtts.serving.wyoming_server import start_wyoming

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        await start_wyoming(Desk(Humming(), lambda wave: "heard"), "127.0.0.1", port)
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Describe().event())
            info = Info.from_event(await client.read_event())
            (voice,) = info.tts[0].voices
            self.assertEqual([speaker.name for speaker in voice.speakers], ["low", "high"])
            high = SynthesizeVoice("hum", speaker="high")
            await client.write_event(Synthesize("One. Two.", high).event())
            events = [await client.read_event() for _ in range(4)]
            self.assertTrue(
                AudioStart.is_type(events[0].type) and AudioStop.is_type(events[3].type)
            )
            wave = np.frombuffer(events[1].payload, np.int16) / 32768
            expected = next(Humming().speak(".", "high"))
            np.testing.assert_allclose(wave, expected, atol=1e-4)
            await client.write_event(Synthesize("①").event())
            self.assertIn("nothing", Error.from_event(await client.read_event()).text)
            sound = {"rate": 16_000, "width": 2, "channels": 1}
            await client.write_event(AudioStart(**sound).event())
            await client.write_event(AudioChunk(**sound, audio=bytes(32_000)).event())
            await client.write_event(AudioStop().event())
            self.assertEqual((await client.read_event()).data["text"], "heard")
