"""The manifest: usable utterances as columns, and a reason for each rejected row."""

import csv
import hashlib
import io
import os
import shutil
import struct
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.audio_file import read_pcm, resampled_length
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.sound_header import UnusableAudio, read_header
from myxtts.base.errors import DataError
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import UNKNOWN_LANGUAGE, UNKNOWN_SYMBOL, build_manifest, report_rejected
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule, Vocabulary, difference, read_manifest
from myxtts.text.symbols import SymbolTable
from tests.fixtures import temporary_folder


def letters(text, language, frontend):
    """Return one symbol for each letter; the language xx is unknown."""
    if language == "xx":
        raise DataError("no voice for 'xx'")
    return [letter for letter in text if letter.isalpha()]


def chunk(name, body, promised=None):
    length = len(body) if promised is None else promised
    return name + struct.pack("<I", length) + body + b"\0" * (len(body) % 2)


def pcm_format(tag=1, channels=1, rate_hz=SAMPLE_RATE_HZ, bits=16, more=b""):
    frame_bytes = channels * bits // 8
    values = tag, channels, rate_hz, rate_hz * frame_bytes, frame_bytes, bits
    return chunk(b"fmt ", struct.pack("<HHIIHH", *values) + more)


def riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


PCM_SUBFORMAT = bytes.fromhex("0100000000001000800000aa00389b71")
DATA = chunk(b"data", np.arange(10_000, dtype="<i2").tobytes())
LONG = struct.pack("<HHI", 22, 16, 4) + PCM_SUBFORMAT
WAV_FILES = {  # name: (file content, whether TensorFlow decodes it)
    "plain": (riff(pcm_format(), DATA), True),
    "format of 18 bytes": (riff(pcm_format(more=b"\0\0"), DATA), True),
    "chunk between": (riff(pcm_format(), chunk(b"LIST", b"abcd"), DATA), True),
    "chunk behind": (riff(pcm_format(), DATA, chunk(b"LIST", b"abcd")), True),
    "odd chunk between": (riff(pcm_format(), chunk(b"LIST", b"abc"), DATA), False),
    "odd chunk behind": (riff(pcm_format(), DATA, chunk(b"LIST", b"abc")), False),
    "junk in front": (riff(chunk(b"JUNK", b"\0" * 28), pcm_format(), DATA), False),
    "bytes behind": (riff(pcm_format(), DATA) + b"\0\0", False),
    "extensible": (riff(pcm_format(tag=0xFFFE, more=LONG), DATA), False),
    "long format": (riff(pcm_format(more=LONG), DATA), False),
    "stereo": (riff(pcm_format(channels=2), DATA), False),
    "8 bit": (riff(pcm_format(bits=8), DATA), False),
    "44.1 kHz": (riff(pcm_format(rate_hz=44_100), DATA), False),
    "streamed": (riff(pcm_format(), chunk(b"data", DATA[8:], promised=0xFFFFFFFF)), False),
}


SETTINGS = {"min_seconds", "max_seconds", "text_frontend", "text_normaliser", "lexicon", "trim"}


class CorpusCase(unittest.TestCase):
    """A CSV corpus of sounds in a temporary folder."""

    def setUp(self):
        self.outside = temporary_folder(self.addCleanup)
        self.folder = self.outside / "corpus"
        self.folder.mkdir()
        self.lines = ["path,text,speaker,language"]

    def add(self, name, text="hello", speaker="s", language="en"):
        self.lines.append(f"{name},{text},{speaker},{language}")
        return self.folder / name

    def sound(self, name, samples=22_050, rate_hz=SAMPLE_RATE_HZ, channels=1, subtype=None, **row):
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, (samples, channels))
        soundfile.write(self.add(name, **row), wave, rate_hz, subtype)

    def rows(self):
        (self.folder / "list.csv").write_text("\n".join(self.lines))
        return read_corpus(self.folder / "list.csv", "en")

    def build(self, **arguments):
        values = {name: arguments.pop(name) for name in SETTINGS & arguments.keys()}
        data = DataConfig().model_copy(update={"text_frontend": "characters"} | values)
        with mock.patch("myxtts.text.frontend.symbols_of", side_effect=letters) as self.symbols_of:
            return build_manifest(self.rows(), data, LengthRule(), **arguments)

    def assert_rejected(self, expected, **arguments):
        """Check that exactly the rows of `expected` (audio: reason) are rejected, in its order."""
        manifest, _, rejected = self.build(**arguments)
        found = [(row.audio, row.reason) for row in rejected]
        self.assertEqual(found, [*expected.items()])
        self.assertEqual(len(manifest), len(self.lines) - 1 - len(expected))
        for row in rejected:
            self.assertEqual(row.metadata, str(self.folder / "list.csv"))
            self.assertEqual(self.lines[row.line - 1].split(",")[0], row.audio)


