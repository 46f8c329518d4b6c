"""Clients of others talk to `myxtts serve`: openai, Wyoming's, and Chromium on the page.

VOICE=FOLDER serves an export of your own; REQUESTS=1000 sends more; SCREENSHOTS=FOLDER keeps what
the page looks like.
"""

import asyncio
import io
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.serving.speakers import ExportedSpeaker
from tests.fixtures import DEADLINE_S, temporary_folder
from tests.players.test_players import spoken
from tests.players.voice import CHROMIUM, TEXT, chromium, voice_folder

LONG_TEXT = " ".join([TEXT] * 5)
CLIENTS = 8
REQUESTS = int(os.environ.get("REQUESTS", "80"))


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = voice_folder(cls.addClassCleanup)
        cls.speaker = ExportedSpeaker(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            cls.wyoming_port = free.getsockname()[1]
        command = [sys.executable, "-m", "myxtts", "serve", "--model", str(folder), "--port", "0"]
        command += ["--wyoming-port", str(cls.wyoming_port)]
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
        expected = np.concatenate([*self.speaker.speak(LONG_TEXT, voice)])
        form = {"model": "any", "voice": voice, "input": LONG_TEXT}
        for kind in ("wav", "flac", "opus", "mp3"):
            answer = self.client.audio.speech.create(response_format=kind, **form)
            sound, rate_hz = soundfile.read(io.BytesIO(answer.content))
            with self.subTest(form=kind):
                self.assertAlmostEqual(
                    len(sound) / rate_hz, len(expected) / SAMPLE_RATE_HZ, delta=0.11
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
        expected = np.concatenate([*self.speaker.speak(TEXT)])
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
        screenshots = Path(os.environ.get("SCREENSHOTS", temporary_folder(self.addCleanup)))
        with chromium() as browser:
            for theme in ("light", "dark"):
                for width in (390, 1280):
                    with self.subTest(theme=theme, width=width):
                        size = {"width": width, "height": 800}
                        page = browser.new_page(viewport=size, color_scheme=theme)
                        errors = []
                        page.on("pageerror", lambda error, errors=errors: errors.append(error))
                        page.goto(self.url)
                        page.fill("#text", TEXT)
                        page.click("#speak")
                        page.wait_for_selector("#player:not([hidden])")
                        length_s = page.evaluate(
                            "() => new Promise(done => { const wait = () => player.duration > 0"
                            " ? done(player.duration) : setTimeout(wait, 50); wait() })"
                        )
                        expected_s = sum(map(len, self.speaker.speak(TEXT))) / SAMPLE_RATE_HZ
                        self.assertAlmostEqual(length_s, expected_s, delta=0.05)
                        page.screenshot(path=screenshots / f"{theme}-{width}.png")
                        page.fill("#text", "①")
                        page.click("#speak")
                        page.wait_for_selector("#status.error")
                        page.screenshot(path=screenshots / f"{theme}-{width}-error.png")
                        self.assertLessEqual(page.evaluate("document.body.scrollWidth"), width)
                        self.assertEqual(errors, [])
