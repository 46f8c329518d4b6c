"""A voice in Chromium, by onnxruntime-web: its wave is that of the file.

VOICE=FOLDER takes an export of your own, and NODE_MODULES=FOLDER what npm has installed already.
"""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import threading
import unittest
from pathlib import Path

import numpy as np

from myxtts.serving.speakers import ExportedSpeaker
from tests.fixtures import temporary_folder
from tests.players.voice import CHROMIUM, TEXT, chromium, voice_folder

PAGE = Path(__file__).parents[2] / "examples/web/index.html"
PACKAGES = "onnxruntime-web", "phonemizer"


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
    def test_wave_is_that_of_the_file(self):
        site = temporary_folder(self.addCleanup)
        folder = voice_folder(self.addCleanup)
        speaker = ExportedSpeaker(folder)
        model = folder / f"{speaker.name}.onnx"
        for source, name in ((PAGE, PAGE.name), (model, "voice.onnx")):
            shutil.copy(source, site / name)
        shutil.copy(f"{model}.json", site / "voice.onnx.json")
        if modules := os.environ.get("NODE_MODULES"):
            (site / "node_modules").symlink_to(modules)
        else:
            subprocess.run(["npm", "install", "--silent", *PACKAGES], cwd=site, check=True)
        symbols = ["a", "b", "ː", "d", "ə"]
        expected = speaker._wave(symbols, len(speaker.speakers) - 1, 1.0)
        with static_server(site) as url, chromium() as browser:
            page = browser.new_page()
            page.goto(url)
            page.wait_for_selector("#speak:enabled")
            arguments = ["".join(symbols), len(speaker.speakers) - 1]
            wave = page.evaluate("async x => [...await waveOf(idsOf(x[0]), x[1])]", arguments)
            error = np.sqrt(np.mean(np.square(np.array(wave) - expected)))
            self.assertLess(error, 1e-3 * np.sqrt(np.mean(np.square(expected))))
            page.fill("#text", TEXT)
            page.click("#speak")
            page.wait_for_selector("#player:not([hidden])")
            print(page.inner_text("#status"))
