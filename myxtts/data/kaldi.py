"""Kaldi's data folders: wav.scp and text, and perhaps segments, utt2spk and utt2lang."""

import re
from pathlib import Path

from myxtts.data.rows import (
    DEFAULT_SPEAKER,
    CorpusOptions,
    Layout,
    RejectedRow,
    Row,
    folders_of,
    malformed,
    without_capitals,
)
from myxtts.data.tables import read_text

# Recipes decompress FLAC so. No other command is understood, and none is run.
FLAC_COMMAND = re.compile(r"flac(?:\s+-\S+)*\s+([^-\s]\S*)(?:\s+-)?\s*\|")


def read_kaldi(options: CorpusOptions) -> Layout | None:
    """Read a folder with wav.scp; `text` is not needed where the task needs no texts."""
    folder = options.path
    if not (folder / "wav.scp").is_file():
        return None
    has_segments = (folder / "segments").is_file()
    files = {"wav.scp": _table(folder / "wav.scp")}
    for name in ("segments", "utt2spk", "utt2lang"):
        files[name] = _table(folder / name) if (folder / name).is_file() else {}
    names = ["text"] if options.needs_text else ["text", "segments", "wav.scp"]
    listing = next((folder / name for name in names if (folder / name).is_file()), folder / "text")
    texts = _table(listing)
    rows: list[Row | RejectedRow] = []
    for utterance, (line, text) in texts.items():
        recording = utterance
        times: tuple[float, float | None] = 0.0, None
        try:
            if has_segments:
                recording, *numbers = files["segments"][utterance][1].split()
                start_s, end_s = map(float, numbers[:2])
                times = start_s, end_s
                # Kaldi has -1 for the end of the recording.
                if end_s < 0:
                    times = start_s, None
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
        speaker = files["utt2spk"].get(utterance, (0, DEFAULT_SPEAKER))[1]
        language = files["utt2lang"].get(utterance, (0, options.language))[1]
        text = text if listing.name == "text" else ""
        rows.append(Row(line, "", audio, text, speaker, language, *times))
    audios = [row.audio for row in rows if isinstance(row, Row)]
    form = "Kaldi folder with segments" if has_segments else "Kaldi folder"
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
