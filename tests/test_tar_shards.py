"""Corpora of others in tar files: read, and packed, where they are."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.audio_file import read_pcm
from myxtts.base import members
from myxtts.base.errors import DataError
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule, Manifest
from myxtts.extras.store import pack_command as pack
from tests.fixtures import FolderCase, entered
from tests.test_packed import buckets_in

DATA = DataConfig(text_frontend="characters")
TEXTS = "one", "two", "three"
RATE_HZ = 16_000


class TarShardsTest(FolderCase):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(0)
        self.waves = [random.integers(-9_000, 9_000, RATE_HZ, np.int16) for _ in TEXTS]
        self.tars = self.folder / "tars"
        self.tars.mkdir()

    def sound(self, number: int, form: str = "FLAC") -> bytes:
        file = io.BytesIO()
        soundfile.write(file, self.waves[number], RATE_HZ, format=form)
        return file.getvalue()

    def tar(self, name: str, files: dict[str, bytes | str]) -> None:
        with tarfile.open(self.tars / name, "w") as tar:
            for file, content in files.items():
                content = content.encode() if isinstance(content, str) else content
                header = tarfile.TarInfo(file)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))

    def webdataset(self) -> None:
        self.tar(
            "a-000.tar",
            {
                "x/0.flac": self.sound(0),
                "x/0.json": json.dumps({"text": "one", "speaker": "ann", "path": "elsewhere"}),
                "x/1.txt": "two",
                "x/1.wav": self.sound(1, "WAV"),
            },
        )
        self.tar("a-001.tar", {"./2.flac": self.sound(2), "./2.txt": "three", "./3.txt": "alone"})

    def shar(self) -> None:
        both = np.concatenate(self.waves[:2])
        file = io.BytesIO()
        soundfile.write(file, both, RATE_HZ, format="FLAC")
        recording = {"sources": [{"type": "shar", "channels": [0], "source": ""}]}
        lengths_s = {"c0": 2.0, "c1": 1.0}
        cuts = [
            {"id": id_, "start": 0, "duration": length_s, "recording": recording}
            for id_, length_s in lengths_s.items()
        ]
        said = {"language": "English", "speaker": "ann"}
        cuts[0]["supervisions"] = [
            {"text": text, "start": start, "duration": 1.0, **said}
            for start, text in enumerate(TEXTS[:2])
        ]
        cuts[1]["supervisions"] = [{"text": "three", "start": 0.0, "duration": 0.996, **said}]
        lines = "".join(json.dumps(cut) + "\n" for cut in cuts)
        (self.tars / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        sounds = {"c0.flac": file.getvalue(), "c0.json": "{}", "c1.flac": self.sound(2)}
        self.tar("recording.000000.tar", sounds)

    def nemo(self) -> None:
        lines = []
        for number, text in enumerate(TEXTS):
            self.tar(f"audio_{number}.tar", {f"n{number}.flac": self.sound(number)})
            entry = {"audio_filepath": f"n{number}.flac", "text": text, "duration": 1.0}
            lines.append(json.dumps(entry | {"shard_id": number}) + "\n")
        (self.tars / "tarred_audio_manifest.json").write_text("".join(lines))

    def manifest(self, corpus: Path) -> Manifest:
        manifest, _, rejected = build_manifest(read_corpus(corpus, "en"), DATA, LengthRule())
        self.assertEqual(rejected, [])
        return manifest

    def assert_read(self, manifest: Manifest) -> None:
        self.assertEqual([*manifest.texts], [*TEXTS])
        for row, wave in enumerate(self.waves):
            path = self.folder / "whole.wav"
            soundfile.write(path, wave, RATE_HZ)
            samples = int(manifest.samples[row])
            found = read_pcm(manifest.paths[row], samples, start=int(manifest.starts[row]))
            # The ends of a stretch are resampled with what is beyond them.
            inner = slice(500, -500)
            difference = found[inner].astype(int) - read_pcm(path, samples)[inner]
            self.assertLessEqual(np.abs(difference).max(), 1)

    def test_each_form_is_read_and_packed_where_it_lies(self):
        for form in (self.webdataset, self.shar, self.nemo):
            with self.subTest(form.__name__):
                for path in self.tars.iterdir():
                    path.unlink()
                form()
                manifest = self.manifest(self.tars)
                self.assert_read(manifest)
                out = self.folder / f"packed-{form.__name__}"
                flags = "--train-data", str(self.tars), "--text-frontend", "characters"
                pack.main([*flags, "--out", str(out)])
                names = sorted(path.name for path in out.iterdir())
                self.assertEqual(names, ["index.arrow", "rejected.csv"])
                packed = self.manifest(out)
                self.assertEqual([*packed.paths], [*map(self.with_id, manifest.paths, packed.ids)])
                self.assertEqual(packed.fingerprint, manifest.fingerprint)
                self.assert_read(packed)

    def with_id(self, path: str, id_: str) -> str:
        return members.member_of(path)._replace(name=id_).address

    def test_a_cut_without_texts_is_audio_alone(self):
        self.shar()
        cuts = self.tars / "cuts.000000.jsonl.gz"
        lines = map(json.loads, gzip.decompress(cuts.read_bytes()).splitlines())
        bare = "".join(json.dumps(cut | {"supervisions": []}) + "\n" for cut in lines)
        cuts.write_bytes(gzip.compress(bare.encode()))
        found = read_corpus(self.tars, "en", needs_text=False).rows
        self.assertEqual([row.audio.rpartition("/")[2] for row in found], ["c0.flac", "c1.flac"])

    def test_a_bucket_of_tar_files_is_read_and_indexed(self):
        self.webdataset()
        buckets_in(self.folder, self)
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        entered(self.addCleanup, mock.patch.dict(os.environ, cache))
        manifest = self.manifest("s3://tars")
        self.assertIn("/a-000.tar@", manifest.paths[0])
        self.assertEqual(manifest.ids[0], "a-000.tar/x/0.flac")
        self.assert_read(manifest)

    def test_faults_are_named(self):
        self.tar("a.tar", {"0.flac": self.sound(0)})
        with self.assertRaisesRegex(DataError, "should have audio and texts, but have path"):
            read_corpus(self.tars, "en")
        self.assertEqual(len(read_corpus(self.tars, "en", needs_text=False).rows), 1)
        (self.tars / "b.tar").write_bytes(b"x" * 2_000)
        with self.assertRaisesRegex(DataError, "b.tar cannot be read"):
            read_corpus(self.tars, "en", needs_text=False)
        self.nemo()
        (self.tars / "a.tar").unlink()
        (self.tars / "b.tar").unlink()
        with open(self.tars / "tarred_audio_manifest.json", "a") as file:
            file.write('{"audio_filepath": "gone.flac", "text": "four"}\n')
        (lost,) = read_corpus(self.tars, "en").rejected
        self.assertEqual((lost.reason, lost.detail), ("malformed row", "no path"))
