import csv
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.base.errors import ConfigError, DataError
from myxtts.corpus import demo_corpus
from myxtts.corpus.demo_corpus import EDGE_SAMPLES, MAX_SPEAKERS, load_grammar, make_demo_corpus
from myxtts.extras.speakers import corpus_command as corpus
from myxtts.text.espeak import PAUSE, EspeakVoice, shared
from tests.fixtures import files_below, temporary_folder

REPOSITORY = Path(__file__).resolve().parents[1]
ARGUMENTS = {"utterances": 12, "languages": ["en", "ka", "fa"], "speakers": 2, "seed": 3}
FLAGS = "--out elsewhere --utterances 12 --languages en ka fa --speakers 2 --seed 3"


def digests(folder: Path) -> dict[str, str]:
    files = files_below(folder)
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


class GeneratedCorpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.out = cls.folder / "demo"
        assert make_demo_corpus(cls.out, **ARGUMENTS)
        with open(cls.out / "corpus.csv", encoding="utf-8", newline="") as file:
            cls.rows = list(csv.DictReader(file))
        lines = (cls.out / "alignments.jsonl").read_text("utf-8").splitlines()
        cls.alignments = [json.loads(line) for line in lines]

    def test_waves_are_22050_hz_16_bit_mono_unclipped_and_silent_at_both_ends(self):
        for row in self.rows:
            info = soundfile.info(self.out / row["path"])
            self.assertEqual((info.samplerate, info.subtype, info.channels), (22_050, "PCM_16", 1))
            samples, _ = soundfile.read(self.out / row["path"], dtype="int16")
            self.assertTrue(8_000 < np.abs(samples.astype(int)).max() < 32_000)
            sounding = np.flatnonzero(samples)
            actual = (sounding[0], len(samples) - 1 - sounding[-1])
            self.assertEqual(actual, (EDGE_SAMPLES, EDGE_SAMPLES))

    def test_metadata_has_the_ljspeech_format(self):
        lines = (self.out / "metadata.csv").read_text("utf-8").splitlines()
        self.assertEqual(len(lines), ARGUMENTS["utterances"])
        for line, row in zip(lines, self.rows, strict=True):
            identifier, text, normalised = line.split("|")
            self.assertEqual((f"wavs/{identifier}.wav", text), (row["path"], row["text"]))
            self.assertNotIn("،", normalised)

    def test_speakers_and_languages_alternate(self):
        turn = [(language, number) for number in ("00", "01") for language in ("en", "ka", "fa")]
        expected = [(f"{code}-{n}", code, f"speaker-{n}") for code, n in turn * 2]
        columns = [(Path(r["path"]).stem[:5], r["language"], r["speaker"]) for r in self.rows]
        self.assertEqual(columns, expected)
        self.assertEqual(len({row["text"] for row in self.rows}), len(self.rows))

    def test_alignments_have_no_gap_and_end_with_the_wave(self):
        for alignment in self.alignments:
            spans = alignment["phonemes"]
            seconds = soundfile.info(self.out / "wavs" / f"{alignment['id']}.wav").duration
            self.assertEqual(spans[0][1], 0.0)
            self.assertAlmostEqual(spans[-1][2], seconds, places=4)
            for (_, start_s, end_s), (_, next_start_s, _) in itertools.pairwise(spans):
                self.assertLessEqual(start_s, end_s)
                self.assertEqual(end_s, next_start_s)

    def test_alignments_agree_with_the_energy(self):
        silent, loud = [], []
        for alignment in self.alignments:
            samples, _ = soundfile.read(self.out / "wavs" / f"{alignment['id']}.wav", dtype="int16")
            for symbol, start_s, end_s in alignment["phonemes"]:
                span = samples[round(start_s * 22_050) : round(end_s * 22_050)].astype(float)
                if symbol.strip() == PAUSE:
                    silent.append(np.abs(span).max(initial=0))
                elif symbol[0] == "ˈ" and end_s > start_s:  # stressed vowels
                    loud.append(np.sqrt(np.mean(span**2)))
        self.assertGreater(len(silent), 24)
        self.assertEqual(max(silent), 0)
        self.assertGreater(min(loud), 300)

    def test_generating_again_changes_nothing(self):
        before = digests(self.out)
        self.assertFalse(make_demo_corpus(self.out, **ARGUMENTS))
        self.assertEqual(digests(self.out), before)

    def test_generating_with_other_arguments_is_rejected(self):
        with self.assertRaisesRegex(DataError, r'"seed": 4.*"seed": 3'):
            make_demo_corpus(self.out, **{**ARGUMENTS, "seed": 4})

    def test_same_arguments_give_the_same_bytes_in_any_process(self):
        shared().synthesize("Something in between.", EspeakVoice("en", "m3"))
        again = self.folder / "again"
        make_demo_corpus(again, **ARGUMENTS)
        self.assertEqual(digests(again), digests(self.out))
        run = utility(FLAGS, self.folder)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(digests(self.folder / "elsewhere"), digests(self.out))


