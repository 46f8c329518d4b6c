"""Corpora whose texts are in many files: trees such as LibriSpeech, and subtitles of recordings."""

import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple

from myxtts.data.audio_folder import AudioFolder, files_below
from myxtts.data.rows import (
    DEFAULT_SPEAKER,
    CorpusOptions,
    Layout,
    RejectedRow,
    Row,
    malformed,
    without_capitals,
)
from myxtts.data.tables import read_table, read_text

VCTK_AUDIO = (
    "wav48_silence_trimmed/{0}/{1}_mic1.flac",
    "wav48_silence_trimmed/{0}/{1}_mic2.flac",
    "wav48/{0}/{1}.wav",
)
# Not by pysubs2, which drops the speakers of WebVTT and the numbers of lines.
# A line of times, such as 00:01:02,345 --> 00:01:04,000, and the lines up to an empty one.
CUE = re.compile(r"^(.*-->.*)$((?:\n.*\S.*)*)", re.MULTILINE)
# In WebVTT the hours are optional, the separator is a point, and settings may follow.
CUE_TIMES = re.compile(r"([\d:]+[.,]\d+)\s+-->\s+([\d:]+[.,]\d+)")
VOICE = re.compile(r"<v(?:\.\S*)?\s+([^>]+)>")
# <i>, and {\an8} of other formats.
TAG = re.compile(r"<[^>]*>|\{\\[^}]*\}")


class _Tree(NamedTuple):
    """The folder that the names of files are relative to, and that of the audio."""

    folder: Path
    audio: AudioFolder
    options: CorpusOptions


AnyRow = Row | RejectedRow


def read_tree(options: CorpusOptions) -> Layout | None:
    """Read the text files in and below a folder, or a single one.

    Of a corpus with splits, those whose folders are called train… are read.
    """
    is_folder = os.path.isdir(options.path)
    folder = options.path if is_folder else options.path.parent
    files = list(files_below(folder)) if is_folder else [options.path.name]
    tree = _Tree(folder, AudioFolder(options.root or folder), options)
    for form, (pattern, read) in TREES.items():
        texts = [file for file in files if re.search(pattern, file)]
        texts = [file for file in texts if re.match("train[^/]*/", file)] or texts
        rows: list[AnyRow] = []
        for file in texts:
            rows += read(tree, file)
        if rows:
            form = without_capitals(form, rows)
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
        speaker = _speaker_of(file) if row.speaker == DEFAULT_SPEAKER else row.speaker
        yield row._replace(audio=audio, speaker=speaker, metadata=str(tree.folder / file))


def _speaker_of(file: str) -> str:
    """Return the folder below female/ or male/, as in M-AILABS, or else that of the file."""
    *folders, _ = file.split("/")
    for gender in ("female", "male"):
        if gender in folders[:-1]:
            return folders[folders.index(gender) + 1]
    return folders[-1]


def _subtitles(tree: _Tree, file: str) -> Iterator[AnyRow]:
    """talk.srt or talk.vtt beside talk.mp3; talk.en.srt if the language is en."""
    stem = os.path.splitext(file)[0]
    stems = stem, stem.removesuffix(f".{tree.options.language}")
    found = next(filter(None, (tree.audio.find(f"{name}.wav") for name in stems)), None)
    # Subtitles of something else are no corpus.
    if found is None and tree.options.path == tree.folder:
        return
    text = read_text(tree.folder / file)
    for cue in CUE.finditer(text):
        line = text.count("\n", 0, cue.start()) + 1
        times = CUE_TIMES.search(cue[1])
        if times is None:
            yield malformed(tree.folder / file, line, stem, f"no times: {cue[1].strip()}")
            continue
        voice = VOICE.search(cue[2])
        said = " ".join(unescape(TAG.sub("", cue[2])).split())
        speaker = voice[1].strip() if voice else DEFAULT_SPEAKER
        row = _row(tree, file, line, found or f"{stem}.wav", said, speaker)
        yield row._replace(start_s=_seconds(times[1]), end_s=_seconds(times[2]))


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
    language = tree.options.language
    metadata = str(tree.folder / file)
    return Row(line, "", audio, text.strip(), speaker, language, metadata=metadata)


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds
