"""One corpus, written in every layout, gives the same texts, speakers and samples."""

import io
import json
import os
import sys
import unittest
from collections.abc import Callable
from importlib import invalidate_caches
from pathlib import Path
from unittest import mock
from zlib import crc32

import numpy as np
import soundfile

from myxtts.audio.audio_file import read_pcm
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.members import store_of
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.corpus.rows import DEFAULT_SPEAKER
from tests.fixtures import FolderCase

# Speaker, text and length in seconds, which are whole samples.
UTTERANCES = (
    ("19", "One, two: three.", 0.5),
    ("103", "Four & five", 0.76),
    ("19", "six", 0.4),
    ("103", "Seven eight", 1.0),
)
GAP_S = 0.2
RANDOM = np.random.default_rng(7)
PCM = [RANDOM.integers(-9_000, 9_000, round(s * SAMPLE_RATE_HZ), np.int16) for *_, s in UTTERANCES]


class Corpus:
    """The utterances, and a folder to write them to."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    def lines(self, name: str, form: str, header: str = "") -> Path:
        """Write a line for each utterance, of {id}, {speaker}, {text}, {start}, {end}."""
        return self.write(name, header + "".join(form.format(**row) + "\n" for row in self.rows()))

    def rows(self) -> list[dict]:
        rows = []
        start = 0.0
        for number, (speaker, text, length_s) in enumerate(UTTERANCES):
            times = {"start": start, "end": start + length_s, "length": length_s}
            rows.append({"id": f"{speaker}_7_{number}", "speaker": speaker, "text": text, **times})
            start += length_s + GAP_S
        return rows

    def audio(self, form: str) -> None:
        """Write a file for each utterance."""
        for row, pcm in zip(self.rows(), PCM, strict=True):
            path = self.write(form.format(**row), "")
            soundfile.write(path, pcm, SAMPLE_RATE_HZ)

    def recording(self, name: str) -> None:
        """Write all utterances to one file."""
        gap = np.full(round(GAP_S * SAMPLE_RATE_HZ), 9_999, np.int16)
        parts = []
        for pcm in PCM:
            parts += [pcm, gap]
        soundfile.write(self.write(name, ""), np.concatenate(parts), SAMPLE_RATE_HZ)

    def json_lines(self, name: str, entries: list[dict]) -> Path:
        return self.write(name, "".join(json.dumps(entry) + "\n" for entry in entries))


def festvox(corpus):
    corpus.audio("wav/{id}.wav")
    corpus.lines("etc/txt.done.data", '( {id} "{text}" )')


def kaldi(corpus):
    corpus.audio("audio/{id}.flac")
    corpus.lines("data/train/wav.scp", f"{{id}} flac -c -d -s {corpus.folder}/audio/{{id}}.flac |")
    corpus.lines("data/train/text", "{id} {text}")
    corpus.lines("data/train/utt2spk", "{id} {speaker}")
    return corpus.folder / "data" / "train"


def kaldi_segments(corpus):
    corpus.recording("audio/talk.flac")
    corpus.write("data/train/wav.scp", "talk audio/talk.flac\n")
    corpus.lines("data/train/segments", "{id} talk {start} {end}")
    corpus.lines("data/train/text", "{id} {text}")
    corpus.lines("data/train/utt2spk", "{id} {speaker}")
    return corpus.folder / "data" / "train"


def nemo(corpus):
    corpus.recording("talk.wav")
    keys = {"audio_filepath": str(corpus.folder / "talk.wav")}
    rows = [
        keys
        | {"offset": row["start"], "duration": row["length"], "text": row["text"]}
        | {"speaker": int(row["speaker"])}
        for row in corpus.rows()
    ]
    return corpus.json_lines("manifests/train.json", rows)


def hugging_face(corpus):
    corpus.audio("data/{id}.flac")
    entries = [
        {"file_name": f"data/{row['id']}.flac", "transcription": row["text"], "note": [1]}
        | {"speaker_id": row["speaker"]}
        for row in corpus.rows()
    ]
    corpus.json_lines("metadata.jsonl", entries)


def lhotse(corpus):
    corpus.audio("download/{id}.wav")
    cuts = []
    for row in corpus.rows():
        source = {"type": "file", "channels": [0], "source": f"download/{row['id']}.wav"}
        recording = {"id": row["id"], "sources": [source], "sampling_rate": SAMPLE_RATE_HZ}
        said = {"id": row["id"], "start": 0.0, "duration": row["length"], "channel": 0}
        said |= {"text": row["text"], "speaker": row["speaker"], "language": "English"}
        cut = {"id": row["id"], "start": 0, "duration": row["length"], "type": "MonoCut"}
        cuts.append(cut | {"supervisions": [said], "recording": recording})
    return corpus.json_lines("data/manifests/cuts_train.jsonl", cuts)


def vctk(corpus):
    corpus.audio("wav48_silence_trimmed/{speaker}/{id}_mic1.flac")
    os.rename(
        corpus.folder / "wav48_silence_trimmed/103/103_7_1_mic1.flac",
        corpus.folder / "wav48_silence_trimmed/103/103_7_1_mic2.flac",
    )
    for row in corpus.rows():
        corpus.write(f"txt/{row['speaker']}/{row['id']}.txt", f"{row['text']}\n")


def libritts(corpus):
    corpus.audio("train-clean-100/{speaker}/7/{id}.wav")
    corpus.write("dev-clean/8/7/8_7_0.normalized.txt", "Not for training")
    for row in corpus.rows():
        name = f"train-clean-100/{row['speaker']}/7/{row['id']}"
        corpus.write(f"{name}.normalized.txt", row["text"])
        corpus.write(f"{name}.original.txt", "5")


def librispeech(corpus):
    for row, pcm in zip(corpus.rows(), PCM, strict=True):
        folder, name = f"{row['speaker']}/7", row["id"].replace("_", "-")
        path = corpus.write(f"{folder}/{name}.flac", "")
        soundfile.write(path, pcm, SAMPLE_RATE_HZ)
        listing = corpus.folder / folder / f"{row['speaker']}-7.trans.txt"
        before = listing.read_text() if listing.exists() else ""
        listing.write_text(f"{before}{name} {row['text']}\n")


def mls(corpus):
    corpus.audio("train/audio/{speaker}/7/{id}.flac")
    corpus.lines("train/transcripts.txt", "{id}\t{text}")
    corpus.write("dev/transcripts.txt", "8_7_0\tNot for training\n")


def named_texts(corpus):
    corpus.audio("sounds/{id}.wav")
    path = corpus.lines("list.txt", "{id}: {text}", "; a comment\n")
    return path, {"root": corpus.folder / "sounds"}


def parquet(corpus):
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {"audio": [], "sentence": [], "speaker_id": [], "path": []}
    for row, pcm in zip(corpus.rows(), PCM, strict=True):
        content = io.BytesIO()
        soundfile.write(content, pcm, SAMPLE_RATE_HZ, format="FLAC")
        audio = {"bytes": content.getvalue(), "path": f"{row['id']}.flac"}
        for column, value in zip(
            columns.values(), (audio, row["text"], int(row["speaker"]), "gone.wav"), strict=True
        ):
            column.append(value)
    for part, rows in enumerate((slice(0, 1), slice(1, 4))):
        path = corpus.write(f"data/train-{part}-of-2.parquet", "")
        write_table(pyarrow.table({k: v[rows] for k, v in columns.items()}), path)
    corpus.write("data/validation-0-of-1.parquet", "")


def clock(seconds: float, comma: str = ",") -> str:
    return f"00:{int(seconds // 60):02}:{seconds % 60:06.3f}".replace(".", comma)


def srt(corpus):
    corpus.recording("lectures/talk.ogg.flac")
    cues = [
        f"{number}\r\n{clock(row['start'])} --> {clock(row['end'])}\r\n<i>{row['text']}</i>\r\n"
        for number, row in enumerate(corpus.rows(), 1)
    ]
    corpus.write("lectures/talk.ogg.en.srt", "\r\n".join(cues))
    corpus.write("lectures/other.srt", cues[0])


def vtt(corpus):
    corpus.recording("talk.flac")
    cues = ["WEBVTT - a talk\n\nNOTE one: a comment\n"]
    for row in corpus.rows():
        text = row["text"].replace("&", "&amp;").replace(" ", "\n")
        times = f"{clock(row['start'], '.')[3:]} --> {clock(row['end'], '.')} align:start"
        cues.append(f"{times}\n<v {row['speaker']}>{text}\n")
    return corpus.write("talk.vtt", "\n".join(cues))


def m_ailabs(corpus):
    rows = {"19": [], "103": []}
    for row in corpus.rows():
        rows[row["speaker"]].append(f"{row['id']}|5|{row['text']}\n")
    for speaker, lines in rows.items():
        gender = "female" if speaker == "19" else "male"
        corpus.write(f"by_book/{gender}/{speaker}/a_book/metadata.csv", "".join(lines))
    corpus.audio("by_book/female/{speaker}/a_book/wavs/{id}.wav")
    (corpus.folder / "by_book/female/103").rename(corpus.folder / "away")
    (corpus.folder / "away/a_book/wavs").rename(corpus.folder / "by_book/male/103/a_book/wavs")


def common_voice(corpus):
    corpus.audio("clips/{id}.flac")
    header = "client_id\tpath\tsentence\tlocale\n"
    corpus.lines("train.tsv", "{speaker}\t{id}.mp3\t{text}\ten", header)


def piper(corpus):
    corpus.audio("wav/{id}.wav")
    corpus.lines("metadata.csv", "{id}|{speaker}|{text}")
    return corpus.folder, {"columns": ("path", "speaker", "text")}


def coqui(corpus):
    corpus.audio("wavs/{id}.wav")
    header = "audio_file|text|speaker_name\n"
    corpus.lines("metadata.csv", "wavs/{id}.wav|{text}|{speaker}", header)


def table_with_times(corpus):
    corpus.recording("talk.flac")
    header = "path,text,speaker,start,end\n"
    return corpus.lines("list.csv", 'talk.flac,"{text}",{speaker},{start},{end}', header)


# Layout: the function that writes it, and what the log says.
LAYOUTS: dict[Callable, str] = {
    festvox: "Festvox prompts; 4 rows in",
    kaldi: "Kaldi folder; 4 rows in",
    kaldi_segments: "Kaldi folder with segments; 4 rows in",
    nemo: "JSON lines, keys audio_filepath, offset, duration, text, speaker; 4 rows",
    hugging_face: "JSON lines, keys file_name, transcription, speaker_id; 4 rows",
    lhotse: "JSON lines, keys text, speaker, language, duration, path, start; 4 rows",
    vctk: "VCTK; 4 rows in",
    libritts: "LibriTTS tree; 4 rows in",
    librispeech: "LibriSpeech tree; 4 rows in",
    mls: "Multilingual LibriSpeech; 4 rows in",
    named_texts: "lines of name: text; 4 rows in",
    parquet: "parquet, columns audio, sentence, speaker_id; 4 rows in",
    srt: "subtitles; 4 rows in",
    vtt: "subtitles; 4 rows in",
    m_ailabs: "folders with metadata.csv; 4 rows in",
    common_voice: "table with tabs, columns client_id, path, sentence, locale; 4 rows",
    piper: "lines with |, columns path, speaker, text; 4 rows",
    coqui: "table with |, columns audio_file, text, speaker_name; 4 rows",
    table_with_times: "table with commas, columns path, text, speaker, start, end; 4 rows",
}
WITHOUT_SPEAKERS = (festvox, named_texts, srt)

PLUGIN = """
from myxtts.corpus.rows import Layout, Row


def read(options):
    listing = options.path / "corpus.toy"
    if not listing.exists():
        return None
    rows = []
    for line, content in enumerate(listing.read_text().splitlines(), 1):
        speaker, name, text = content.split("/")
        rows.append(Row(line, "", name, text, speaker, options.language))
    return Layout("toy corpus", listing, rows, [options.root or options.path])
"""


class EveryLayout(FolderCase):
    def setUp(self):
        super().setUp()
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        self.enterContext(mock.patch.dict(os.environ, cache))

    def manifest(self, path: Path, **options):
        rows = read_corpus(path, "en", **options)
        data = DataConfig(text_frontend="characters")
        manifest, vocabulary, rejected = build_manifest(rows, data, LengthRule())
        self.assertEqual((rows.rejected, rejected), ((), []))
        self.assertEqual({row.language for row in rows.rows}, {"en"})
        found = []
        for row, text in enumerate(manifest.texts):
            place = int(manifest.samples[row]), int(manifest.starts[row])
            pcm = read_pcm(manifest.paths[row], place[0], start=place[1])
            found.append((vocabulary.speakers[manifest.speaker[row]], text, crc32(pcm)))
        self.assertEqual(len(set(manifest.ids)), len(UTTERANCES))
        return rows, found

    def assert_same(self, found, has_speakers=True):
        expected = [
            (speaker if has_speakers else DEFAULT_SPEAKER, text, crc32(pcm))
            for (speaker, text, _), pcm in zip(UTTERANCES, PCM, strict=True)
        ]
        self.assertEqual(sorted(found), sorted(expected))

    def test_texts_speakers_and_samples_are_the_same(self):
        for write, form in LAYOUTS.items():
            with self.subTest(write.__name__):
                corpus = Corpus(self.folder / write.__name__)
                corpus.folder.mkdir()
                written = write(corpus) or corpus.folder
                path, options = written if isinstance(written, tuple) else (written, {})
                for _ in range(2):
                    rows, found = self.manifest(path, **options)
                    self.assert_same(found, write not in WITHOUT_SPEAKERS)
                    self.assertIn(form, rows.form)

    def rejected(self, path, **options):
        rows = read_corpus(path, "en", **options)
        _, _, unusable = build_manifest(rows, DataConfig(text_frontend="characters"), LengthRule())
        names = [(Path(row.metadata).name, row.line) for row in (*rows.rejected, *unusable)]
        details = [f"{row.reason}: {row.detail}" for row in (*rows.rejected, *unusable)]
        return dict(zip(names, details, strict=True))

    def test_rows_that_cannot_be_used_say_why(self):
        corpus = Corpus(self.folder)
        corpus.recording("a.wav")
        folder = corpus.write("kaldi/wav.scp", "a a.wav\nb rm -r / |\nc flac -cd a.wav|\n").parent
        corpus.write(
            "kaldi/segments", "1 a 0 0.5\n2 b 0 1\n3 x 0 1\n4 a 9\n5 c 1 1.5\n6 a 3.0 -1\n"
        )
        corpus.write("kaldi/text", "1 one\n2 two\n3 three\n4 four\n5 five\n6 six\n7 seven\n")
        found = self.rejected(folder)
        self.assertEqual([line for _, line in found], [2, 3, 4, 7])
        self.assertIn("malformed row: wav.scp has a command, which is not run", found["text", 2])
        for line in (3, 4, 7):
            self.assertIn("no recording, start and end in segments", found["text", line])

        entry = {"audio": {"path": "a.wav"}, "text": "one"}
        lines = [entry, entry | {"offset": 1, "duration": 0.5}, entry | {"offset": 9}]
        lines += [entry | {"offset": "soon"}, {"text": "x"}, entry | {"offset": 1, "end": -1}, 5]
        path = corpus.json_lines("list.jsonl", lines)
        found = {line: detail for (_, line), detail in self.rejected(path).items()}
        stretch = "not in the recording: 9.000 s to 3.460 s, but the file has 3.460 s"
        self.assertEqual(found.pop(3), stretch)
        self.assertIn("no number of seconds: could not convert string to float: 'soon'", found[4])
        self.assertEqual([*found], [4, 5, 6, 7])

        cues = "00:00.000 --> 00:00.500\none\n\n00:01 --> 2\ntwo\n\n00:01.0 --> 00:04.1\nthree\n"
        found = self.rejected(corpus.write("a.vtt", f"WEBVTT\n\n{cues}"))
        self.assertEqual(found["a.vtt", 6], "malformed row: no times: 00:01 --> 2")
        self.assertIn("not in the recording: 1.000 s to 4.100 s", found["a.vtt", 9])

    def test_texts_all_in_capitals_are_not_spelt(self):
        for name, lines, expected in (
            ("capitals", "1-7-0 IT TOLD US\n1-7-1 5\n", ["it told us", "5"]),
            ("mixed", "1-7-0 IT TOLD US\n1-7-1 Us\n", ["IT TOLD US", "Us"]),
        ):
            corpus = Corpus(self.folder / name)
            corpus.write("1/7/1-7-0.flac", "")
            corpus.write("1/7/1-7.trans.txt", lines)
            rows = read_corpus(corpus.folder, "en")
            self.assertEqual([row.text for row in rows.rows], expected)
            self.assertEqual("tree, texts in lower case; 2 rows" in rows.form, name == "capitals")

    def test_corpora_that_cannot_be_read_say_what_to_do(self):
        corpus = Corpus(self.folder)
        broken = corpus.write("a.parquet", "PAR1")
        for path, message in (
            (broken, "a.parquet cannot be read: .* Restore the file"),
            (corpus.write("b.srt", "1\n00:00:01,0 --> 00:00:02,0\nx\n"), "'b.wav' is not in"),
            (corpus.write("kaldi/wav.scp", "a a.wav\n").parent, "kaldi/text cannot be read"),
        ):
            with self.assertRaisesRegex(DataError, message):
                read_corpus(path, "en")
        missing = "a.parquet needs pyarrow, .* pip install pyarrow"
        without = mock.patch.dict(sys.modules, pyarrow=None)
        with without, self.assertRaisesRegex(ConfigError, missing):
            read_corpus(broken, "en")

    def test_a_package_is_asked_for_only_by_the_form_that_needs_it(self):
        corpus = Corpus(self.folder)
        (self.folder / "empty").mkdir()
        forms = DataError, "no metadata.csv or other layout"
        without = mock.patch.dict(sys.modules, obstore=None, pyarrow=None)
        for path, (kind, message) in (
            (self.folder / "empty", forms),
            (corpus.write("audio/wavs/a.wav", "").parents[1], forms),
            (corpus.write("archive/a.tar.gz", "").parent, forms),
            (corpus.write("tars/a.tar", "").parent, (ConfigError, "tars needs obstore, .* pip")),
        ):
            store_of.cache_clear()
            with self.subTest(path), without, self.assertRaisesRegex(kind, message):
                read_corpus(path, "en")

    def test_a_plugin_of_a_few_lines_adds_another(self):
        corpus = Corpus(self.folder / "toy")
        corpus.audio("{id}.wav")
        corpus.lines("corpus.toy", "{speaker}/{id}.wav/{text}")
        entry_point = "[myxtts.corpora]\ntoy = toy_layout:read\n"
        package = self.write_package("toy_layout", PLUGIN, entry_point)
        with mock.patch.object(sys, "path", [str(package), *sys.path]):
            invalidate_caches()
            rows, found = self.manifest(corpus.folder)
            self.assert_same(found)
            self.assertIn("toy corpus; 4 rows in", rows.form)
            (package / "toy_layout.py").write_text("import nothing_of_this_name\n")
            sys.modules.pop("toy_layout")
            invalidate_caches()
            with self.assertRaisesRegex(ConfigError, "'toy' .*cannot be loaded: No module named"):
                read_corpus(corpus.folder, "en")


if __name__ == "__main__":
    unittest.main()