class Speakers(unittest.TestCase):
    def test_first_speaker_selects_other_speakers_and_is_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            first, later = Path(folder) / "first", Path(folder) / "later"
            make_demo_corpus(first, 1, ["en"], 1, 0)
            make_demo_corpus(later, 2, ["en"], 2, 0, first_speaker=8)
            with open(later / "corpus.csv", encoding="utf-8", newline="") as file:
                speakers = [row["speaker"] for row in csv.DictReader(file)]
            self.assertEqual(speakers, ["en-08", "en-09"])
            actual = json.loads((later / "demo_corpus.json").read_text())["first_speaker"]
            self.assertEqual(actual, 8)
            self.assertNotIn("first_speaker", json.loads((first / "demo_corpus.json").read_text()))

    def test_all_voices_differ(self):
        voices = [demo_corpus._voice("ka", speaker) for speaker in range(MAX_SPEAKERS)]
        self.assertEqual(len(set(voices)), MAX_SPEAKERS)


class Rejected(unittest.TestCase):
    def setUp(self):
        self.parent = temporary_folder(self.addCleanup)
        self.out = self.parent / "demo"

    def assert_rejected(self, pattern: str, **arguments) -> None:
        values = {"utterances": 2, "languages": ["en"], "speakers": 1, "seed": 0} | arguments
        with self.assertRaisesRegex(DataError, pattern):
            make_demo_corpus(self.out, **values)

    def test_arguments_out_of_range_are_rejected(self):
        range_of_speakers = f"there are 0 to {MAX_SPEAKERS - 1}"
        self.assert_rejected(range_of_speakers, speakers=MAX_SPEAKERS + 1)
        self.assert_rejected(range_of_speakers, speakers=2, first_speaker=MAX_SPEAKERS - 1)
        for languages in (["en", "de"], ["en", "en"]):
            message = f"languages {', '.join(languages)} was .* are en, fa, ka, each at most once"
            self.assert_rejected(message, languages=languages)
        self.assertEqual(list(self.parent.iterdir()), [])
        for flag, value, bounds in (
            ("--utterances", "0", "of at least 1"),
            ("--utterances", "-1", "of at least 1"),
            ("--speakers", "0", f"from 1 to {MAX_SPEAKERS}"),
            ("--first-speaker", "-1", f"from 0 to {MAX_SPEAKERS - 1}"),
        ):
            message = f"{flag} is '{value}', but must be a whole number {bounds}"
            with self.subTest(message), self.assertRaisesRegex(ConfigError, message):
                corpus.main([flag, value])

    def test_error_for_too_many_utterances_names_the_number_of_sentences(self):
        distinct = sum(load_grammar("fa").sizes())
        message = f"{distinct + 1} utterances.* {distinct} distinct"
        self.assert_rejected(message, utterances=distinct + 1, languages=["fa"])
        self.assert_rejected("distinct sentences", utterances=10**20)

    def test_other_content_is_not_changed(self):
        file = self.out / "thesis.txt"
        self.out.mkdir()
        file.write_text("mine")
        for place, message in (
            *((self.out, "has .*something else"), (file, "has .*something else")),
            (file / "below", "cannot be written"),
        ):
            self.out = place
            self.assert_rejected(message)
        self.assertEqual(files_below(self.parent), {"demo/thesis.txt": b"mine"})

    def test_a_missing_wave_is_detected(self):
        make_demo_corpus(self.out, 2, ["en"], 1, 0)
        next((self.out / "wavs").iterdir()).unlink()
        self.assert_rejected("has .* 1 waves")

    def test_an_interrupt_leaves_no_files(self):
        interrupt = mock.Mock(side_effect=[None, KeyboardInterrupt])
        with self.assertRaises(KeyboardInterrupt):
            make_demo_corpus(self.out, 5, ["en"], 1, 0, interrupt)
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_utility_exits_with_2_and_one_message(self):
        run = utility("--languages xx", self.parent)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertNotIn("Traceback", run.stderr)
        self.assertIn("en, fa, ka", run.stderr)


class Grammars(unittest.TestCase):
    def test_every_sentence_is_distinct_and_clean_and_every_slot_used(self):
        for language in demo_corpus.grammar_languages():
            grammar = load_grammar(language)
            sentences = set()
            for template, size in zip(grammar.templates, grammar.sizes(), strict=True):
                sentences.update(grammar.sentence(template, number) for number in range(size))
            self.assertEqual(len(sentences), sum(grammar.sizes()))
            self.assertGreater(len(sentences), 1500)
            for sentence in sentences:
                self.assertEqual(sentence, " ".join(sentence.split()))
                self.assertIn(sentence[-1], ".?؟")
                self.assertNotIn("|", sentence)
            for name, choices in grammar.slots.items():
                self.assertIn(f"{{{name}}}", "".join(grammar.templates))
                self.assertTrue(all(isinstance(choice, str) for choice in choices), choices)

    def test_whole_georgian_alphabet_occurs(self):
        letters = set("".join(itertools.chain(*load_grammar("ka").slots.values())))
        self.assertEqual({chr(code) for code in range(0x10D0, 0x10F1)} - letters, set())


def utility(flags: str, folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "myxtts", "corpus", *flags.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)
