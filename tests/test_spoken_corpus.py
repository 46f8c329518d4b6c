"""A corpus that other voices speak: kinds of speakers, resume, what is left out, ancestry."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import unittest
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import invalidate_caches
from unittest import mock

import numpy as np
import soundfile

from myxtts.base import plugins
from myxtts.base.errors import ConfigError, DataError
from myxtts.corpus.ancestry import read_ancestry
from myxtts.corpus.demo_corpus import demo_texts
from myxtts.corpus.layouts import read_corpus
from myxtts.extras.publish.publish import origin
from myxtts.extras.speakers import corpus_command, spoken
from myxtts.extras.speakers.speaker import (
    Ancestry,
    CorpusSpeaker,
    _kokoro_styles,
    open_speaker,
    phonemizer,
)
from tests.fixtures import FolderCase
from tests.test_say import HAS_PACKAGES, exported_json, piper_json, write_graph

TEXTS = ["A man was here.", "A plan of the house.", "No man is an island.", "The end of the day."]
RATE_HZ = 24_000
# A package that hums, and ends its process at a text that has KILL.
PLUGIN = """
import os, signal
import numpy as np
from myxtts.extras.speakers.speaker import Ancestry, CorpusSpeaker
def open_hum(source, voice):
    def speak(text):
        if "KILL" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.sin(np.arange(24_000) / 20).astype("f4"), 24_000
    if source == "hum":
        return CorpusSpeaker(Ancestry("hum", "2", voice, "here", "ab", "CC0-1.0", ""), "en", speak)