class Columns(CorpusCase):
    def test_lengths_count_samples_after_resampling(self):
        self.sound("a.wav", 30_000)
        self.sound("b.wav", 60_000, 44_100)
        self.sound("c.flac", 30_000, 48_000)
        self.sound("d.wav", 20_000, channels=2)
        self.sound("e.ogg", 25_000)
        self.sound("f.wav", 25_000, subtype="PCM_24")
        manifest, _, rejected = self.build()
        self.assertEqual(rejected, [])
        expected = [30_000, 30_000, 13_781, 20_000, 25_000, 25_000]
        self.assertEqual(manifest.samples.tolist(), expected)
        self.assertEqual(manifest.native.tolist(), [True] + 5 * [False])
        self.assertEqual(manifest.paths[2], os.path.realpath(self.folder / "c.flac"))

    def test_tokens_speakers_and_languages_are_rows_of_the_vocabulary(self):
        self.sound("a.wav", text="ba", speaker="zoe")
        self.sound("b.wav", text="cab", speaker="ann", language="ka")
        manifest, vocabulary, _ = self.build()
        self.assertEqual(vocabulary.symbols.symbols, ("a", "b", "c"))
        self.assertEqual(manifest.tokens.tolist(), [1, 4, 3, 2, 1, 5, 3, 4, 2])
        self.assertEqual(manifest.token_start.tolist(), [0, 4])
        self.assertEqual(manifest.token_counts.tolist(), [4, 5])
        self.assertEqual((vocabulary.speakers, manifest.speaker.tolist()), (("ann", "zoe"), [1, 0]))
        self.assertEqual((vocabulary.languages, manifest.language.tolist()), (("en", "ka"), [0, 1]))
        actual = manifest.padded_tokens(np.array([1]), 2, 6).tolist()
        self.assertEqual(actual, [[1, 5, 3, 4, 2, 0], [0] * 6])

    def test_dtypes_match_the_contract_even_without_utterances(self):
        self.add("empty.wav").write_bytes(b"")
        empty = self.build()[0]
        self.sound("a.wav")
        for manifest in (empty, self.build()[0]):
            columns = [(name, c) for name, c in vars(manifest).items() if hasattr(c, "dtype")]
            integers = dict.fromkeys(
                ("samples", "tokens", "token_counts", "speaker", "language"), "int32"
            )
            self.assertEqual(
                {name: str(column.dtype) for name, column in columns},
                integers | {"native": "bool", "token_start": "int64", "starts": "int64"},
            )

    def test_vocabulary_excludes_rejected_rows(self):
        self.sound("a.wav", text="ab")
        self.sound("short.wav", 100, text="z", speaker="gone", language="ka")
        _, vocabulary, _ = self.build()
        actual = (vocabulary.symbols.symbols, vocabulary.speakers, vocabulary.languages)
        self.assertEqual(actual, (("a", "b"), ("s",), ("en",)))

    def test_validation_uses_the_vocabulary_of_training_and_may_add_speakers(self):
        self.sound("a.wav", text="ab")
        vocabulary = self.build()[1]
        self.lines[1:] = []
        self.sound("b.wav", text="ba", speaker="new")
        self.sound("c.wav", text="abz")
        self.sound("d.wav", text="ab", language="ka")
        manifest, extended, rejected = self.build(vocabulary=vocabulary)
        self.assertEqual(manifest.ids, ("b.wav",))
        self.assertEqual((extended.speakers, manifest.speaker.tolist()), (("s", "new"), [1]))
        found = [(row.reason, row.detail) for row in rejected]
        self.assertEqual(found, [(UNKNOWN_SYMBOL, "z"), (UNKNOWN_LANGUAGE, "ka")])

    def test_the_fingerprint_depends_on_the_content_only(self):
        self.sound("a.wav")
        self.sound("b.wav")
        first = self.build()[0].fingerprint
        os.utime(self.folder / "a.wav", (1, 1))
        self.assertEqual(self.build()[0].fingerprint, first)
        for column, value in ((1, "hallo"), (2, "else"), (3, "xx")):  # text, speaker, language
            fields = self.lines[1].split(",")
            fields[column] = value
            changed = [self.lines[0], ",".join(fields), self.lines[2]]
            with self.subTest(changed[1]), mock.patch.object(self, "lines", changed):
                self.assertNotEqual(self.build()[0].fingerprint, first)

    def test_the_result_does_not_depend_on_the_number_of_threads(self):
        for number in range(600):
            content = riff(pcm_format(), chunk(b"data", bytes(2 * (10_000 + number))))
            self.add(f"u{number}.wav").write_bytes(content)
        with mock.patch("myxtts.corpus.build.HEADER_THREADS", 1):
            manifest = self.build()[0]
        threaded = self.build()[0]
        self.assertEqual(manifest.ids, threaded.ids)
        self.assertEqual(threaded.samples.tolist(), list(range(10_000, 10_600)))


