"""A packed corpus gives the manifest of the files that were packed, and their samples."""

import csv
import json
import os
import shutil
import tarfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import obstore
import soundfile

from myxtts.audio.audio_file import read_pcm
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base import members
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.members import member_of
from myxtts.batches.shard_cache import ShardCache
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import UNKNOWN_SYMBOL, build_manifest
from myxtts.corpus.layouts import hold_out, leave_out, read_corpus
from myxtts.corpus.manifest import LengthRule, Manifest, Vocabulary
from myxtts.extras.store import pack_command as pack
from myxtts.text.symbols import SymbolTable
from tests.fixtures import FolderCase, entered

DATA = DataConfig(text_frontend="characters", max_seconds=3.0)
RULES = LengthRule(), LengthRule(ctc=True, subsampling=4), None


class PackedCase(FolderCase):
    """A corpus of recordings of many formats, two of which cannot be used."""

    def setUp(self):
        super().setUp()
        random = np.random.default_rng(3)
        self.corpus = self.folder / "corpus"
        self.lines = ["path,text,speaker,language,start,end"]
        for name, rate_hz, channels, subtype, text in (
            ("native.wav", SAMPLE_RATE_HZ, 1, "PCM_16", "abba,ann,en"),
            ("stereo.wav", 44_100, 2, "PCM_16", "hello,bob,en"),
            ("float.wav", 16_000, 1, "FLOAT", "hallo,ann,de"),
            ("fine.flac", 48_000, 1, "PCM_24", "a b c,bob,en"),
            ("flac.flac", 22_050, 1, "PCM_16", "zzz,cy,en"),
            ("mp3.mp3", 44_100, 1, "MPEG_LAYER_III", "hello,bob,en"),
            ("short.wav", SAMPLE_RATE_HZ, 1, "PCM_16", f"{'long ' * 40},bob,en"),
        ):
            wave = random.uniform(-0.5, 0.5, (rate_hz * 3 // 4, channels))
            self.write(f"corpus/{name}")
            soundfile.write(self.corpus / name, wave, rate_hz, subtype)
            self.lines.append(f"{name},{text},,")
        soundfile.write(self.corpus / "long.wav", random.uniform(-0.5, 0.5, 16_000 * 9), 16_000)
        self.lines += [f"long.wav,part {n},dee,en,{n},{n + 1.5 + n}" for n in range(3)]
        self.write("corpus/broken.wav", b"RIFF")
        self.lines += ["broken.wav,broken,ann,en,,", "native.wav,again,ann,en,,", "two fields"]
        self.write("corpus/metadata.csv", "\n".join(self.lines) + "\n")

    def pack(self, out: str = "packed", *flags: str) -> Path:
        flags = flags or ("--train-data", str(self.corpus))
        reading = ("--text-frontend", "characters") if "vocoder" not in flags else ()
        pack.main([*flags, *reading, "--out", str(self.folder / out), "--max-rejected", "0.5"])
        return self.folder / out

    def parts(self, corpus: Path, rule: LengthRule | None, data: DataConfig = DATA, fraction=0.3):
        """Return the manifests to train and to validate on, their vocabularies and rejections."""
        halves = hold_out(read_corpus(corpus, "en", needs_text=rule is not None), fraction, 0)
        vocabulary, parts = None, []
        for rows in halves:
            manifest, vocabulary, rejected = build_manifest(rows, data, rule, vocabulary)
            faults = sorted((fault.reason, fault.detail) for fault in (*rows.rejected, *rejected))
            parts.append((manifest, vocabulary, faults))
        return parts

    def rejected(self, packed: Path) -> list[tuple[str, str]]:
        """Return the reasons and details that packing has listed."""
        with open(packed / "rejected.csv", newline="") as file:
            return [(row["reason"], row["detail"]) for row in csv.DictReader(file)]

    def assert_same(self, found: Manifest, expected: Manifest):
        for name in ("ids", "texts", "samples", "speaker", "language", "token_counts"):
            with self.subTest(name):
                self.assertEqual([*getattr(found, name)], [*getattr(expected, name)])
        every = np.arange(len(expected))
        tokens = (part.padded_tokens(every, len(every) + 1, 99) for part in (found, expected))
        np.testing.assert_array_equal(*tokens)
        for row in every:
            waves = (
                read_pcm(part.paths[row], int(part.samples[row]), start=int(part.starts[row]))
                for part in (found, expected)
            )
            np.testing.assert_array_equal(*waves)


def buckets_in(folder: Path, test: unittest.TestCase) -> None:
    """Let URLs of object stores name folders in a folder, until the test ends."""

    def bucket(url: str, **options) -> obstore.store.LocalStore:
        return obstore.store.LocalStore(folder / url.partition("://")[2], mkdir=True)

    entered(test.addCleanup, mock.patch("obstore.store.from_url", bucket))
    members.store_of.cache_clear()
    test.addCleanup(members.store_of.cache_clear)


class BucketTest(PackedCase):
    def setUp(self):
        super().setUp()
        buckets_in(self.folder, self)
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        entered(self.addCleanup, mock.patch.dict(os.environ, cache))
        self.corpus_url = "s3://bucket/corpus"
        flags = "--train-data", str(self.corpus), "--text-frontend", "characters"
        pack.main([*flags, "--out", self.corpus_url, "--max-rejected", "0.5"])

    def test_a_corpus_in_a_bucket_is_that_of_the_files(self):
        urls = self.corpus_url, self.corpus_url + "/"
        found, again, expected = (self.parts(each, RULES[0]) for each in (*urls, self.corpus))
        for part, other in zip(found, expected, strict=True):
            self.assert_same(part[0], other[0])
        self.assertTrue(found[0][0].paths[0].startswith("s3://bucket/corpus/shards/"))
        self.assertEqual(found[0][0].shard_cache, again[0][0].shard_cache)

    def test_what_was_read_is_kept_up_to_the_limit(self):
        manifest = self.parts(self.corpus_url, None, fraction=0.0)[0][0]
        packed = [members.member_of(path) for path in manifest.paths]
        shutil.copytree(self.folder / "bucket", self.folder / "copy")
        (killed := manifest.shard_cache / ".x.kept.0-1.partial").touch()
        kept = ShardCache(manifest.shard_cache, 1e9)
        self.assertFalse(killed.exists())
        contents = members.read_members(packed, kept.read)
        shutil.rmtree(self.folder / "bucket")
        self.assertEqual(members.read_members(packed, kept.read), contents)
        with self.assertRaisesRegex(DataError, "No such file"):
            members.read_member(packed[0])
        shutil.copytree(self.folder / "copy", self.folder / "bucket")
        for path in manifest.shard_cache.glob("*.kept"):
            path.unlink()
        most = 2 * sum(map(len, contents))
        for limit, size in ((0, 0), (most, most), (most, most)):
            bounded = ShardCache(manifest.shard_cache, limit)
            for number in range(40):
                renamed = packed[number % 9]._replace(name=str(number))
                self.assertEqual(bounded.read(renamed), contents[number % 9])
            kept = sum(path.stat().st_size for path in manifest.shard_cache.glob("*.kept"))
            self.assertLessEqual(kept, size)
            self.assertGreaterEqual(kept, 0.8 * size)


class PackedTest(PackedCase):
    def test_manifest_and_samples_are_those_of_the_files(self):
        packed = self.pack()
        for rule in RULES:
            halves = [self.parts(corpus, rule) for corpus in (packed, self.corpus)]
            for found, expected in zip(*halves, strict=True):
                with self.subTest(rule):
                    self.assert_same(found[0], expected[0])
                    self.assertEqual(found[1], expected[1])
            faults, expected = (sorted(half[0][2] + half[1][2]) for half in halves)
            self.assertEqual(sorted(faults + self.rejected(packed)), expected)
        whole = [self.parts(corpus, None, fraction=0.0)[0][0] for corpus in (packed, self.corpus)]
        self.assertGreater(len(whole[0]), 8)

    def test_fingerprint_is_that_of_whole_files(self):
        kept = [line for line in self.lines if not line.startswith("long")]
        self.write("corpus/metadata.csv", "\n".join(kept) + "\n")
        packed = self.pack()
        for rule in RULES:
            manifests = [self.parts(corpus, rule)[0][0] for corpus in (packed, self.corpus)]
            self.assertEqual(manifests[0].fingerprint, manifests[1].fingerprint)

    def test_slices_are_joined_to_the_same_corpus(self):
        packed = self.pack()
        for part in range(3):
            flags = "--train-data", str(self.corpus), "--slice", f"{part}/3"
            if part == 2:
                with self.assertRaisesRegex(DataError, "index-00001-of-00003.arrow: not all"):
                    self.pack("sliced", "--join")
            with mock.patch("myxtts.extras.store.packing.SHARD_BYTES", 100_000):
                self.pack("sliced", *flags)
        self.assertGreater(len([*(self.folder / "sliced/shards").glob("*.tar")]), 3)
        # Within one slice the second row is a duplicate; of two slices, one must be removed.
        with self.assertRaisesRegex(DataError, "two slices of .* have 'native.wav'"):
            self.pack("sliced", "--join")
        kept = [line for line in self.lines if not line.startswith("native.wav,again")]
        self.write("corpus/metadata.csv", "\n".join(kept) + "\n")
        for part in range(3):
            self.pack("sliced", "--train-data", str(self.corpus), "--slice", f"{part}/3")
        sliced = self.pack("sliced", "--join")
        self.assertEqual([path.name for path in sliced.glob("*.arrow")], ["index.arrow"])
        found, expected = (self.parts(each, RULES[0], fraction=0.0)[0] for each in (sliced, packed))
        self.assert_same(found[0], expected[0])
        self.assertEqual(found[1], expected[1])

    def test_known_vocabulary_is_kept_or_grows(self):
        packed = self.pack()
        known = Vocabulary(SymbolTable(("l", "o", "h", "e")), ("bob",), ("en", "de"))
        for grow in (False, True):
            found, expected = (
                build_manifest(read_corpus(each, "en"), DATA, LengthRule(), known, grow=grow)
                for each in (packed, self.corpus)
            )
            self.assert_same(found[0], expected[0])
            self.assertEqual(found[1], expected[1])
            reasons = [[fault.reason for fault in part[2]] for part in (found, expected)]
            listed = [reason for reason, _ in self.rejected(packed) if reason != "malformed row"]
            self.assertEqual(sorted(reasons[0] + listed), sorted(reasons[1]))
            self.assertEqual(UNKNOWN_SYMBOL in reasons[0], not grow)

    def test_rows_can_be_left_out(self):
        listing = self.write("excluded.csv", "path,reason\nstereo.wav,noise\n")
        (kept,), excluded = leave_out(str(listing), read_corpus(self.pack(), "en"))
        self.assertEqual([row.reason for row in excluded], ["excluded"])
        self.assertNotIn("stereo.wav", [*kept.rows.ids])

    def test_a_table_may_name_utterances_in_shards(self):
        manifest = self.parts(self.pack(), None, fraction=0.0)[0][0]
        name = Path(manifest.paths[0]).relative_to(self.folder)
        table = self.write("table.csv", f"path,text\n{name},abba\n")
        found = self.parts(table, LengthRule(), fraction=0.0)[0][0]
        self.assertEqual(found.paths, (manifest.paths[0],))
        self.assertEqual(found.ids, ("recording.00000000.tar/native.wav",))

    def test_shards_are_tar_files_of_flac_with_lhotse_cuts(self):
        shards = self.pack() / "shards"
        with tarfile.open(shards / "recording.00000000.tar") as tar:
            names = tar.getnames()
            recording = json.load(tar.extractfile(names[3]))
            second, rate_hz = soundfile.read(tar.extractfile(names[2]), dtype="int16")
        self.assertEqual(names[2:4], ["00000000-000001.flac", "00000000-000001.json"])
        self.assertEqual((recording["num_samples"], recording["channel_ids"]), (33_075, [0, 1]))
        original, _ = soundfile.read(self.corpus / "stereo.wav", dtype="int16")
        np.testing.assert_array_equal(second, original)
        self.assertEqual(rate_hz, 44_100)
        suffixes = [name.rpartition(".")[2] for name in names[::2]]
        self.assertEqual(suffixes, ["flac", "flac", "wav", "flac", "flac", "mp3"] + ["flac"] * 4)

    def test_other_settings_of_reading_are_refused(self):
        packed = self.pack()
        phonemes = DataConfig(text_frontend="phonemes")
        with self.assertRaisesRegex(DataError, "--text-frontend phonemes .* with characters"):
            self.parts(packed, LengthRule(), phonemes)
        with self.assertRaisesRegex(DataError, "--trim 40.0 was requested, .* with None"):
            self.parts(packed, None, DATA.model_copy(update={"trim": 40.0}))
        flags = "--train-data", str(self.corpus), "--task", "vocoder"
        with self.assertRaisesRegex(DataError, "packed with no texts"):
            self.parts(self.pack("waves", *flags), LengthRule())

    def test_mistakes(self):
        packed = self.pack()
        with self.assertRaisesRegex(DataError, "already holds a packed corpus"):
            self.pack()
        with self.assertRaisesRegex(ConfigError, "give one of them"):
            pack.main(["--out", str(packed)])
        with self.assertRaisesRegex(ConfigError, "must be I/N"):
            pack.main(["--out", str(packed), "--train-data", "a", "--slice", "3/3"])
        manifest = self.parts(packed, None)[0][0]
        shard = Path(member_of(manifest.paths[0]).tar)
        shard.write_bytes(shard.read_bytes()[:1000])
        with self.assertRaisesRegex(DataError, "recording.00000000.tar cannot be used"):
            read_pcm(manifest.paths[5], int(manifest.samples[5]))
        (packed / "index.arrow").write_bytes(b"ARROW1")
        with self.assertRaisesRegex(DataError, "Pack the corpus again"):
            read_corpus(packed, "en")
