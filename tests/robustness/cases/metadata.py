"""Metadata files that people and programs write: which rows are read, or why none is."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile

from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.corpus.rows import Rows
from tests.robustness.cases import Case, Lab, warnings

GOOD, TABLE = "20 rows", "data.csv"
CHARACTERS = DataConfig(text_frontend="characters")
Write = Callable[[int, str, str], str]


def lines(write: Write, before: str = "", after: str = "") -> Callable[[list], str]:
    """Return what makes a file of a line for each utterance: its number, name and text."""
    return lambda rows: (
        before + "".join(write(n, *row) + "\n" for n, row in enumerate(rows)) + after
    )


def table(column: str, value: Write, separator: str = ",", before: str = "") -> Callable:
    """Return what makes a table of path, text and another column."""
    header = separator.join(["path", "text", *filter(None, [column])])

    def write(n: int, i: str, t: str) -> str:
        return separator.join([f"wavs/{i}.wav", quoted(t), *filter(None, [value(n, i, t)])])

    return lines(write, f"{before}{header}\n")


def paths(path: Write) -> Callable:
    return lines(lambda n, i, t: f"{quoted(path(n, i, t))},{quoted(t)}", "path,text\n")


def objects(make: Write) -> Callable:
    return lines(lambda n, i, t: json.dumps(make(n, i, t)))


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def joined(middle: str, write: Write) -> Callable:
    """Return what makes two files of which one follows the other."""
    return lambda rows: lines(write)(rows[:10]) + middle + lines(write)(rows[10:])


PLAIN: Write = lambda n, i, t: f"{i}|{t}"  # noqa: E731

# Kind: name, file, content, and what is right: rows that are trained, and rejected ones.
FILES = {
    "placeholders": (
        ("normalised nan", "metadata.csv", lines(lambda n, i, t: f"{i}|{t}|{'nan' if n % 2 else t}"), f"{GOOD}; said 10 of 20 .*the text is used"),
        ("speaker nan", TABLE, table("speaker", lambda n, i, t: ("anna", "nan")[n % 2]), f"{GOOD}; speakers anna 10 default 10; said 10 of 20.*nan for a speaker.*"),
        ("language nan", TABLE, table("language", lambda n, i, t: ("en", "nan")[n % 4 == 3]), f"{GOOD}; said 5 of 20 .*nan for a language.*"),
        ("text null", "manifest.json", objects(lambda n, i, t: {"audio_filepath": f"wavs/{i}.wav", "text": None if n % 2 else t}), "10 rows, 10 no text(; said .*)?"),
        ("the word None", "metadata.csv", lines(lambda n, i, t: f"{i}|{t if n else 'None'}"), f"{GOOD}; said 1 of 20 .*read as a text.*"),
    ),
    "names of speakers": (
        ("two Unicode forms", TABLE, table("speaker", lambda n, i, t: ("Jos\u00e9", "Jose\u0301")[n % 2]), f"{GOOD}; speakers José 20"),
        ("two cases", TABLE, table("speaker", lambda n, i, t: ("Anna", "anna")[n % 2]), f"{GOOD}; speakers Anna 10 anna 10; said .*'Anna' and 'anna'.* differ in case.*"),
        ("zero width", TABLE, table("speaker", lambda n, i, t: ("anna", "anna\u200b")[n % 2]), f"{GOOD}; speakers anna 20"),
    ),
    "forms": (
        ("Excel's sep=", TABLE, table("", lambda n, i, t: "", ";", "\ufeffsep=;\n"), GOOD),
        ("pandas' index", TABLE, lines(lambda n, i, t: f"{n},wavs/{i}.wav,{quoted(t)}", ",path,text\n"), GOOD),
        ("Whisper", "metadata.json", lambda rows: json.dumps({"text": " Hi", "segments": [{"start": 0.0, "text": " Hi"}]}), "error: .*Of Whisper's transcripts, give subtitles.*"),
        ("list as text", "metadata.jsonl", objects(lambda n, i, t: {"audio": f"wavs/{i}.wav", "text": [t]}), "0 rows, 20 malformed row: the text should be a text.*"),
        ("object as text", "metadata.jsonl", objects(lambda n, i, t: {"audio": f"wavs/{i}.wav", "text": {"en": t}}), "0 rows, 20 malformed row: the text should be a text.*"),
        ("spaces around bars", "metadata.csv", lines(lambda n, i, t: f"{i} | {t} | {t}"), GOOD),
        ("some normalised", "metadata.csv", lines(lambda n, i, t: f"{i}|{t}|{t}" if n % 2 else f"{i}|{t}"), GOOD),
        ("one text", "metadata.csv", lines(lambda n, i, t: f"{i}|Hello there."), GOOD),
        ("one text twice", "metadata.csv", lines(lambda n, i, t: f"{i}|Hello there.|Hello there."), "error: .*as if it named speakers.*"),
        ("comment", "metadata.csv", lines(PLAIN, "# made by a script\n"), "error: .*form of .* is not recognised.*"),
        ("full-width bar", "metadata.csv", lines(lambda n, i, t: f"{i}\uff5c{t}"), "error: .*form of .* is not recognised.*"),
        ("marks of Whisper", "metadata.csv", lines(lambda n, i, t: f"{i}|<|en|><|0.00|>{t}<|3.20|>"), "error: .*form of .* is not recognised.*"),
        ("Kaldi's text alone", "text", lines(lambda n, i, t: f"{i} {t}"), "error: .*no metadata.csv or other layout.*"),
        ("JSON array", "metadata.json", lambda rows: json.dumps([{"audio": f"wavs/{i}.wav", "text": t} for i, t in rows]), f"{GOOD}|error: .*"),
        ("header twice", TABLE, lambda rows: "".join(2 * ["path,text\n"]) + "".join(f"wavs/{i}.wav,{quoted(t)}\n" for i, t in rows), f"{GOOD}, 1 missing file"),
        ("Ctrl-Z at the end", "metadata.csv", lines(PLAIN, after="\x1a"), f"{GOOD}, 1 malformed row.*"),
    ),
    "encodings": (
        ("UTF-16", "metadata.csv", lambda rows: lines(PLAIN)(rows).encode("utf-16"), "error: .*not UTF-8.*"),
        ("UTF-16 without mark", "metadata.csv", lambda rows: lines(PLAIN)(rows).encode("utf-16-le"), "error: .*UTF-16. Save it as UTF-8.*"),
        ("Latin-1", "metadata.csv", lambda rows: lines(lambda n, i, t: f"{i}|caf\u00e9 {t}")(rows).encode("latin-1"), "error: .*not UTF-8 at byte.*"),
        ("CRLF", "metadata.csv", lambda rows: lines(PLAIN)(rows).replace("\n", "\r\n"), GOOD),
        ("CR", "metadata.csv", lambda rows: lines(PLAIN)(rows).replace("\n", "\r"), GOOD),
        ("BOM", "metadata.csv", lines(PLAIN, "\ufeff"), GOOD),
        ("two BOMs", "metadata.csv", lines(PLAIN, "\ufeff\ufeff"), f"{GOOD}|19 rows, 1 missing file"),
        ("BOM inside", "metadata.csv", joined("\ufeff", PLAIN), f"{GOOD}|19 rows, 1 missing file"),
    ),
    "paths": (
        ("percent", TABLE, paths(lambda n, i, t: f"wavs/{i.replace('-', '%2D')}.wav"), "error: .*audio files .* found.*%2D.*"),
        ("file:", TABLE, paths(lambda n, i, t: f"file:///data/wavs/{i}.wav"), "error: .*audio files .* found.*file:.*"),
        ("Windows", TABLE, paths(lambda n, i, t: f"D:\\corpus\\wavs\\{i}.wav"), "error: .*audio files .* found.*D:.*"),
        ("folder in capitals", TABLE, paths(lambda n, i, t: f"{('wavs', 'Wavs')[n % 2]}/{i}.wav"), "10 rows, 10 missing file"),
        ("names in capitals", TABLE, paths(lambda n, i, t: f"wavs/{i.upper() if n % 2 else i}.wav"), "10 rows, 10 missing file"),
        ("suffix in capitals", TABLE, paths(lambda n, i, t: f"wavs/{i}.WAV"), GOOD),
        ("space at the end", TABLE, paths(lambda n, i, t: f"wavs/{i}.wav "), GOOD),
    ),
    "times": (
        ("comma", TABLE, lines(lambda n, i, t: f"wavs/{i}.wav;{t};0,1;0,9", "path;text;start;end\n"), "0 rows, 20 malformed row: .*"),
        ("hours", TABLE, table("start", lambda n, i, t: "00:00:00.1"), "0 rows, 20 malformed row: .*"),
        ("milliseconds", TABLE, table("start", lambda n, i, t: "100"), "0 rows, 20 not in the recording"),
        ("nothing is left", TABLE, lines(lambda n, i, t: f"wavs/{i}.wav,{quoted(t)},1.5,0.1", "path,text,start,end\n"), "0 rows, 20 not in the recording"),
    ),
}  # fmt: skip

FILE_NAMES = (
    *("a b", "a ", "a.", ".a", "-a", "a|b", "a,b", 'a"b', "it's", "a\tb", "a\nb", "a\\b", "%41"),
    *("~", "$HOME", "*", "#1", "\U0001f600", "\u202ea", "a\u200bb", "e\u0301", "A" * 200, "nan"),
)  # fmt: skip

CAPTIONS = (
    "the hungry goat watched us from",
    "the bushes nobody knew why captain",
    "young slept on the roof",
)
CUE_S = 2.4


def cases(lab: Lab) -> Iterator[Case]:
    for kind, files in FILES.items():
        for name, file, content, expected in files:
            yield Case(kind, name, expected, lambda f=(kind, name, file, content): _read(lab, *f))
    for name in FILE_NAMES:
        yield Case("file names", name, "1 rows", lambda n=name: _named(lab, n))
    for suffix in ("vtt", "srt"):
        expected = "; ".join(CAPTIONS)
        yield Case("rolling captions", suffix, expected, lambda s=suffix: _captions(lab, s))


def _read(lab: Lab, kind: str, name: str, file: str, content: Callable) -> str:
    folder = lab.folder / "metadata" / f"{kind} {name}"
    folder.mkdir(parents=True)
    (folder / "wavs").symlink_to(lab.demo / "wavs")
    written = content(lab.rows)
    (folder / file).write_bytes(written if isinstance(written, bytes) else written.encode())
    with warnings() as said:
        corpus = read_corpus(folder / file if "." in file else folder, "en")
    return _trained(corpus) + "".join(f"; said {line}" for line in said)


def _trained(corpus: Rows) -> str:
    """Return what would be trained of a corpus, and what is wrong with other rows."""
    manifest, vocabulary, rejected = build_manifest(corpus, CHARACTERS, LengthRule())
    reasons = Counter(row.reason for row in [*corpus.rejected, *rejected])
    found = f"{len(manifest)} rows"
    found += "".join(f", {count} {reason}" for reason, count in reasons.items())
    found += "".join(f": {row.detail}" for row in corpus.rejected[:1])
    if vocabulary.speakers not in ((), ("default",)):
        counts = Counter(row.speaker for row in corpus.rows)
        found += "; speakers " + " ".join(f"{name} {n}" for name, n in sorted(counts.items()))
    return found


def _named(lab: Lab, name: str) -> str:
    folder = lab.folder / "names" / f"{FILE_NAMES.index(name)}"
    folder.mkdir(parents=True)
    audio = quoted(f"{name}.wav")
    (folder / f"{name}.wav").symlink_to(lab.demo / "wavs" / f"{lab.rows[0][0]}.wav")
    (folder / TABLE).write_text(f"path,text\n{audio},{quoted(lab.rows[0][1])}\n", "utf-8")
    return _trained(read_corpus(folder / TABLE, "en"))


def _captions(lab: Lab, suffix: str) -> str:
    """Return the texts that are read of automatic captions, whose cues roll."""
    folder = lab.folder / suffix
    folder.mkdir()
    waves = [soundfile.read(lab.demo / "wavs" / f"{name}.wav")[0] for name, _ in lab.rows[:4]]
    soundfile.write(folder / "talk.wav", np.concatenate(waves), 22_050)
    cues, before = [], " "
    for number, line in enumerate(CAPTIONS):
        begin_s, end_s = CUE_S * number, CUE_S * (number + 1)
        first, *words = line.split()
        step_s = CUE_S / (len(words) + 1)
        timed = "".join(
            f"<{_time(begin_s + step_s * (k + 1))}><c> {word}</c>" for k, word in enumerate(words)
        )
        cues.append((begin_s, end_s - 0.01, f"{before}\n{first}{timed if suffix == 'vtt' else ''}"))
        if suffix == "srt":
            cues[-1] = begin_s, end_s - 0.01, f"{before}\n{line}"
        cues.append((end_s - 0.01, end_s, f"{line}\n "))
        before = line
    head = "WEBVTT\nKind: captions\nLanguage: en\n\n" if suffix == "vtt" else ""
    blocks = []
    for number, (begin_s, end_s, text) in enumerate(cues, 1):
        times = f"{_time(begin_s)} --> {_time(end_s)}"
        times = f"{number}\n{times.replace('.', ',')}" if suffix == "srt" else times
        blocks.append(f"{times}\n{text}\n\n")
    path = Path(folder / f"talk.{suffix}")
    path.write_text(head + "".join(blocks), "utf-8")
    return "; ".join(row.text for row in read_corpus(path, "en").rows)


def _time(seconds: float) -> str:
    return f"00:00:{seconds:06.3f}"