class RejectedRows(CorpusCase):
    def test_unreadable_files_are_rejected(self):
        self.sound("good.wav")
        self.add("missing.wav")
        self.add("empty.wav").write_bytes(b"")
        self.add("folder.wav").mkdir()
        self.add("text.wav").write_text("this is no sound")
        self.add("samples.raw").write_bytes(b"\0" * 9_000)
        os.mkfifo(self.add("pipe.wav"))
        os.symlink("loop.wav", self.add("loop.wav"))
        long = "x" * 300 + ".wav"
        self.add(long)
        reasons = {"missing.wav": "missing file", "empty.wav": "empty file"}
        reasons |= dict.fromkeys(("folder.wav", "text.wav", "samples.raw"), "unreadable")
        reasons |= {"folder.wav": "not a file", "pipe.wav": "not a file"}
        self.assert_rejected(reasons | {"loop.wav": "unreadable", long: "unreadable"})

    def test_a_wrong_suffix_is_accepted(self):
        self.sound("a.wav")
        os.rename(self.folder / "a.wav", self.folder / "a.txt")
        self.lines[1] = "a.txt,hello,s,en"
        self.assert_rejected({})

    def test_truncated_files_are_rejected(self):
        for name in ("a.wav", "b.flac", "c.mp3"):
            self.sound(name)
            content = (self.folder / name).read_bytes()
            (self.folder / name).write_bytes(content[: len(content) * 9 // 10])
        self.add("d.wav").write_bytes(riff(pcm_format(), DATA)[:30])
        truncated = dict.fromkeys(("a.wav", "b.flac", "c.mp3"), "truncated")
        self.assert_rejected(truncated | {"d.wav": "unreadable"})

    def test_inconsistent_headers_are_rejected(self):
        self.sound("good.wav")
        self.add("two.wav").write_bytes(riff(pcm_format(), DATA, DATA))
        self.add("slow.wav").write_bytes(riff(pcm_format(rate_hz=10), DATA))
        self.add("fast.wav").write_bytes(riff(pcm_format(rate_hz=2**31 - 1), DATA))
        self.sound("stream.flac")
        content = bytearray((self.folder / "stream.flac").read_bytes())
        # 36 bits of STREAMINFO: unknown length.
        content[21:26] = bytes([content[21] & 0xF0, 0, 0, 0, 0])
        (self.folder / "stream.flac").write_bytes(content)
        names = "slow.wav", "fast.wav", "stream.flac"
        reasons = {"two.wav": "joined"} | dict.fromkeys(names, "unreadable")
        self.assert_rejected(reasons, max_seconds=1e99)

    def test_non_finite_samples_are_rejected_with_their_position(self):
        for name, value in (("nan.wav", np.nan), ("infinite.wav", np.inf), ("fine.wav", 0.0)):
            wave = np.zeros((100_000, 2))
            wave[70_000, 1] = value
            soundfile.write(self.add(name), wave, SAMPLE_RATE_HZ, "FLOAT")
        found = [(row.audio, row.reason, row.detail) for row in self.build()[2]]
        names = "nan.wav", "infinite.wav"
        self.assertEqual(found, [(name, "not finite", "sample 70000") for name in names])

    def test_samples_of_a_float_file_that_is_too_long_are_not_read(self):
        self.sound("a.wav", 30_000, subtype="FLOAT")
        with mock.patch("myxtts.corpus.build.check_finite") as check_finite:
            self.assert_rejected({"a.wav": "too long"}, max_seconds=1.0)
            check_finite.assert_not_called()
            self.assert_rejected({})
            check_finite.assert_called_once()

    def test_lengths_outside_the_inclusive_limits_are_rejected(self):
        for name, samples in zip("abcd", (11_024, 11_025, 22_050, 22_051), strict=True):
            self.sound(f"{name}.wav", samples)
        expected = {"a.wav": "too short", "d.wav": "too long"}
        self.assert_rejected(expected, min_seconds=0.5, max_seconds=1.0)

    def test_unusable_texts_are_rejected(self):
        self.sound("a.wav", text="")
        self.sound("b.wav", text="?! 12")
        self.sound("c.wav", language="xx")
        self.sound("d.wav", 7_679, text="x" * 28)  # 29 frames, 30 tokens
        self.sound("e.wav", 7_680, text="x" * 28)  # 30 frames
        expected = {"a.wav": "no text", "b.wav": "no text", "c.wav": "text cannot be read"}
        self.assert_rejected(expected | {"d.wav": "audio too short for its text"})

    def test_names_that_lead_out_of_the_corpus_folder_are_rejected(self):
        self.sound("good.wav")
        for place in ("outside.wav", "corpus-of-another/a.wav"):
            (self.outside / place).parent.mkdir(exist_ok=True)
            (self.outside / place).write_bytes((self.folder / "good.wav").read_bytes())
        relative = "../outside.wav", "../corpus-of-another/a.wav", "x/../../outside.wav"
        paths = *relative, "/etc/passwd", str(self.outside / "outside.wav")
        for path in paths:
            self.add(path)
        self.assert_rejected(dict.fromkeys(paths, "outside the corpus folder"))

    def test_links_lead_anywhere(self):
        """Layouts of Hugging Face's cache, DVC, git-annex, and a folder of a shared disk."""
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 22_050))
        stored = ("hub/blobs/3f2a", "dvc/cache/files/md5/ab/cdef", "annex/SHA256E-s9--a.wav")
        for place, samples in zip((*stored, "shared/d.wav"), wave, strict=True):
            (self.outside / place).parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(self.outside / place, samples, SAMPLE_RATE_HZ, format="WAV")
        names = ("a.wav", "sub/b.wav", "c.wav")
        for name, place in zip(names, stored, strict=True):
            link = self.add(name)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(self.outside / place, link.parent))
        os.symlink(self.outside / "shared", self.folder / "disk")
        self.add("disk/d.wav")
        os.symlink("nowhere.wav", self.add("dropped.wav"))  # as of `git annex drop`
        manifest, _, rejected = self.build()
        actual = [(row.audio, row.reason) for row in rejected]
        self.assertEqual(actual, [("dropped.wav", "missing file")])
        paths = list(manifest.paths)
        self.assertEqual(paths, [str(self.folder / name) for name in (*names, "disk/d.wav")])
        self.assertTrue(manifest.native.all())

    def test_a_linked_corpus_folder_may_be_named_by_its_target(self):
        self.sound("a.wav")
        self.add(str(self.folder / "b.wav")).write_bytes((self.folder / "a.wav").read_bytes())
        os.symlink(self.folder, self.outside / "link")
        self.folder = self.outside / "link"
        self.assertEqual(len(self.build()[0]), 2)

    def test_a_file_listed_twice_under_any_name_is_rejected(self):
        self.sound("a.wav")
        os.symlink("a.wav", self.add("b.wav"))
        for path in ("./a.wav", "x/../a.wav", str(self.folder / "a.wav")):
            self.add(path)
        rejected = self.build()[2]
        actual = [(row.reason, row.detail) for row in rejected]
        self.assertEqual(actual, [("duplicate path", "line 2 also names it")] * 4)


