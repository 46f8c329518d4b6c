"""A server of a voice: OpenAI's interface and Wyoming, with a speaker that hums."""

import argparse
import asyncio
import base64
import io
import itertools
import json
import socket
import threading
import time
import unittest
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.audio_file import REFERENCE, read_recording
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.config.parser import add_references_flag
from myxtts.config.synthesis import SynthesisOptions
from myxtts.extras.serve.serve_command import PACKAGES
from myxtts.extras.serve.sound import FORMS, Encoder
from myxtts.speak import player as speakers
from myxtts.speak.chunks import FRONTEND, SpokenSentence
from myxtts.speak.player import ExportedSpeaker, choose_speaker
from myxtts.tasks.tts import run_speaker
from myxtts.tasks.tts.run_speaker import RunSpeaker
from myxtts.text.languages import choose_language
from tests.fixtures import DEADLINE_S, temporary_folder

HAS_PACKAGES = all(map(find_spec, (*PACKAGES, "httpx")))
SENTENCE_S = 0.6
VOICE = {
    "language": {"code": "en"},
    "audio": {"sample_rate": 22050},
    "inference": {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.8},
    "phoneme_id_map": {"^": [1], "$": [2], "a": [3]},
    "speaker_id_map": {"one": 0},
    FRONTEND: {"kind": "characters", "symbols": ["a"]},
}


class Humming:
    """Hums for each sentence; see `Speaker`."""

    name, language, speakers, takes_reference, threads = "hum", "en", ["low", "high"], True, 2

    def speak(self, text, speaker="", speed=1.0, reference=None):
        hz = (110.0, 220.0)[choose_speaker(speaker, self.speakers)]
        if "①" in text:
            raise DataError("nothing in it is spoken")
        self.reference = reference and len(read_recording(reference, REFERENCE))
        SynthesisOptions(speed=speed)
        seconds = np.arange(int(SENTENCE_S / speed * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
        wave = 0.3 * np.sin(2 * np.pi * hz * seconds).astype(np.float32)
        return iter([SpokenSentence(wave, list)] * text.count("."))


class SoundTest(unittest.TestCase):
    def test_every_form_has_the_whole_sound(self):
        wave = next(Humming().speak(".")).wave
        for name, form in FORMS.items():
            with self.subTest(form=name):
                encoder = Encoder(name)
                parts = [encoder.encode(wave), encoder.encode(wave), encoder.end()]
                self.assertEqual(bool(parts[0]), form.is_streamed)
                raw = {"format": "RAW", "subtype": "PCM_16", "channels": 1, "samplerate": 24_000}
                options = raw if name == "pcm" else {}
                sound, rate_hz = soundfile.read(io.BytesIO(b"".join(parts)), **options)
                self.assertAlmostEqual(len(sound) / rate_hz, 2 * SENTENCE_S, delta=0.11)
                self.assertAlmostEqual(np.abs(sound).std(), np.abs(wave).std(), delta=0.02)


class SpeakersTest(unittest.TestCase):
    def test_names_are_found_in_each_unicode_form(self):
        speakers = ["Jose\u0301", "anna"]
        for name, number in (("", 0), ("Jos\xe9", 0), (" anna\u200b", 1)):
            self.assertEqual(choose_speaker(name, speakers), number)
        with self.assertRaisesRegex(DataError, "'Anna' is unknown. Use one of"):
            choose_speaker("Anna", speakers)
        self.assertEqual(choose_language("e\u0301", ["en", "\xe9"]), "\xe9")
        parser = argparse.ArgumentParser()
        add_references_flag(parser, "")
        argv = ["--reference", "\xe9=a.wav", "--reference", "e\u0301=b.wav"]
        references = {"\xe9": [Path("a.wav"), Path("b.wav")]}
        self.assertEqual(parser.parse_args(argv).references, references)

    def test_what_is_wrong_with_the_files_of_a_voice_is_named(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
        piper = {"phoneme_id_map": {"a": [1]}, "speaker_id_map": {}}
        ours = VOICE | {FRONTEND: VOICE[FRONTEND] | {"of_another_version": 1}}
        for graph, about, expected in (
            (None, b"{}", "has no file [*].onnx"),
            (b"onnx", None, "a.onnx.json is missing; a.onnx and .* Copy or rename both"),
            (pointer, b"{}", "a.onnx is a pointer of Git LFS"),
            (b"onnx", pointer, "a.onnx.json is a pointer of Git LFS"),
            (b"onnx", b"{", "a.onnx.json is no JSON"),
            (b"onnx", b"\xff", "a.onnx.json is no JSON"),
            (b"onnx", [], "a.onnx is no voice of MyXTTS"),
            (b"onnx", piper, "a.onnx is a voice of Piper, not of MyXTTS"),
            (b"onnx", ours, "another form than this version .*of_another_version"),
            (b"onnx", VOICE | {"phoneme_id_map": {}}, "another form"),
            (b"onnx", VOICE, "a.onnx is damaged, or no file of ONNX"),
        ):
            folder = temporary_folder(self.addCleanup)
            if graph is not None:
                (folder / "a.onnx").write_bytes(graph)
            if about is not None:
                content = about if isinstance(about, bytes) else json.dumps(about).encode()
                (folder / "a.onnx.json").write_bytes(content)
            with self.subTest(expected), self.assertRaisesRegex(CheckpointError, expected):
                ExportedSpeaker(folder)
        for path, expected in (
            (folder / "a.onnx.json", "has no file"),
            (folder / "b", "has no file"),
            (folder / "b.onnx", "b.onnx is missing"),
        ):
            with self.subTest(expected), self.assertRaisesRegex(CheckpointError, expected):
                ExportedSpeaker(path)
        (folder / "a.onnx").unlink()
        (folder / "a.onnx").mkdir()
        with self.assertRaisesRegex(CheckpointError, "Is a directory"):
            ExportedSpeaker(folder)

    def test_a_voice_is_tried_when_it_is_opened(self):
        folder, inputs = temporary_folder(self.addCleanup), []
        (folder / "a.onnx").write_bytes(b"onnx")
        (folder / "a.onnx.json").write_text(json.dumps(VOICE))
        run = mock.Mock(side_effect=lambda given: inputs.append(given) or [np.zeros(9)])
        with mock.patch.object(speakers, "load_onnx", return_value=run):
            speaker = ExportedSpeaker(folder)
            self.assertFalse(speaker.has_times)
            self.assertEqual(inputs[0]["input"].tolist(), [[1, 3, 2]])
            for speed in (float("nan"), 0, "fast"):
                with self.assertRaisesRegex(ConfigError, "speed is .* from 0.25 to 4"):
                    speaker.speak("Aa.", speed=speed)
        failing = mock.Mock(side_effect=RuntimeError("Required inputs (['sid']) are missing"))
        with mock.patch.object(speakers, "load_onnx", return_value=failing):
            error = "not the graph that a.onnx.json describes: Required inputs"
            with self.assertRaisesRegex(CheckpointError, error):
                ExportedSpeaker(folder)

    def test_a_run_takes_each_new_checkpoint(self):
        loaded = []
        speaker = RunSpeaker.__new__(RunSpeaker)
        attributes = {"_run": Path("run"), "_device": "/CPU:0", "_vocoder": None}
        vars(speaker).update(attributes, _fixed=None, _checkpoint="")
        synthesizer = SimpleNamespace(Synthesizer=lambda *_, checkpoint: loaded.append(checkpoint))
        modules = {"myxtts.tasks.tts.synthesizer": synthesizer}
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

        from myxtts.extras.serve import desk, server

        self.desks = desk
        self.speaker = Humming()
        self.desk = desk.Desk(self.speaker, lambda wave: f"{len(wave)} samples")
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
        tone = np.sin(np.arange(SAMPLE_RATE_HZ) / 10)
        soundfile.write(file, tone, SAMPLE_RATE_HZ, format="WAV")
        text = base64.b64encode(file.getvalue()).decode()
        self.assertEqual(self.speech(input="One.", reference=text).status_code, 200)
        self.assertEqual(self.speaker.reference, SAMPLE_RATE_HZ)

    def test_unusable_requests_are_4xx_with_a_message(self):
        too_long = "a" * (self.desks.MAX_CHARACTERS + 1)
        silent = io.BytesIO()
        soundfile.write(silent, np.zeros(9), SAMPLE_RATE_HZ, format="WAV")
        short = base64.b64encode(silent.getvalue()).decode()
        for body, expected in (
            ({}, "input: Field required"),
            ({"input": ""}, "input: String should have"),
            ({"input": too_long}, "input: String should have at most 4096"),
            ({"input": "①."}, "nothing in it is spoken"),
            ({"input": "One.", "voice": "alloy"}, "Use one of low, high"),
            ({"input": "One.", "speed": 9}, "speed: Input should be less than or equal to 4"),
            ({"input": "One.", "response_format": "aac"}, "response_format: Input should be"),
            ({"input": "One.", "reference": "?"}, "reference"),
            ({"input": "One.", "reference": "AAAA"}, "the reference cannot be used: unreadable"),
            ({"input": "One.", "reference": short}, "the reference has 0.00 s. Give audio files"),
            ({"input": "One.", "stream_format": "sse"}, "stream_format: Input should be 'audio'"),
            ({"input": "One.", "output_format": "wav"}, "output_format asks for"),
            ({"input": "One.", "sample_rate": 8000}, "sample_rate asks for"),
        ):
            with self.subTest(expected=expected):
                answer = self.speech(**body)
                self.assertEqual(answer.status_code, 400)
                message = answer.json()["error"]["message"]
                self.assertIn(expected, message)
                self.assertNotRegex(message, "/tmp|--")
        answer = self.client.post("/v1/audio/speech", content=b"{")
        self.assertIn("Invalid JSON", answer.json()["error"]["message"])
        self.assertEqual(self.client.get("/v1/audio/speech").status_code, 405)
        for field in (
            {"instructions": "whisper"},
            {"stream_format": "audio"},
            {"timestamps": None},
        ):
            self.assertEqual(self.speech(input="One.", **field).status_code, 200, field)

    def test_what_is_too_much_is_rejected(self):
        with mock.patch.object(self.desks, "MAX_REQUESTS", 0):
            answer = self.speech(input="One.")
        self.assertEqual((answer.status_code, answer.headers["retry-after"]), (429, "1"))
        with mock.patch.object(self.desks, "MAX_BODY_BYTES", 10):
            self.assertEqual(self.speech(input="One. Two.").status_code, 413)
            for path in ("transcriptions", "speech", "nothing"):
                for length in ({}, {"content-length": "9"}, {"content-length": "many"}):
                    files = {"file": b"0123456789"}
                    answer = self.client.post(f"/v1/audio/{path}", files=files, headers=length)
                    self.assertEqual(answer.status_code, 413)
            self.assertIn("has more than 1e-05 MB", answer.json()["error"]["message"])

    def test_transcriptions(self):
        wav = Encoder("wav")
        files = {"file": ("a.wav", wav.encode(np.zeros(30_000, np.float32)) + wav.end())}
        post = self.client.post
        answer = post("/v1/audio/transcriptions", files=files, data={"model": "any"})
        self.assertEqual(answer.json(), {"text": "30000 samples"})
        answer = post("/v1/audio/transcriptions", files=files, data={"response_format": "text"})
        self.assertEqual(answer.text, "30000 samples")
        for field in (
            {"response_format": "verbose_json"},
            {"response_format": "srt"},
            {"stream": "true"},
            {"timestamp_granularities[]": "word"},
            {"include[]": "logprobs"},
        ):
            answer = post("/v1/audio/transcriptions", files=files, data=field)
            self.assertEqual(answer.status_code, 400, field)
        for field in ({"stream": "false"}, {"language": "en", "prompt": "a", "temperature": "0"}):
            answer = post("/v1/audio/transcriptions", files=files, data=field)
            self.assertEqual(answer.status_code, 200, field)
        self.desk.transcriber = None
        for given, expected in ((files, "--recogniser RUN"), ({"other": b"a"}, "field `file`")):
            answer = post("/v1/audio/transcriptions", files=given)
            self.assertEqual(answer.status_code, 400)
            self.assertIn(expected, answer.json()["error"]["message"])

    def test_models_and_page(self):
        (model,) = self.client.get("/v1/models").json()["data"]
        self.assertEqual((model["id"], model["voices"]), ("hum", ["low", "high"]))
        self.assertIn("<title>MyXTTS</title>", self.client.get("/").text)


class Waiting:
    """Speaks and transcribes only once it may; keeps what it was given."""

    name, language, speakers, takes_reference, threads = "wait", "en", ["one"], False, 1

    def __init__(self):
        self.may, self.given = threading.Event(), []

    def speak(self, text, speaker="", speed=1.0, reference=None):
        self.given.append(text)
        self.may.wait(DEADLINE_S)
        return iter([SpokenSentence(np.zeros(99, np.float32), list)])

    def transcribe(self, wave):
        return str(self.speak("a recording"))


@unittest.skipUnless(HAS_PACKAGES, "starlette, uvicorn, python-multipart, wyoming and httpx")
class ClientsTest(unittest.IsolatedAsyncioTestCase):
    """Clients that send without an end, and clients that leave."""

    def setUp(self):
        from myxtts.extras.serve import desk, server

        self.speaker = Waiting()
        self.addCleanup(self.speaker.may.set)
        self.desk = desk.Desk(self.speaker, self.speaker.transcribe)
        self.app = server.Web(self.desk).application()

    async def ask(self, left, path, parts, kind="application/json", is_whole=True):
        """Send a body in parts, and leave at an event; return the status of the answer, or 0."""
        headers = [(b"content-type", kind.encode()), (b"content-length", b"many")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1"}
        messages = [{"type": "http.request"}] if is_whole else []
        parts, answer = iter(parts), [{"status": 0}]

        async def receive():
            for part in parts:
                return {"type": "http.request", "body": part, "more_body": True}
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            answer.append(message)

        await asyncio.wait_for(self.app(scope, receive, send), DEADLINE_S)
        return answer[:2][-1]["status"]

    async def until(self, condition):
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline_s)
            await asyncio.sleep(0.001)

    async def test_a_body_without_an_end_is_read_up_to_the_limit(self):
        form = "multipart/form-data; boundary=B"
        head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for path, kind, start in (
            ("/v1/audio/transcriptions", form, head),
            ("/v1/audio/speech", "application/json", b'{"input": "'),
            ("/", "", b""),
        ):
            sent = []
            parts = itertools.chain(
                [start], (sent.append(1) or bytes(1_000_000) for _ in itertools.count())
            )
            with self.subTest(path=path):
                self.assertEqual(await self.ask(asyncio.Event(), path, parts, kind), 413)
                self.assertLessEqual(len(sent), 26)

    async def test_a_client_that_leaves_frees_its_place_before_its_turn(self):
        from wyoming.audio import AudioChunk, AudioStart, AudioStop
        from wyoming.event import async_write_event
        from wyoming.tts import Synthesize

        from myxtts.extras.serve.wyoming_server import start_wyoming

        def speech(left, text):
            return self.ask(left, "/v1/audio/speech", [json.dumps({"input": text}).encode()])

        wav = Encoder("wav")
        content = wav.encode(np.zeros(30_000, np.float32)) + wav.end()
        form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        upload = [form, content, b"\r\n--B--\r\n"], "multipart/form-data; boundary=B"
        sound = {"rate": 16_000, "width": 2, "channels": 1}
        recording = AudioStart(**sound), AudioChunk(**sound, audio=bytes(32_000)), AudioStop()
        server = await start_wyoming(self.desk, "127.0.0.1", 0)
        async with server:
            first = asyncio.create_task(speech(asyncio.Event(), "The first."))
            await self.until(lambda: self.speaker.given)
            left, path = asyncio.Event(), "/v1/audio/transcriptions"
            waiting = speech(left, "The second."), self.ask(left, path, *upload)
            tasks = [*map(asyncio.create_task, waiting)]
            writers = []
            for events in ((Synthesize("The third."),), recording):
                _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writers.append(writer)
                for event in events:
                    await async_write_event(event.event(), writer)
            await self.until(lambda: self.desk._requests == 5)
            left.set()
            for writer in writers:
                writer.close()
            self.assertEqual(await asyncio.gather(*tasks), [0, 0])
            await self.until(lambda: self.desk._requests == 1)
            self.speaker.may.set()
            self.assertEqual(await first, 200)
            self.assertEqual(self.speaker.given, ["The first."])
            cut = self.ask(left, "/v1/audio/speech", [b"{"], is_whole=False)
            self.assertEqual(await cut, 0)

    def test_hosts(self):
        from myxtts.extras.serve.desk import listen

        families = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET}
        if socket.has_dualstack_ipv6():
            families |= {"::1": socket.AF_INET6, "::": socket.AF_INET6}
        for host, family in families.items():
            with self.subTest(host), listen(host, 0, "--port") as listening:
                self.assertEqual(listening.family, family)
                address = listening.getsockname()[:2]
                with self.assertRaisesRegex(ConfigError, "--a-port .* Give another --a-port"):
                    listen(host, address[1], "--a-port")
                socket.create_connection(
                    ("127.0.0.1" if host == "::" else host, address[1])
                ).close()
        for host in ("http://127.0.0.1", "[::1]", "127.0.0.1:80", "192.0.2.1", "a" * 64, ""):
            with self.subTest(host), self.assertRaisesRegex(ConfigError, "^--host .* such as"):
                listen(host, 0, "--port")


@unittest.skipUnless(HAS_PACKAGES, "wyoming")
class WyomingTest(unittest.TestCase):
    def test_describe_synthesize_and_transcribe(self):
        asyncio.run(asyncio.wait_for(self.conversation(), DEADLINE_S))

    async def conversation(self):
        from wyoming.audio import AudioStart, AudioStop
        from wyoming.client import AsyncTcpClient
        from wyoming.error import Error
        from wyoming.event import Event, async_read_event
        from wyoming.info import Describe, Info
        from wyoming.tts import Synthesize, SynthesizeVoice

        from myxtts.extras.serve.desk import Desk
        from myxtts.extras.serve.wyoming_server import start_wyoming

        def recorded(sound, size):
            chunk = Event("audio-chunk", sound, bytes(size))
            return [Event("audio-start", sound), chunk, Event("audio-stop")]

        desk = Desk(Humming(), lambda wave: f"{len(wave)} samples")
        server = await start_wyoming(desk, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        async with server, AsyncTcpClient(*address) as client:
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
            expected = next(Humming().speak(".", "high")).wave
            np.testing.assert_allclose(wave, expected, atol=1e-4)
            await client.write_event(Synthesize("①").event())
            self.assertIn("nothing", Error.from_event(await client.read_event()).text)
            sound = {"rate": 16_000, "width": 2, "channels": 1}
            start = Event("audio-start", sound)
            for events, expected in (
                ([Event("synthesize")], "synthesize cannot be used: KeyError"),
                ([Event("synthesize", {"text": 5})], "cannot be used: TypeError"),
                ([Event("synthesize", {"text": "a" * 5000})], "Give 4096 at most"),
                (recorded(sound, 32_000), "22050 samples"),
                (recorded(sound | {"width": 1}, 16_000), "22050 samples"),
                (recorded(sound | {"width": 3}, 48_000), "22050 samples"),
                (recorded(sound | {"width": 4, "channels": 2}, 128_000), "22050 samples"),
                (recorded(sound | {"rate": 44_100}, 88_200), "22050 samples"),
                (recorded(sound, 32_001), "32001 bytes are no whole samples"),
                (recorded(sound, 0), "the recording has 0.00 s. Give audio files"),
                (recorded(sound | {"channels": 0}, 9), "channels: Input should be greater"),
                (recorded(sound | {"rate": 0}, 9), "rate: Input should be greater"),
                (recorded(sound | {"rate": 10**9}, 9), "rate: Input should be less"),
                (recorded(sound | {"width": 5}, 9), "width: Input should be less"),
                (recorded({"width": 2}, 9), "rate: Field required"),
                ([start, *recorded(sound | {"width": 4}, 9)[1:]], "but audio-chunk has"),
                ([start, *[Event("audio-chunk", sound, bytes(9_000_000))] * 3], "more than 25 MB"),
                ([start, *[Event("audio-chunk", sound, bytes(10**6))] * 26], "more than 25 MB"),
            ):
                for event in events:
                    await client.write_event(event)
                with self.subTest(expected=expected):
                    self.assertIn(expected, (await client.read_event()).data["text"])
            self.assertEqual(desk._requests, 0)
        for line, expected in (
            (b"GET / HTTP/1.1\r\n\r\n", "a line of JSON"),
            (b"[]\n", "cannot be used: AttributeError"),
            (b'{"type": "audio-chunk", "payload_length": "many"}\n', "TypeError"),
            (b'{"type": "audio-chunk", "payload_length": 26000000}\n' + bytes(26_000_000), "25 MB"),
        ):
            async with await start_wyoming(desk, "127.0.0.1", 0) as server:
                streams = await asyncio.open_connection(*server.sockets[0].getsockname())
                streams[1].write(line)
                error = Error.from_event(await async_read_event(streams[0]))
                self.assertIn(expected, error.text)
                streams[1].close()
