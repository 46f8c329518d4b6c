"""The exported voice that players play: VOICE=FOLDER, or one of random weights; and a browser."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures import temporary_folder

ENGLISH = " ,.abdefhijklmnoprstuvwzæðŋɐɑɔəɚɛɜɡɪɫɹɾʃʊʌʒʔˈˌːθᵻ"
TEXT = os.environ.get("TEXT", "The old teacher sang a quiet song.")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def voice_folder(add_cleanup: Callable) -> Path:
    if "VOICE" in os.environ:
        return Path(os.environ["VOICE"])
    # TensorFlow, which takes seconds to import.
    from tests.onnx_voice import export_voice

    folder = temporary_folder(add_cleanup) / "voice"
    export_voice(folder, symbols=ENGLISH, languages=("en",))
    return folder


@contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()