class RejectedReport(CorpusCase):
    def report(self, max_rejected):
        rows = self.rows()
        manifest, _, rejected = self.build()
        listing = self.outside / "rejected.csv"
        report_rejected([*rows.rejected, *rejected], [(rows, manifest)], max_rejected, listing)

    def test_the_listing_names_file_line_and_reason(self):
        (self.outside / "rejected.csv").write_text("of an earlier run")
        self.sound("a.wav")
        self.add('"b, c.wav"')
        self.lines.append("too,few")
        with self.assertLogs("myxtts.corpus.build", "WARNING") as logs:
            self.report(1.0)
        found = "2 of 3 utterances cannot be used (1 malformed row, 1 missing file; the first is"
        self.assertIn(f"{found} too: 2 fields", logs.output[0])
        with open(self.outside / "rejected.csv", newline="") as file:
            rows = list(csv.reader(file))
        name = str(self.folder / "list.csv")
        missing = [name, "3", "b, c.wav", "missing file", ""]
        malformed = [name, "4", "too", "malformed row", "2 fields, not 4"]
        self.assertEqual(rows[0], ["metadata", "line", "audio", "reason", "detail"])
        self.assertEqual(rows[1:], [missing, malformed])

    def test_only_a_fraction_above_max_rejected_is_an_error(self):
        self.sound("a.wav")
        self.add("b.wav")
        with self.assertLogs("myxtts.corpus.build", "WARNING"):
            self.report(0.5)
        message = r"1 of 2 .*1 missing file.*rejected\.csv.*--max-rejected"
        with self.assertRaisesRegex(DataError, message):
            self.report(0.49)
        self.assertTrue((self.outside / "rejected.csv").exists())

    def test_a_corpus_without_usable_rows_is_always_an_error(self):
        self.add("b.wav").write_bytes(b"")
        with self.assertRaisesRegex(DataError, r"no usable utterances"):
            self.report(1.0)


