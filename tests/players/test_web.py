"""A voice in Chromium, by onnxruntime-web, from a folder of a static server and without a network.

VOICE=FOLDER takes an export of your own, and NODE_MODULES=FOLDER what npm has installed already.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
import unittest
from pathlib import Path

import numpy as np

from myxtts.extras.export.web import npm_files, write_page
from myxtts.speak.chunks import FRONTEND
from myxtts.speak.player import ExportedSpeaker
from tests.fixtures import temporary_folder
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

IPA = "[[ˈabːədə]]."


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def static_server(folder: Path):
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@unittest.skipUnless(CHROMIUM and shutil.which("npm"), "Chromium and npm")
class WebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        modules = Path(os.environ.get("NODE_MODULES", cls.folder / "npm/node_modules"))
        if "NODE_MODULES" not in os.environ:
            packages = "onnxruntime-web", "espeak-ng"
            prefix = str(modules.parent)
            subprocess.run(
                ["npm", "install", "--silent", "--prefix", prefix, *packages], check=True
            )
        cls.modules = modules

    def site(self, text_frontend: str) -> Path:
        """Write the folder of the voice with a text front end."""
        folder = self.folder / text_frontend
        folder.mkdir()
        _, model = exported_voice()
        shutil.copy(model, folder)
        document = json.loads(model.with_name(f"{model.name}.json").read_text("utf-8"))
        document[FRONTEND]["kind"] = text_frontend
        if text_frontend == "characters":
            document["phoneme_type"] = "text"
        (folder / f"{model.name}.json").write_text(json.dumps(document))
        write_page(folder, model.name, npm_files(self.modules, text_frontend))
        return folder

    def check(self, page, folder: Path, text: str) -> None:
        """Compare what the page speaks with the exported voice in Python."""
        expected = whole(ExportedSpeaker(folder).speak(text))
        error = np.sqrt(np.mean(np.square(spoken_samples(page, text) / 32768 - expected)))
        self.assertLess(error, 1e-3 * np.sqrt(np.mean(np.square(expected))) + 1 / 32768)

    def test_phonemes(self):
        folder = self.site("phonemes")

        def look(page):
            self.check(page, folder, IPA)
            self.check(page, folder, TEXT)
            print(page.inner_text("#status"))
            keep_screenshot(page, "web")

        with static_server(folder) as url, chromium() as browser:
            check_page(self, browser, url, look)

    def test_characters(self):
        folder = self.site("characters")
        with static_server(folder) as url, chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            page.wait_for_selector("#speak:enabled")
            self.check(page, folder, "the  old teacher.")
            two = spoken_samples(page, "The old. The odd.")
            self.assertGreater(len(two), len(spoken_samples(page, "The old.")))
            page.fill("#text", "a\u0416")
            page.click("#speak")
            page.wait_for_selector("#status:has-text('left out: \u0416')")
