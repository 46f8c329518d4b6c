"""Corpora of many files: folders of Kaldi, trees such as LibriSpeech, subtitles of recordings."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple

from myxtts.corpus.audio_folder import AudioFolder, files_below
from myxtts.corpus.rows import (
    CorpusOptions,
    Layout,
    RejectedRow,
    Row,
    folders_of,
    malformed,
    without_capitals,
)
from myxtts.corpus.tables import read_table, read_text

VCTK_AUDIO = (
    "wav48_silence_trimmed/{0}/{1}_mic1.flac",
    "wav48_silence_trimmed/{0}/{1}_mic2.flac",
    "wav48/{0}/{1}.wav",
)
# Recipes decompress FLAC so. No other command is understood, and none is run.
FLAC_COMMAND = re.compile(r"flac(?:\s+-\S+)*\s+([^-\s]\S*)(?:\s+-)?\s*\|")
# Not by pysubs2, which drops the speakers of WebVTT and the numbers of lines.
# A line of times, such as 00:01:02,345 --> 00:01:04,000, and the lines up to an empty one or the
# next cue, which may have a number or name. A line of spaces is not empty.
CUE = re.compile(r"^(.*-->.*)$((?:\n(?!.*-->|\s*\d+\s*\n.*-->|[^\S\n]*\n.*\n?.*-->).+)*)", re.M)
# In WebVTT the hours are optional, the separator is a point, and settings may follow.
CUE_TIMES = re.compile(r"([\d:]+[.,]\d+)\s+-->\s+([\d:]+[.,]\d+)")
VOICE = re.compile(r"<v(?:\.\S*)?\s+([^>]+)>")
# <i>, and {\an8} of other formats.
TAG = re.compile(r"<[^>]*>|\{[^}]*\}")
# A line break or space of other formats, and >> before another speaker.
BREAK = re.compile(r"\\[Nnh]|>>+")
# A word that YouTube hides, but is spoken: [ __ ].
HIDDEN = re.compile(r"\[\s*_+\s*\]")
# [Music], ♪ a song ♪, (a line, or capitals before one), *a line*, # a song #.
SOUND = re.compile(
    r"(?m)\[(?!\s*_)[^]]*\]|[♪♫♬♩][^♪♫♬♩]*[♪♫♬♩]*"
    r"|^[\s–-]*(?:\([^)]*\)\s*(?::|$)|\([^)a-z\d]*\)|\*[^*]*\*$|#\s.*\s#$)"
)
# MAN: before what is spoken.
LABEL = re.compile(r"^[\s–-]*([^\W\d_][^:\n]{0,30}):\s", re.M)


class _Tree(NamedTuple):
    """The folder that names are relative to, the audio's folder, and counts of what is left out."""

    folder: Path
    audio: AudioFolder
    options: CorpusOptions
    left_out: Counter[str]


AnyRow = Row | RejectedRow


def read_tree(options: CorpusOptions) -> Layout | None:
    """Read the text files in and below a folder, or a single one.

    Of a corpus with splits, those whose folders are called train… are read.
    """
    folder, files = options.path.parent, [options.path.name]
    if os.path.isdir(options.path):
        folder, files = options.path, list(files_below(options.path))
    tree = _Tree(folder, AudioFolder(options.root or folder), options, Counter())
    for form, (pattern, read) in TREES.items():
        texts = [file for file in files if re.search(pattern, file)]
        texts = [file for file in texts if re.match("train[^/]*/", file)] or texts
        rows: list[AnyRow] = []
        for file in texts:
            rows += read(tree, file)
        if rows:
            left_out = ", ".join(f"{count} {what}" for what, count in (+tree.left_out).items())
            form = without_capitals(f"{form} without {left_out}" if left_out else form, rows)
            return Layout(form, options.path, rows, [tree.audio.path])
    return None