class Names(CorpusCase):
    def test_a_run_keeps_its_spelling_of_a_language(self):
        for name, language, frontend, known in (
            ("a.wav", "e\u0301", "characters", "e\u0301"),
            ("b.wav", "en", "phonemes", "EN"),
        ):
            del self.lines[1:]
            self.sound(name, language=language)
            vocabulary = Vocabulary(SymbolTable(tuple("helo")), (), (known,))
            manifest, extended, rejected = self.build(vocabulary=vocabulary, text_frontend=frontend)
            self.assertEqual((extended.languages, len(manifest), rejected), ((known,), 1, []))


class Cache(CorpusCase):
    def setUp(self):
        super().setUp()
        self.cache = self.outside / "manifest.npz"
        self.sound("a.wav", text="ab")
        self.sound("b.flac", text="ბა", speaker="t")
        self.add("missing.wav")

    def cached(self, **arguments):
        """Return the result and the texts that were read for it."""
        result = self.build(cache=self.cache, **arguments)
        return result, self.symbols_of.mock_calls

    def test_a_cached_result_is_the_same_and_reads_no_text(self):
        (first, vocabulary, rejected), _ = self.cached()
        (again, *others), read = self.cached()
        self.assertEqual(read, [])
        np.testing.assert_equal(vars(first), vars(again))
        self.assertEqual(first.fingerprint, again.fingerprint)
        self.assertEqual([vocabulary, rejected], others)

    def test_any_change_rebuilds_the_cache(self):
        self.cached()
        path = self.folder / "a.wav"
        content = path.read_bytes()

        def copy_another_file():  # as `cp --preserve` does
            path.write_bytes(content[:-2] + b"\1\1")
            os.utime(path, (1, 1))

        changes = {
            "time": lambda: os.utime(path, (1, 1)),
            "content": copy_another_file,
            "size": lambda: path.write_bytes(content[:-2] + b"\0" * 1_000),
            "new file": lambda: (self.folder / "missing.wav").write_bytes(content),
            "text": lambda: self.lines.__setitem__(1, "a.wav,ac,s,en"),
            "row": lambda: self.lines.pop(),
        }
        for name, change in changes.items():
            change()
            self.assertTrue(self.cached()[1], name)
            self.assertFalse(self.cached()[1], name)
        values = {"min_seconds": 0.31, "max_seconds": 19.0, "text_frontend": "phonemes"}
        values["trim"] = 40.0
        values["text_normaliser"] = "none"
        for name, value in values.items():
            self.assertTrue(self.cached(**{name: value})[1], name)
        self.cached(text_frontend="phonemes")
        lexicon = self.outside / "lexicon.tsv"
        lexicon.write_text("a\tb\n")
        self.assertTrue(self.cached(text_frontend="phonemes", lexicon=str(lexicon))[1])
        vocabulary = self.cached()[0][1]
        self.assertTrue(self.cached(vocabulary=vocabulary)[1])

    def test_what_differs_from_the_corpus_of_a_run_is_said_each_time(self):
        before = self.cached()[0][0].fingerprint
        header, first, second, _ = self.lines
        shutil.copy(self.folder / "a.wav", self.folder / "a.flac")
        was = r"row 1 was a.wav \(1.000 s, 'ab'\) and is"
        for rows, said in (
            ([second, first], rf"the same 2 training rows in another order; {was} b.flac"),
            ([first], r"1 training rows, and 2 before; row 2 was b.flac .* and is none"),
            ([first, second, "a.flac,c,s,en"], r"3 .* 2 before; row 3 was none and is a.flac"),
            (["a.flac,ab,s,en", second], rf"{was} a.flac \(1.000 s, 'ab'"),
            (["a.wav,ac,s,en", second], rf"{was} a.wav \(1.000 s, 'ac'"),
            (["a.wav,ab,t,en", second], "the same rows have other speakers, languages"),
        ):
            self.lines = [header, *rows]
            now = self.cached()[0][0]
            self.assertRegex(difference(self.cache, before, now), f"^: .*{said}")
            self.assertEqual(read_manifest(self.cache)[0].fingerprint, before)
        self.assertEqual(difference(self.cache, "of an older run", now), "")

    def test_a_damaged_cache_is_rebuilt_with_a_warning(self):
        self.cached()
        whole = self.cache.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for damaged in (b"", b"x", whole[:40], whole[:-1], bytes(flipped), whole + b"\0"):
            self.cache.write_bytes(damaged)
            with self.assertLogs("myxtts.corpus.manifest", "WARNING"):
                self.assertTrue(self.cached()[1])
            self.assertEqual(self.cache.read_bytes(), whole)

    def test_a_cache_of_another_version_is_rebuilt(self):
        self.cached()
        whole = self.cache.read_bytes()
        with np.load(self.cache) as arrays:
            columns = {"lengths" if name == "samples" else name: arrays[name] for name in arrays}
        body = io.BytesIO()
        np.savez(body, **columns)
        self.cache.write_bytes(body.getvalue() + hashlib.sha256(body.getvalue()).digest())
        self.assertTrue(self.cached()[1])
        self.assertEqual(self.cache.read_bytes(), whole)

    def test_the_cache_is_an_npz_without_pickles(self):
        self.cached()
        with np.load(self.cache, allow_pickle=False) as arrays:
            self.assertEqual(arrays["samples"].tolist(), [22_050, 22_050])
        names = sorted(path.name for path in self.outside.iterdir())
        self.assertEqual(names, ["corpus", "manifest.npz"])


