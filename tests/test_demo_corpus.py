import csv
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import soundfile

from myxtts.data.demo_corpus import (
    EDGE_SAMPLES,
    MAX_SPEAKERS,
    _voice,
    grammar_languages,
    load_grammar,
    make_demo_corpus,
)
from myxtts.errors import DataError
from myxtts.text.espeak import PAUSE, EspeakVoice, synthesize
from tests.fixtures import temporary_folder

REPOSITORY = Path(__file__).resolve().parents[1]
ARGUMENTS = {"utterances": 12, "languages": ["en", "ka", "fa"], "speakers": 2, "seed": 3}


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


class GeneratedCorpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.out = cls.folder / "demo"
        assert make_demo_corpus(cls.out, **ARGUMENTS)
        with open(cls.out / "corpus.csv", encoding="utf-8", newline="") as file:
            cls.rows = list(csv.DictReader(file))
        cls.alignments = [
            json.loads(line)
            for line in (cls.out / "alignments.jsonl").read_text("utf-8").splitlines()
        ]

    def test_waves_are_22050_hz_16_bit_mono_and_unclipped(self):
        for row in self.rows:
            info = soundfile.info(self.out / row["path"])
            self.assertEqual((info.samplerate, info.subtype, info.channels), (22_050, "PCM_16", 1))
            samples, _ = soundfile.read(self.out / row["path"], dtype="int16")
            self.assertTrue(8_000 < np.abs(samples.astype(int)).max() < 32_000)

    def test_silences_at_both_ends_have_a_fixed_length(self):
        for row in self.rows:
            samples, _ = soundfile.read(self.out / row["path"], dtype="int16")
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
        turn = ["en-00", "ka-00", "fa-00", "en-01", "ka-01", "fa-01"]
        self.assertEqual([Path(row["path"]).stem[:5] for row in self.rows], turn * 2)
        self.assertEqual([row["language"] for row in self.rows], ["en", "ka", "fa"] * 4)

    def test_each_speaker_speaks_every_language(self):
        speakers = [row["speaker"] for row in self.rows]
        self.assertEqual(speakers, (["speaker-00"] * 3 + ["speaker-01"] * 3) * 2)

    def test_texts_are_distinct(self):
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
        synthesize("Something in between.", EspeakVoice("en", "m3"))
        again = self.folder / "again"
        make_demo_corpus(again, **ARGUMENTS)
        self.assertEqual(digests(again), digests(self.out))
        flags = [
            "--utterances",
            "12",
            "--languages",
            "en",
            "ka",
            "fa",
            "--speakers",
            "2",
            "--seed",
            "3",
        ]
        run = utility(["--out", "elsewhere", *flags], self.folder)
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
        voices = [_voice("ka", speaker) for speaker in range(MAX_SPEAKERS)]
        self.assertEqual(len(set(voices)), MAX_SPEAKERS)


class Rejected(unittest.TestCase):
    def setUp(self):
        self.parent = temporary_folder(self.addCleanup)
        self.out = self.parent / "demo"

    def assert_rejected(self, pattern: str, **arguments) -> None:
        with self.assertRaisesRegex(DataError, pattern):
            make_demo_corpus(
                self.out,
                **{"utterances": 2, "languages": ["en"], "speakers": 1, "seed": 0, **arguments},
            )

    def test_arguments_out_of_range_are_rejected(self):
        self.assert_rejected("at least 1", utterances=0)
        self.assert_rejected(f"1 to {MAX_SPEAKERS}", speakers=MAX_SPEAKERS + 1)
        self.assert_rejected(
            f"Begin with 0 to {MAX_SPEAKERS - 2}", speakers=2, first_speaker=MAX_SPEAKERS - 1
        )
        self.assert_rejected("Begin with 0", first_speaker=-1)
        self.assert_rejected("de.*en, fa, ka", languages=["en", "de"])
        self.assert_rejected("once", languages=["en", "en"])
        self.assert_rejected("at least one", languages=[])
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_error_for_too_many_utterances_names_the_number_of_sentences(self):
        distinct = sum(load_grammar("fa").sizes())
        self.assert_rejected(
            f"{distinct + 1} utterances.* {distinct} distinct",
            utterances=distinct + 1,
            languages=["fa"],
        )

    def test_a_huge_number_of_utterances_is_rejected_at_once(self):
        self.assert_rejected("distinct sentences", utterances=10**20)

    def test_folder_with_other_content_is_not_changed(self):
        self.out.mkdir()
        (self.out / "thesis.txt").write_text("mine")
        self.assert_rejected("is not a demo corpus")
        self.assertEqual([path.name for path in self.out.iterdir()], ["thesis.txt"])
        self.assertEqual((self.out / "thesis.txt").read_text(), "mine")

    def test_file_at_the_output_path_is_rejected(self):
        self.out.write_text("mine")
        self.assert_rejected("is not a demo corpus")
        self.out = self.out / "below"
        self.assert_rejected("cannot be written")

    def test_a_missing_wave_is_detected(self):
        make_demo_corpus(self.out, 2, ["en"], 1, 0)
        next((self.out / "wavs").iterdir()).unlink()
        self.assert_rejected("2 waves, but it has 1")

    def test_an_interrupt_leaves_no_files(self):
        done = []

        def interrupt() -> None:
            done.append(1)
            if len(done) == 2:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            make_demo_corpus(self.out, 5, ["en"], 1, 0, interrupt)
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_utility_exits_with_2_and_one_message(self):
        run = utility(["--languages", "xx"], self.parent)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertNotIn("Traceback", run.stderr)
        self.assertIn("en, fa, ka", run.stderr)


class Grammars(unittest.TestCase):
    def test_every_sentence_is_distinct_and_clean(self):
        for language in grammar_languages():
            grammar = load_grammar(language)
            sentences = {
                grammar.sentence(template, number)
                for template, size in zip(grammar.templates, grammar.sizes(), strict=True)
                for number in range(size)
            }
            self.assertEqual(len(sentences), sum(grammar.sizes()))
            self.assertGreater(len(sentences), 1500)
            for sentence in sentences:
                self.assertEqual(sentence, " ".join(sentence.split()))
                self.assertIn(sentence[-1], ".?؟")
                self.assertNotIn("|", sentence)

    def test_every_slot_is_used_and_holds_texts(self):
        for language in grammar_languages():
            grammar = load_grammar(language)
            for name, choices in grammar.slots.items():
                self.assertTrue(
                    any(f"{{{name}}}" in template for template in grammar.templates), name
                )
                self.assertTrue(all(isinstance(choice, str) for choice in choices), choices)

    def test_whole_georgian_alphabet_occurs(self):
        letters = {
            letter
            for choices in load_grammar("ka").slots.values()
            for choice in choices
            for letter in choice
        }
        self.assertEqual({chr(code) for code in range(0x10D0, 0x10F1)} - letters, set())


def utility(flags: list[str], folder) -> subprocess.CompletedProcess:
    program = REPOSITORY / "utilities" / "make_demo_corpus.py"
    return subprocess.run(
        [sys.executable, program, *flags], cwd=folder, capture_output=True, text=True
    )


if __name__ == "__main__":
    unittest.main()
