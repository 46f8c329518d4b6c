"""The exported voice that players play: VOICE=FOLDER, or one of random weights; and a browser.

SCREENSHOTS=FOLDER keeps what pages look like.
"""

import io
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from myxtts.audio.format import sample_rate_hz
from myxtts.speak.chunks import SpokenSentence
from myxtts.speak.player import ExportedSpeaker

ENGLISH = " ,.abdefhijklmnoprstuvwzæðŋɐɑɔəɚɛɜɡɪɫɹɾʃʊʌʒʔˈˌːθᵻ"
TEXT = os.environ.get("TEXT", "The old teacher sang a quiet song.")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


_temporary = tempfile.TemporaryDirectory(prefix="myxtts-")


@cache
def exported_voice() -> tuple[ExportedSpeaker, Path]:
    """Return the voice and its file, in its folder; exported once for all tests."""
    folder = Path(os.environ.get("VOICE", f"{_temporary.name}/voice"))
    if "VOICE" not in os.environ:
        # TensorFlow, which takes seconds to import.
        from tests.onnx_voice import export_voice

        export_voice(folder, symbols=ENGLISH, languages=("en",))
    speaker = ExportedSpeaker(folder)
    return speaker, folder / f"{speaker.name}.onnx"


def whole(sentences: Iterable[SpokenSentence]) -> np.ndarray:
    return np.concatenate([sentence.wave for sentence in sentences])


@contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        options += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


def check_page(test: unittest.TestCase, browser, url: str, look: Callable[[Any], None]) -> None:
    """Open a page in both themes and two widths, and look at it; nothing fails or is too wide.

    It loads nothing from elsewhere.
    """
    for theme in ("light", "dark"):
        for width in (390, 1280):
            with test.subTest(theme=theme, width=width):
                size = {"width": width, "height": 800}
                page = browser.new_page(viewport=size, color_scheme=theme)
                errors, addresses = [], []
                page.on("pageerror", lambda error, errors=errors: errors.append(error))
                page.on("request", lambda request, urls=addresses: urls.append(request.url))
                page.goto(url)
                page.wait_for_selector("#speak:enabled")
                look(page)
                test.assertLessEqual(page.evaluate("document.body.scrollWidth"), width)
                test.assertEqual(errors, [])
                for address in addresses:
                    test.assertTrue(address.startswith((url, "blob:", "data:")), address)
                page.close()


def spoken_samples(page, text: str) -> np.ndarray:
    """Let a page speak a text; return what it offers to download, int16 [samples]."""
    page.fill("#text", text)
    page.click("#speak")
    page.wait_for_selector("#status:has-text('s of speech')")
    content = page.evaluate(
        "async () => [...new Uint8Array(await (await fetch(download.href)).arrayBuffer())]"
    )
    sound, rate_hz = soundfile.read(io.BytesIO(bytes(content)), dtype="int16")
    assert rate_hz == sample_rate_hz()
    return sound


def keep_screenshot(page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        theme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        width = page.viewport_size["width"]
        page.screenshot(path=f"{folder}/{name}-{'dark' if theme else 'light'}-{width}.png")
