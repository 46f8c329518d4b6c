"""A published voice: a run without what is private, that others start from by its URL."""

import json
import os
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.base.errors import CheckpointError, DataError
from myxtts.base.published import CHECKSUMS, local_run
from myxtts.checkpoints.trained_run import TrainedRun, VocoderChoice
from myxtts.config.schema import Config
from myxtts.extras.publish import publish
from myxtts.speak import voices
from myxtts.speak.chunks import SpokenSentence
from tests.fixtures import entered, make_record, temporary_folder
from tests.tiny import build_model, save_checkpoint, training_state

LETTERS = tuple("abcdefghij")


class FakeSpeaker:
    """The speaker of an exported voice that hums."""

    language, speakers = "en", ("low", "high")

    def __init__(self, folder):
        self.name = folder.name

    def speak(self, text, name):
        return iter([SpokenSentence(np.zeros(1000, np.float32), list)] * 2)


def fake_export(run, out, *_, precisions, **__):
    out.mkdir()
    for name in ("run-int8.onnx", "run-int8.onnx.json"):
        (out / name).write_text("{}")
    assert precisions == ["int8"]


class PublishTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        settings = Config(model={"model_size": "tiny"}, data={"train_data": "/home/me/corpus"})
        names = {"symbols": LETTERS, "languages": ("en", "ka"), "speakers": ("Nino",)}
        record, state = make_record(settings=settings, **names), training_state(build_model())
        save_checkpoint(cls.folder / "run", record, state)
        (cls.folder / "run/run.json").write_text('{"commit": "abc", "utterances": 7}')
        exported = mock.patch.object(publish, "export_run", fake_export)
        choice = mock.patch.object(TrainedRun, "select_vocoder", return_value=VocoderChoice())
        speaker = mock.patch.object(publish, "ExportedSpeaker", FakeSpeaker)
        cls.out = cls.folder / "out"
        with exported, choice, speaker, cls().assertLogs(publish.log) as logs:
            of = {"precisions": ["int8"], "licence": "CC0-1.0"}
            publish.publish_run(cls.folder / "run", cls.out, ["Hello."], **of)
            cls.speech = cls.folder / "speech"
            publish.publish_run(cls.folder / "run", cls.speech, ["Hi."], without_weights=True, **of)
        cls.printed = logs.output

    def setUp(self):
        cache = temporary_folder(self.addCleanup)
        entered(self.addCleanup, mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache)))

    def test_weights_are_those_of_the_run(self):
        run, published = TrainedRun.open(self.folder / "run"), TrainedRun.open(self.out)
        np.testing.assert_equal(published.weights(), run.weights())
        self.assertEqual(published.checkpoint.groups, [run.record.weights_group])

    def test_nothing_private_is_in_it(self):
        for path in self.out.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                self.assertNotIn(b"/home/me", content, path)
                self.assertNotIn(b"Nino", content, path)

    def test_it_prints_what_an_index_of_voices_says_of_it(self):
        entry = json.loads(self.printed[1].partition("index entry")[2])["out"]
        self.assertEqual((entry["folder"], entry["licence"]), ("out", "CC0-1.0"))
        self.assertGreater(entry["mb"], 0)
        shown = mock.patch.object(voices, "_folders", lambda: [self.folder])
        (self.folder / "index.json").write_text(json.dumps({"out": entry}))
        voices.voices.cache_clear()
        with shown:
            self.assertEqual(voices.voice_named("out").path, self.out)
        voices.voices.cache_clear()

    def test_the_card_has_facts_and_what_to_fill_in(self):
        card = (self.out / "README.md").read_text("utf-8")
        for part in ("license: cc0-1.0", "weights**: CC0-1.0.", "-m onnx/run-int8.onnx"):
            self.assertIn(part, card)
        for part in ("**Consent**: FILL IN", "MyXTTS abc", "`corpus` of 7 utterances"):
            self.assertIn(part, card)
        self.assertIn("(samples/1-high.ogg)", card)

    def test_a_voice_without_weights_is_only_spoken_with(self):
        self.assertEqual([*self.speech.rglob("*.safetensors")], [])
        card, whole = ((of / "README.md").read_text("utf-8") for of in (self.speech, self.out))
        self.assertNotIn("--init-from", card)
        self.assertIn('--run . --text "Hello."\nmyxtts train --init-from', whole)
        self.assertIn('myxtts say --voice . "Hi."', card)

    def test_a_run_without_run_json_has_a_card_to_fill_in(self):
        facts = publish.card_facts(TrainedRun.open(self.out), self.out, "Hello.")
        self.assertEqual((facts["commit"], facts["utterances"]), ("FILL IN", "FILL IN"))

    def test_the_card_names_the_voices_that_spoke_the_corpus(self):
        ann = {"name": "ann", "model": "hum", "version": "1", "voice": "a", "source": "PyPI hum"}
        ann |= {"sha256": "ab", "licence": "", "consent": "synthetic"}
        other = {"model": "drum", "voice": "c"}
        ancestry = {
            "speakers": [ann, ann | {"voice": "b"}, ann | other],
            "texts": {"from": "own, CC0"},
        }
        made = {"rows": 9, "hours": 1.5, "texts": "read in them", "left_out": {"not said": 2}}
        cut = publish.origin({"recordings": made})
        self.assertIn("9 stretches of 1.50 h", cut["data"])
        self.assertIn("left out: 2 not said", cut["data"])
        card = publish.origin(ancestry)
        spoken = "hum 1 a, b, FILL IN its licence, from PyPI hum, SHA-256 ab and by drum 1 c, "
        self.assertIn(f"texts: own, CC0; spoken by {spoken}", card["data"])
        self.assertIn("spoken the corpus. hum 1 a, b: synthetic; drum 1 c: synth", card["consent"])

    def test_a_url_is_fetched_once_and_checked(self):
        url = f"file://{self.out}"
        fetched = local_run(url)
        weights, expected = (TrainedRun.open(run).weights() for run in (fetched, self.out))
        np.testing.assert_equal(weights, expected)
        self.assertFalse((fetched / "samples").exists())
        self.assertEqual(local_run(url), fetched)
        with self.assertRaisesRegex(DataError, f"{CHECKSUMS} of .* must have 00"):
            local_run(f"{url}#sha256=00")

    def test_a_changed_file_is_an_error(self):
        sums = self.out / CHECKSUMS
        content = sums.read_text()
        self.addCleanup(sums.write_text, content)
        changed = [line for line in content.splitlines() if "config.yaml" in line]
        sums.write_text(content.replace(changed[0][:8], "00000000"))
        with self.assertRaisesRegex(DataError, "config.yaml of .* must have 00000000"):
            local_run(f"file://{self.out}")

    def test_a_voice_of_an_index_is_a_run_with_its_own_vocoder(self):
        voice = voices.Voice("nana", ("en",), "CC0-1.0", "", folder=self.out)
        with mock.patch.object(voices, "voices", lambda: {"nana": voice}):
            trained = TrainedRun.open(Path("nana"))
        self.assertEqual(trained.path, self.out)
        (self.out / "vocoder").symlink_to(self.out)
        self.addCleanup((self.out / "vocoder").unlink)
        with self.assertRaisesRegex(CheckpointError, "out/vocoder.* for the task vocoder"):
            trained.select_vocoder()

    def test_a_folder_is_taken_as_it_is(self):
        self.assertEqual(local_run("runs/a").as_posix(), "runs/a")