class Native(unittest.TestCase):
    def setUp(self):
        self.path = str(temporary_folder(self.addCleanup) / "a.wav")

    def header(self, content):
        Path(self.path).write_bytes(content)
        return read_header(self.path)

    def test_native_formats_match_the_table_and_lengths_match_libsndfile(self):
        for name, (content, native) in WAV_FILES.items():
            header = self.header(content)
            self.assertEqual(header.native, native, name)
            self.assertEqual(header.samples, len(soundfile.read(self.path)[0]), name)

    def test_truncated_or_altered_headers_are_read_or_rejected(self):
        random = np.random.default_rng(0)
        base = riff(pcm_format(), chunk(b"LIST", b"abcd"), chunk(b"data", b"\0\1" * 50))
        for _ in range(1_000):
            length = random.integers(1, len(base)) if random.random() < 0.2 else len(base)
            content = bytearray(base[:length])
            content[random.integers(min(len(content), 60))] = random.choice([0, 1, 2, 127, 255])
            try:
                header = self.header(bytes(content))
            except UnusableAudio as error:
                self.assertIn(error.reason, ("unreadable", "truncated", "joined"))
            else:
                # Floats may not be finite.
                if not header.wide:
                    read_pcm(self.path, resampled_length(header.samples, header.rate_hz))