def _librispeech(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """84/121123/84-121123.trans.txt, with lines of id and text; the audio is beside it."""
    for line, content in _lines(tree, file):
        name, _, text = content.partition(" ")
        audio = os.path.join(os.path.dirname(file), f"{name}.flac")
        yield _row(tree, file, line, audio, text, name.split("-")[0])


def _libritts(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """103/1241/103_1241_000000_000001.normalized.txt, the text of one file beside it."""
    stem = file.removesuffix(".normalized.txt")
    text = read_text(tree.folder / file).strip()
    yield _row(tree, file, 1, f"{stem}.wav", text, os.path.basename(stem).split("_")[0])


def _mls(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """transcripts.txt, with lines of speaker_book_number, tab, text; audio/speaker/book/."""
    for line, content in _lines(tree, file):
        name, _, text = content.partition("\t")
        speaker, *rest = name.split("_")
        if len(rest) != 2:
            yield malformed(tree.folder / file, line, name, "no id of speaker_book_number")
            continue
        audio = os.path.join(os.path.dirname(file), "audio", speaker, rest[0], f"{name}.flac")
        yield _row(tree, file, line, audio, text, speaker)


def _vctk(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """txt/p225/p225_001.txt, the text of one utterance, with one or two microphones."""
    if not any(tree.audio.find(name.partition("/")[0]) for name in VCTK_AUDIO):
        return
    _, speaker, name = file.split("/")
    names = [audio.format(speaker, name.removesuffix(".txt")) for audio in VCTK_AUDIO]
    audio = next(filter(tree.audio.find, names), names[0])
    yield _row(tree, file, 1, audio, read_text(tree.folder / file).strip(), speaker)


def _folders(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """by_book/female/NAME/BOOK/metadata.csv of M-AILABS, or NAME/metadata.csv."""
    table = read_table(tree.options._replace(path=tree.folder / file, root=None))
    if table is None:
        return
    usable = [row for row in table.rows if isinstance(row, Row)]
    folders = map(AudioFolder, table.folders)
    found = (folder for folder in folders if any(folder.find(row.audio) for row in usable))
    folder = next(found, AudioFolder(table.folders[0]))
    yield from (row for row in table.rows if isinstance(row, RejectedRow))
    for row in usable:
        audio = os.path.relpath(folder.path / (folder.find(row.audio) or row.audio), tree.folder)
        speaker = row.speaker or _speaker_of(file)
        yield row._replace(audio=audio, speaker=speaker, metadata=str(tree.folder / file))


def _speaker_of(file: str) -> str:
    """Return the folder below female/ or male/, as in M-AILABS, or else the file's folder."""
    *folders, _ = file.split("/")
    for gender in ("female", "male"):
        if gender in folders[:-1]:
            return folders[folders.index(gender) + 1]
    return folders[-1]


# The recording is found by the name of the subtitles. Cues are split from the text and get times,
# speaker and words. What is not spoken is removed and counted. Last, captions that roll lose the
# words they repeat.
def _subtitles(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """talk.srt or talk.vtt beside talk.mp3; talk.en.srt if the language is en."""
    stem = os.path.splitext(file)[0]
    stems = stem, stem.removesuffix(f".{tree.options.language}")
    found = next(filter(None, (tree.audio.find(f"{name}.wav") for name in stems)), None)
    # Subtitles of something else are no corpus.
    if found is None and tree.options.path == tree.folder:
        return
    text = re.sub("\r\n?", "\n", read_text(tree.folder / file))
    cues = [*CUE.finditer(text)]
    # In transcripts of meetings a name is before each text.
    has_names = 2 * sum(bool(LABEL.match(cue[2])) for cue in cues) > len(cues)
    rows = []
    for cue in cues:
        line = text.count("\n", 0, cue.start()) + 1
        times = CUE_TIMES.search(cue[1])
        if times is None:
            yield malformed(tree.folder / file, line, stem, f"no times: {cue[1].strip()}")
            continue
        name = VOICE.search(cue[2]) or (has_names and LABEL.match(cue[2]))
        said = _spoken(cue[2], has_names, tree.left_out)
        if said or not cue[2].strip():
            row = _row(tree, file, line, found or f"{stem}.wav", said, name[1] if name else "")
            rows.append(row._replace(start_s=_seconds(times[1]), end_s=_seconds(times[2])))
    for row in _unrolled(rows, tree.left_out):
        if HIDDEN.search(row.text):
            fault = f"a word is spoken, but not written: {row.text}"
            yield malformed(tree.folder / file, row.line, row.audio, fault)
        else:
            yield row


def _spoken(text: str, has_names: bool, left_out: Counter[str]) -> str:
    """Return what is spoken of the lines of a cue, and count what is not."""
    text, sounds = SOUND.subn("", BREAK.sub("\n", unescape(TAG.sub("", text))))
    # A name in other letters may begin a sentence.
    names = [name[0] for name in LABEL.finditer(text) if has_names or name[1].isupper()]
    for name in names:
        text = text.replace(name, "\n", 1)
    left_out.update(sounds=sounds, names=len(names))
    return " ".join(text.split())


# For each cue, the longest beginning is found that ends the cue before. It is a repetition unless
# both cues are spoken at the same time. Only if most cues repeat something do the captions roll, as
# the automatic ones of YouTube do.
def _unrolled(rows: list[Row], left_out: Counter[str]) -> list[Row]:
    """Return cues without the words of the cue before, if the captions of a file roll."""
    new = []
    rolled = 0
    before, end_s = list[str](), 0.0
    for row in rows:
        words = row.text.split()
        sizes = range(min(len(before), len(words)), 0, -1)
        same = next((size for size in sizes if before[-size:] == words[:size]), 0)
        # Words of two stretches that overlap are heard twice, so both keep them.
        length_s = (row.end_s or 0.0) - row.start_s
        if 2 * (end_s - row.start_s) * len(words) > same * length_s:
            same = 0
        if same < len(words):
            new.append(row._replace(text=" ".join(words[same:])))
            # An answer may begin with a short word.
            rolled += len(" ".join(words[:same])) > 3
        before, end_s = words, row.start_s + length_s
    if 2 * rolled < max(len(new), 2):
        return rows
    left_out["lines that roll"] += rolled
    return new


TREES: dict[str, tuple[str, Callable[[_Tree, str], Iterator[AnyRow]]]] = {
    "LibriSpeech tree": (r"\.trans\.txt$", _librispeech),
    "LibriTTS tree": (r"\.normalized\.txt$", _libritts),
    "Multilingual LibriSpeech": (r"(^|/)transcripts\.txt$", _mls),
    "VCTK": (r"^txt/[^/]+/[^/]+\.txt$", _vctk),
    "folders with metadata.csv": (r"/metadata\.csv$", _folders),
    "subtitles": (r"\.(srt|vtt)$", _subtitles),
}


def _lines(tree: _Tree, file: str) -> Iterator[tuple[int, str]]:
    for line, content in enumerate(read_text(tree.folder / file).split("\n"), 1):
        if content.strip():
            yield line, content.strip()


def _row(tree: _Tree, file: str, line: int, audio: str, text: str, speaker: str) -> Row:
    return Row(line, "", audio, text.strip(), speaker, "", metadata=str(tree.folder / file))


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


# Tables of Kaldi have a key first. `text` lists the utterances; `segments` says where they are in
# recordings, `wav.scp` where these are, and two more tables name speakers and languages. A recipe's
# command is understood if it only decompresses FLAC, and is never run.
def read_kaldi(options: CorpusOptions) -> Layout | None:
    """Read a folder with wav.scp; `text` is not needed where the task needs no texts."""
    folder = options.path
    if not (folder / "wav.scp").is_file():
        return None
    has_segments = (folder / "segments").is_file()
    files = {"wav.scp": _table(folder / "wav.scp")}
    for name in ("segments", "utt2spk", "utt2lang"):
        files[name] = _table(folder / name) if (folder / name).is_file() else {}
    names = ["text"]
    if not options.needs_text:
        names += ["segments", "wav.scp"]
    listing = next((folder / name for name in names if (folder / name).is_file()), folder / "text")
    texts = _table(listing)
    rows: list[Row | RejectedRow] = []
    for utterance, (line, text) in texts.items():
        recording = utterance
        start_s, end_s = 0.0, None
        try:
            if has_segments:
                recording, *numbers = files["segments"][utterance][1].split()
                start_s, end_s = map(float, numbers[:2])
                # Kaldi has -1 for the end of the recording.
                if end_s < 0:
                    end_s = None
            audio = files["wav.scp"][recording][1]
        except (KeyError, ValueError):
            fault = "no file in wav.scp, or no recording, start and end in segments"
            rows.append(malformed(listing, line, utterance, fault))
            continue
        if command := FLAC_COMMAND.fullmatch(audio):
            audio = command[1]
        if audio.endswith("|"):
            fault = "wav.scp has a command, which is not run: write its output to a file"
            rows.append(malformed(listing, line, utterance, fault))
            continue
        speaker = files["utt2spk"].get(utterance, (0, ""))[1]
        language = files["utt2lang"].get(utterance, (0, ""))[1]
        if listing.name != "text":
            text = ""
        rows.append(Row(line, "", audio, text, speaker, language, start_s, end_s))
    audios = [row.audio for row in rows if isinstance(row, Row)]
    form = "Kaldi folder"
    if has_segments:
        form += " with segments"
    folders = folders_of(audios, folder, options.root)
    return Layout(without_capitals(form, rows), listing, rows, folders)


def _table(path: Path) -> dict[str, tuple[int, str]]:
    """Return the line and the rest of the line for each first word."""
    table = {}
    for line, content in enumerate(read_text(path).split("\n"), 1):
        if content.strip():
            key, *rest = content.split(None, 1)
            table[key] = line, "".join(rest).strip()
    return table