"""


def noise(text: str) -> np.ndarray:
    """Return a second of noise for each word, which no fault of `inspect` fits."""
    seconds = len(text.split()) / 3
    source = np.random.default_rng(len(text))
    wave = source.normal(0, 0.1, round(RATE_HZ * seconds)).astype(np.float32)
    return wave * np.hanning(len(wave)).astype(np.float32)


class Hum:
    """A kind of speaker, "hum", whose texts are counted; BAD cannot be spoken, PAUSE is silent."""

    def __init__(self, gain: float = 1.0):
        self.said: list[str] = []
        self._gain = gain

    def open(self, source: str, voice: str) -> CorpusSpeaker | None:
        if source != "hum":
            return None
        of = Ancestry("hum", "1", voice, "this test", "abc", "CC0-1.0", "nobody's voice")
        return CorpusSpeaker(of, "en", self.speak)

    def speak(self, text: str) -> tuple[np.ndarray, int]:
        self.said.append(text)
        if "BAD" in text:
            raise DataError("it has no sound")
        pause_s = 3.0 if "PAUSE" in text else 0.0
        return self._gain * np.pad(noise(text), (0, round(pause_s * RATE_HZ))), RATE_HZ


def adding(kind: Callable) -> contextlib.AbstractContextManager:
    """Add a kind of speakers to those that the package has."""
    load = plugins.load

    def load_with(group: str) -> Iterator:
        return itertools.chain([kind] if group == "speakers" else [], load(group))

    return mock.patch.object(plugins, "load", load_with)


class SpokenCase(FolderCase):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"
        self.texts = self.write("texts.txt", "\n".join(TEXTS))

    def make(self, *argv: str) -> None:
        self.speak("--texts", str(self.texts), *argv)

    def speak(self, *argv: str) -> None:
        flags = ["--out", str(self.out), *argv]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(corpus_command.main(flags), 0)

    def rows(self, name: str = "metadata.csv") -> list[dict]:
        with open(self.out / name, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


class SpokenCorpusTest(SpokenCase):
    def setUp(self):
        super().setUp()
        self.hum = Hum()
        self.enterContext(adding(lambda *names: self.hum.open(*names)))
        # Noise has faults.
        self.inspecting = mock.patch.object(spoken, "_faults", return_value={})
        self.inspecting.start()
        self.addCleanup(self.inspecting.stop)

    def test_speakers_take_the_texts_in_turn_and_the_rows_are_in_their_order(self):
        self.make("--speaker", "ann=hum#a", "--speaker", "hum#bob", "--threads", "3")
        rows = self.rows()
        self.assertEqual([row["text"] for row in rows], TEXTS)
        self.assertEqual([row["speaker"] for row in rows], ["ann", "bob"] * 2)
        self.assertEqual({row["language"] for row in rows}, {"en"})
        wave, rate_hz = soundfile.read(self.out / rows[0]["path"])
        self.assertEqual(
            (rate_hz, soundfile.info(self.out / rows[0]["path"]).subtype), (24_000, "PCM_16")
        )
        np.testing.assert_allclose(wave, noise(TEXTS[0]), atol=2**-15)
        trained_on = read_corpus(self.out, "ka").rows
        self.assertEqual([row.text for row in trained_on], TEXTS)
        self.assertEqual([(row.speaker, row.language) for row in trained_on][1], ("bob", "en"))

    def test_each_speaks_all_texts_if_asked(self):
        self.make("--speaker", "ann=hum#a", "--speaker", "bob=hum#b", "--each")
        self.assertEqual([row["text"] for row in self.rows()][:4], [TEXTS[0]] * 2 + [TEXTS[1]] * 2)

    def test_what_is_spoken_is_not_spoken_again(self):
        self.make("--speaker", "hum", "--utterances", "2")
        self.assertEqual(len(self.rows()), 2)
        self.write("texts.txt", "\n".join([TEXTS[3], *TEXTS, "", TEXTS[0]]))
        self.make("--speaker", "hum")
        self.assertEqual(sorted(self.hum.said), sorted(TEXTS))
        self.assertEqual([row["text"] for row in self.rows()], [TEXTS[3], *TEXTS[:3]])

    def test_a_text_that_cannot_be_spoken_is_listed(self):
        self.write("texts.txt", "\n".join([*TEXTS, "A BAD text."]))
        self.make("--speaker", "hum")
        self.assertEqual(len(self.rows()), 4)
        self.assertEqual(self.rows("excluded.csv")[0]["reason"], "not spoken: it has no sound")
        self.write("texts.txt", "BAD")
        with self.assertRaisesRegex(DataError, "no clip .* not spoken: it has no sound"):
            self.make("--speaker", "hum")

    def test_clips_with_faults_are_left_out(self):
        self.write("texts.txt", "\n".join([*TEXTS, "A long PAUSE."]))
        self.inspecting.stop()
        self.make("--speaker", "hum")
        self.inspecting.start()
        excluded = {row["path"]: row["reason"] for row in self.rows("excluded.csv")}
        spoken = {row["text"]: row["path"] for row in self.rows("spoken.csv")}
        self.assertIn("silence:", excluded[spoken["A long PAUSE."]])
        self.assertEqual({row["path"] for row in self.rows()}, {*spoken.values()} - {*excluded})

    def test_a_wave_beyond_full_scale_is_scaled_with_a_warning(self):
        self.hum = Hum(gain=20.0)
        with self.assertLogs("myxtts", "WARNING") as logged:
            self.make("--speaker", "hum", "--utterances", "1")
        self.assertRegex(logged.output[0], r"hum-\w+.wav has a peak of \d.\d\d, and is scaled to 1")
        wave, _ = soundfile.read(self.out / self.rows("spoken.csv")[0]["path"])
        self.assertAlmostEqual(np.abs(wave).max(), 1.0, places=3)
        self.assertEqual((np.abs(wave) > 0.999).sum(), 1)

    def test_a_recogniser_leaves_out_what_it_hears_otherwise_and_hears_a_clip_once(self):
        heard = [TEXTS[0].lower(), "another thing altogether", *map(str.lower, TEXTS[2:])]
        judge = mock.Mock(checkpoint="1", normalise_reference=lambda text, language: text.lower())
        judge.transcribe = mock.Mock(side_effect=lambda waves: heard[: len([*waves])])
        recognisers = "myxtts.tasks.evaluation.recognisers.open_recogniser"
        with mock.patch(recognisers, return_value=judge):
            for _ in range(2):
                self.make("--speaker", "hum", "--recogniser", "pocketsphinx")
        (left,) = self.rows("excluded.csv")
        self.assertIn("heard otherwise: 'another thing altogether'", left["reason"])
        self.assertEqual(len((self.out / "heard.jsonl").read_text().splitlines()), 4)

    def test_the_front_end_of_training_decides_which_texts_can_be_read(self):
        self.inspecting.stop()
        self.write("texts.txt", "日本語の文章を読む。\nわたしはここにいます。\n")
        reasons = []
        for frontend in ("phonemes", "characters"):
            with contextlib.suppress(DataError):  # noise has faults
                self.make("--speaker", "hum", "--language", "ja", "--text-frontend", frontend)
            reasons.append([row["reason"] for row in self.rows("excluded.csv")])
        self.assertIn("text cannot be read", reasons[0][0])
        self.assertNotIn("text cannot be read", "".join(reasons[1]))

    def test_half_a_line_of_a_recogniser_does_not_count(self):
        line = json.dumps({"path": "a", "by": "r 1", "heard": "x"})
        path = self.write("heard.jsonl", f"{line}\n{line[:20]}")
        self.assertEqual(spoken._heard(path, "r 1"), {"a": "x"})
        self.assertEqual(path.read_text(), f"{line}\n")
        self.assertEqual(spoken._heard(path, "r 2"), {})

    def test_ancestry_goes_from_the_corpus_to_the_model_card(self):
        self.make("--speaker", "ann=hum#a", "--texts-from", "this test, CC0")
        ancestry = read_ancestry(str(self.out))
        self.assertEqual(ancestry, read_ancestry(str(self.out / "metadata.csv")))
        expected = {"name": "ann", "licence": "CC0-1.0", "sha256": "abc", "clips": 4}
        self.assertEqual(ancestry["speakers"][0] | expected, ancestry["speakers"][0])
        card = origin(ancestry)
        self.assertIn("hum 1 a: nobody's voice", card["consent"])
        for part in ("this test, CC0", "hum 1 a, CC0-1.0, from this test, SHA-256 abc"):
            self.assertIn(part, card["data"])
        self.assertEqual(read_ancestry(str(self.folder)), {})
        self.write("corpus.json", "{")
        with self.assertLogs("myxtts", "WARNING"):
            self.assertEqual(read_ancestry(str(self.folder)), {})

    def test_without_texts_it_speaks_sentences_of_the_demo_corpus(self):
        self.speak("--speaker", "hum", "--utterances", "7", "--language", "en-us")
        self.assertEqual([row["text"] for row in self.rows()], demo_texts("en", 7))
        self.assertIn("demo", read_ancestry(str(self.out))["texts"]["from"])
        with self.assertRaisesRegex(ConfigError, "sentences in en, .*, but not in eo. Give --t"):
            self.speak("--speaker", "hum", "--language", "eo")

    def test_errors_say_what_to_do(self):
        other = self.folder / "other"
        for argv, message in (
            (("--speaker", "hum", "--speaker", "hum"), "two speakers are called hum. Name them"),
            (("--speaker", "hmm"), "'hmm' is neither a file nor a known name. Give hibari"),
            (("--speaker", "hum", "--seed", "1"), "nothing of the demo corpus"),
            (("--threads", "2"), "has --speaker, and nothing"),
            (("--speaker", "hum", "--out", str(other)), "other files .* metadata.csv. Give a new"),
        ):
            self.write("other/metadata.csv", "a|text")
            with self.subTest(argv), self.assertRaisesRegex(ConfigError, message):
                self.make(*argv)
        self.write("texts.txt", " \n-\n")
        with self.assertRaisesRegex(DataError, "has no texts"):
            self.make("--speaker", "hum")


class KindsTest(SpokenCase):
    def test_a_killed_process_goes_on_and_a_package_adds_a_kind(self):
        entry_point = "[myxtts.speakers]\nhum = hum_speaker:open_hum\n"
        site = str(self.write_package("hum_speaker", PLUGIN, entry_point))
        self.write("texts.txt", "\n".join([*TEXTS[:2], "KILL", TEXTS[2]]))
        command = [sys.executable, "-m", "myxtts", "corpus", "--speaker", "hum#v"]
        command += ["--texts", str(self.texts), "--out", str(self.out)]
        paths = os.pathsep.join([site, *filter(None, sys.path)])
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True)
        self.assertEqual(done.returncode, -9)
        waves = [*(self.out / "wavs").glob("*.wav")]
        self.assertEqual(len(waves), 2)
        written = {path: path.stat().st_mtime_ns for path in waves}
        self.write("out/wavs/.v-0.wav.999999-1.partial", "RIFF")
        self.write("texts.txt", "\n".join(TEXTS))
        with mock.patch.object(sys, "path", [site, *sys.path]):
            invalidate_caches()
            with mock.patch.object(spoken, "_faults", return_value={}):
                self.make("--speaker", "hum#v")
        self.assertEqual({path: path.stat().st_mtime_ns for path in waves}, written)
        self.assertEqual([row["text"] for row in self.rows()], TEXTS)
        self.assertEqual(len([*(self.out / "wavs").iterdir()]), 4)

    def test_two_processes_do_not_speak_into_one_folder(self):
        self.write("out/wavs/x", "")
        refused = self.assertRaisesRegex(ConfigError, "another process speaks into")
        with spoken.locked_file(self.out / ".lock"), adding(Hum().open), refused:
            self.make("--speaker", "hum")

    @unittest.skipUnless(HAS_PACKAGES, "onnx and onnxruntime")
    def test_files_of_piper_and_of_this_project_speak(self):
        for name, document in (("joe", piper_json()), ("own", exported_json())):
            path = self.folder / f"{name}.onnx"
            write_graph(path)
            self.write(f"{name}.onnx.json", json.dumps(document))
            speaker = open_speaker(str(path))
            wave, rate_hz = speaker.speak("A man. A plan.")
            self.assertEqual((speaker.ancestry.model, rate_hz), (name, 22_050))
            self.assertGreater(len(wave), 2000)
            self.assertRegex(speaker.ancestry.sha256, "^[0-9a-f]{64}$")
        with self.assertRaisesRegex(DataError, "'bob' is unknown. Use one of ann"):
            open_speaker(f"{path}#bob")

    def test_a_route_of_openais_form_speaks(self):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(json.dumps({"data": [{"id": "tts", "language": "en"}]}).encode())

            def do_POST(self):
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if "BAD" in asked[-1]["input"]:
                    return self.answer(b"no", 400)
                soundfile.write(path, noise("a b c"), RATE_HZ, subtype="PCM_16")
                self.answer(path.read_bytes())

            def answer(self, content: bytes, status: int = 200):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        path = self.folder / "answer.wav"
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        speaker = open_speaker(f"{url}#ann")
        wave, rate_hz = speaker.speak("Hello.")
        self.assertEqual((len(wave), rate_hz, speaker.language), (RATE_HZ, RATE_HZ, "en"))
        body = {"model": "tts", "voice": "ann", "response_format": "wav", "input": "Hello."}
        self.assertEqual(asked, [body])
        with self.assertRaisesRegex(DataError, "it answers 400: no"):
            speaker.speak("BAD")
        self.assertEqual(open_speaker(f"{url}?model=big#a").ancestry.model, "big")
        server.shutdown()
        server.server_close()
        with self.assertRaisesRegex(ConfigError, "audio/speech cannot be used: .*Check the URL"):
            speaker.speak("Hello.")

    def test_kokoro_names_what_it_lacks(self):
        archive = self.write("kokoro-js-1.2.1.tgz", b"")
        with self.assertRaisesRegex(ConfigError, "cannot be read"):
            open_speaker(f"{archive}#af_heart")
        with tarfile.open(archive, "w:gz") as files:
            for voice in ("af_heart", "jf_alpha", "zf_xiaobei"):
                styles = self.write(f"{voice}.bin", bytes(4 * 510 * 256))
                files.add(styles, f"package/voices/{voice}.bin")
        with self.assertRaisesRegex(ConfigError, "no voice 'xx'.*one of af_heart, jf_alpha, zf"):
            open_speaker(f"{archive}#xx")
        with mock.patch("myxtts.base.errors.find_spec", return_value=None):
            for voice, package in (("jf_alpha", "pyopenjtalk-plus"), ("zf_xiaobei", "jieba")):
                lacks = f"{voice} needs hibari .*pip install hibari-tts .*misaki .*{package}"
                with self.assertRaisesRegex(ConfigError, lacks):
                    open_speaker(f"{archive}#{voice}")

    def test_voices_of_kokoro_are_mixed(self):
        archive = self.folder / "kokoro-js-1.2.1.tgz"
        with tarfile.open(archive, "w:gz") as files:
            for voice, value in (("af_heart", 1.0), ("zf_xiaobei", 5.0)):
                content = np.full([510, 256], value, "<f4").tobytes()
                files.add(self.write(f"{voice}.bin", content), f"package/voices/{voice}.bin")
        mixtures = {
            "zf_xiaobei": 5.0,
            "af_heart+zf_xiaobei+zf_xiaobei": 11 / 3,
            "af_heart+zf_xiaobei-af_heart": 5.0,
            "af_heart+af_heart-zf_xiaobei": -3.0,
        }
        for voice, value in mixtures.items():
            styles = _kokoro_styles(archive, voice)
            self.assertEqual((styles.shape, styles.dtype), ((510, 256), np.float32))
            np.testing.assert_allclose(styles, value, rtol=1e-6)
        for unknown in ("af_heart+xx", "af_heart-zf_xiaobei"):
            found = rf"no voice '{re.escape(unknown)}'.*or several with \+ and fewer with -"
            with self.assertRaisesRegex(ConfigError, found):
                open_speaker(f"{archive}#{unknown}")

    def test_misaki_reads_japanese_and_chinese_for_kokoro(self):
        ja, zh = mock.Mock(), mock.Mock()
        ja.JAG2P.return_value = lambda sentence: (f"ja {sentence}", None)
        zh.ZHG2P.return_value = lambda sentence: (f"zh {sentence}", None)
        with mock.patch.dict(sys.modules, {"misaki.ja": ja, "misaki.zh": zh}):
            self.assertEqual(phonemizer("ja")("はい。いいえ。"), ["ja はい。", "ja いいえ。"])
            self.assertEqual(phonemizer("zh")("好。"), ["zh 好。"])
        self.assertEqual(phonemizer("it")("Ciao. Pizza."), ["ʧˈao.", "pˈiʦːa."])


if __name__ == "__main__":
    unittest.main()
