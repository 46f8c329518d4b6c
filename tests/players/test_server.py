"""Clients of others talk to `myxtts serve`: openai, Wyoming's, and Chromium on the page.

VOICE=FOLDER serves an export of your own; REQUESTS=1000 sends more; see `voice` for SCREENSHOTS.
"""

import asyncio
import io
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import soundfile
import uvicorn

from myxtts.audio.format import sample_rate_hz
from myxtts.extras.serve.desk import Desk
from myxtts.extras.serve.server import Web
from tests.fixtures import DEADLINE_S, temporary_folder
from tests.players.test_players import spoken
from tests.players.voice import (
    CHROMIUM,
    TEXT,
    check_page,
    chromium,
    exported_voice,
    keep_screenshot,
    spoken_samples,
    whole,
)
from tests.test_serving import SENTENCE_S, Humming

LONG_TEXT = " ".join([TEXT] * 5)
CLIENTS = 8
REQUESTS = int(os.environ.get("REQUESTS", "80"))


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.speaker, model = exported_voice()
        with socket.create_server(("127.0.0.1", 0)) as free:
            cls.wyoming_port = free.getsockname()[1]
        command = [sys.executable, "-m", "myxtts", "serve", "--voice", str(model.parent)]
        command += ["--port", "0", "--wyoming-port", str(cls.wyoming_port)]
        started_s = time.perf_counter()
        cls.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.server.communicate)
        cls.addClassCleanup(cls.server.terminate)
        for line in cls.server.stdout:
            if found := re.search(r"http://\S+", line):
                cls.url = found[0]
                break
        cls.client = openai.OpenAI(base_url=f"{cls.url}/v1", api_key="none", max_retries=0)
        ready_s = time.perf_counter() - started_s
        first_s = cls.first_sound(TEXT)[0]
        print(f"\nready after {ready_s:.2f} s, first sound {first_s:.2f} s later", file=sys.stderr)

    @classmethod
    def first_sound(cls, text: str) -> tuple[float, float]:
        """Return the seconds to the first and to the last byte of a text."""
        started_s = time.perf_counter()
        speech = cls.client.audio.speech.with_streaming_response
        form = {"model": "any", "voice": cls.speaker.speakers[0], "response_format": "wav"}
        with speech.create(input=text, **form) as answer:
            parts = answer.iter_bytes()
            next(parts)
            first_s = time.perf_counter() - started_s
            for _ in parts:
                pass
        return first_s, time.perf_counter() - started_s

    def test_openai_speech_is_that_of_the_file(self):
        voice = self.speaker.speakers[-1]
        expected = whole(self.speaker.speak(LONG_TEXT, voice))
        form = {"model": "any", "voice": voice, "input": LONG_TEXT}
        for kind in ("wav", "flac", "opus", "mp3"):
            answer = self.client.audio.speech.create(response_format=kind, **form)
            sound, rate_hz = soundfile.read(io.BytesIO(answer.content))
            with self.subTest(form=kind):
                self.assertAlmostEqual(
                    len(sound) / rate_hz, len(expected) / sample_rate_hz(), delta=0.11
                )
                if kind in ("wav", "flac"):
                    np.testing.assert_allclose(sound, expected, atol=1e-4)

    def test_openai_raises_its_own_error(self):
        with self.assertRaisesRegex(openai.BadRequestError, "Use one of"):
            self.client.audio.speech.create(model="any", voice="?", input=TEXT)
        self.assertEqual([model.id for model in self.client.models.list()], [self.speaker.name])

    def test_sentences_are_streamed(self):
        first_s, last_s = self.first_sound(" ".join([TEXT] * 20))
        self.assertLess(first_s, last_s / 2)

    def test_wyoming(self):
        pcm = asyncio.run(asyncio.wait_for(spoken(self.wyoming_port), DEADLINE_S))
        expected = whole(self.speaker.speak(TEXT))
        np.testing.assert_allclose(pcm / 32768, expected, atol=1e-4)

    def test_many_requests(self):
        before_mb = 0.0
        firsts_s = []
        with ThreadPoolExecutor(CLIENTS) as clients:
            for number, (first_s, _) in enumerate(clients.map(self.first_sound, [TEXT] * REQUESTS)):
                firsts_s.append(first_s)
                if number == REQUESTS // 4:
                    before_mb = resident_mb(self.server.pid)
        after_mb = resident_mb(self.server.pid)
        alone_s = statistics.median(self.first_sound(TEXT)[0] for _ in range(5))
        print(
            f"\n{REQUESTS} requests, {CLIENTS} at a time: first sound {alone_s:.2f} s alone and"
            f" {statistics.median(firsts_s):.2f} s together in the median; {before_mb:.0f} and"
            f" {after_mb:.0f} MB after a quarter and all",
            file=sys.stderr,
        )
        self.assertLess(after_mb, 1.1 * before_mb + 10)

    @unittest.skipUnless(CHROMIUM, "Chromium")
    def test_page(self):
        def look(page):
            pcm = spoken_samples(page, TEXT)
            expected = whole(self.speaker.speak(TEXT))
            np.testing.assert_allclose(pcm / 32768, expected, atol=1e-4)
            self.assertFalse(page.is_visible("#file"))
            keep_screenshot(page, "page")
            page.fill("#text", "☃")
            page.click("#speak")
            page.wait_for_selector("#status.error")
            keep_screenshot(page, "page-error")

        with chromium() as browser:
            check_page(self, browser, self.url, look)


@unittest.skipUnless(CHROMIUM, "Chromium")
class ReferenceTest(unittest.TestCase):
    """The page of a speaker that takes a recording, from a file or from Chromium's microphone."""

    def test_page(self):
        speaker, path = Humming(), temporary_folder(self.addCleanup) / "a.flac"
        soundfile.write(path, np.sin(np.arange(48_000) / 10), 48_000)

        def look(page):
            page.set_input_files("#file", path)
            keep_screenshot(page, "reference")
            self.assertEqual(len(spoken_samples(page, "One.")), SENTENCE_S * sample_rate_hz())
            self.assertAlmostEqual(speaker.reference, sample_rate_hz(), delta=2)
            page.select_option("#speaker", "high")
            spoken_samples(page, "One. Two.")
            self.assertIsNone(speaker.reference)
            page.click("#record")
            page.wait_for_timeout(1000)
            page.click("#record")
            page.wait_for_selector("#status:has-text('The recording')")
            keep_screenshot(page, "recorded")
            spoken_samples(page, "One. Two. Three.")
            self.assertGreater(speaker.reference, sample_rate_hz() / 2)

        listening = socket.create_server(("127.0.0.1", 0))
        app = Web(Desk(speaker)).application()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(setattr, server, "should_exit", True)
        with chromium() as browser:
            check_page(self, browser, f"http://127.0.0.1:{listening.getsockname()[1]}", look)
