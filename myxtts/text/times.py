"""Times of words and phonemes, and their files: SRT, WebVTT, JSON and TextGrid."""

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.base.errors import ConfigError
from myxtts.base.files import check_writable, json_bytes, write_whole
from myxtts.text.words import Word

# Shorter gaps between words are no pauses: a separator lasts at least a frame, and a gap shorter
# than the closure of a stop belongs to the stop.
LEAST_PAUSE_S = 0.05
# Two lines of a subtitle.
CUE_CHARACTERS = 84


class Span(NamedTuple):
    """What is spoken from `start_s` to `end_s`."""

    text: str
    start_s: float
    end_s: float


class TimedWord(NamedTuple):
    """A word of a text with its times, and its phonemes with theirs."""

    text: str
    start_s: float
    end_s: float
    phones: list[Span]


def time_words(words: Sequence[Word], edges_s: np.ndarray) -> list[TimedWord]:
    """Return words with the times of their symbols, float [symbols + 1]: where each one begins, and
    the last one ends. Where two words follow each other without a pause, they meet.
    """
    phonemes = list(chain.from_iterable(word.phonemes for word in words))
    starts_s = edges_s[[phoneme.first for phoneme in phonemes]]
    ends_s = edges_s[[phoneme.end for phoneme in phonemes]]
    middle_s = (starts_s[1:] + ends_s[:-1]) / 2
    is_pause = starts_s[1:] - ends_s[:-1] >= LEAST_PAUSE_S
    starts_s[1:] = np.where(is_pause, starts_s[1:], middle_s)
    ends_s[:-1] = np.where(is_pause, ends_s[:-1], middle_s)
    times = zip(phonemes, starts_s.tolist(), ends_s.tolist(), strict=True)
    timed = []
    for word in words:
        phones = [
            Span(phoneme.text, start_s, end_s)
            for phoneme, start_s, end_s in islice(times, len(word.phonemes))
        ]
        timed.append(TimedWord(word.text, phones[0].start_s, phones[-1].end_s, phones))
    return timed


def check_times_file(path: Path | None) -> None:
    """Raise ConfigError if the file of --times has another form, or cannot be written."""
    if path is not None and form_of(path) is None:
        raise ConfigError(
            f"--times {path} was given, but times are written as {', '.join(FORMS)}. Give a file"
            " name that ends in one of these."
        )
    check_writable("--times", path)


def form_of(path: Path) -> str | None:
    """Return the form of a file name, a key of FORMS; None for another one."""
    return next((form for form in FORMS if path.name.lower().endswith(f".{form.lower()}")), None)


def times_files(
    recordings: Iterable[str | Path], form: str, out: Path, corpus: Path | None = None
) -> list[Path]:
    """Return the file for the times of each recording, in `out`: as it is named in its corpus.

    Raises ConfigError if two have one name.
    """
    files = []
    for recording in recordings:
        name = os.path.basename(recording)
        if corpus:
            below = os.path.relpath(recording, corpus)
            # Through links a recording may be elsewhere.
            if not below.startswith(".."):
                name = below
        files.append((out / name).with_suffix(f".{form}"))
    if len(set(files)) < len(files):
        raise ConfigError(
            "two recordings have the same name but for the extension, so their times would be in"
            " one file. Take them one after the other, each with another --out."
        )
    return files


def write_times(path: Path, sentences: Sequence[Sequence[TimedWord]], duration_s: float) -> None:
    """Write the times of the words of sentences in the form that the name of the file has.

    Sentences are in order, without an overlap, and none is empty. The whole sound has `duration_s`.
    """
    form = form_of(path)
    assert form is not None, path
    write_whole(path, FORMS[form](sentences, duration_s))


def _json(sentences: Sequence[Sequence[TimedWord]], duration_s: float) -> bytes:
    """The segments of Whisper's JSON, with phones besides: https://github.com/openai/whisper."""

    def item(name: str, span: Span | TimedWord) -> dict[str, Any]:
        return {name: span.text, "start": round(span.start_s, 4), "end": round(span.end_s, 4)}

    segments = []
    for words in sentences:
        segment = item("text", _joined(words)) | {"words": []}
        for word in words:
            phones = [item("phone", phone) for phone in word.phones]
            segment["words"].append(item("word", word) | {"phones": phones})
        segments.append(segment)
    text = " ".join(segment["text"] for segment in segments)
    return json_bytes({"text": text, "duration": round(duration_s, 4), "segments": segments})


def _srt(sentences: Sequence[Sequence[TimedWord]], _: float) -> bytes:
    cues = []
    for number, words in enumerate(_cues(sentences), 1):
        times = f"{_clock(words[0].start_s, ',')} --> {_clock(words[-1].end_s, ',')}"
        cues.append(f"{number}\n{times}\n{_joined(words).text}\n")
    return "\n".join(cues).encode()


def _vtt(sentences: Sequence[Sequence[TimedWord]], _: float) -> bytes:
    """WebVTT with the time of each word within its cue: https://www.w3.org/TR/webvtt1/."""
    cues = ["WEBVTT\n"]
    for words in _cues(sentences):
        text = escape(words[0].text, quote=False)
        for word in words[1:]:
            text += f" <{_clock(word.start_s, '.')}>{escape(word.text, quote=False)}"
        times = f"{_clock(words[0].start_s, '.')} --> {_clock(words[-1].end_s, '.')}"
        cues.append(f"{times}\n{text}\n")
    return "\n".join(cues).encode()


def _textgrid(sentences: Sequence[Sequence[TimedWord]], duration_s: float) -> bytes:
    """Tiers of words and phones for Praat, in its long form, named as other aligners do."""
    words = list(chain.from_iterable(sentences))
    phones = list(chain.from_iterable(word.phones for word in words))
    spoken = [Span(_spoken(word.text), word.start_s, word.end_s) for word in words]
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', ""]
    lines += ["xmin = 0", f"xmax = {duration_s:.6f}", "tiers? <exists>", "size = 2", "item []:"]
    for number, (name, tier) in enumerate({"words": spoken, "phones": phones}.items(), 1):
        spans = _without_gaps(tier, duration_s)
        lines += [f"    item [{number}]:", '        class = "IntervalTier"']
        lines += [f'        name = "{name}"', "        xmin = 0"]
        lines += [f"        xmax = {duration_s:.6f}", f"        intervals: size = {len(spans)}"]
        for index, span in enumerate(spans, 1):
            text = span.text.replace('"', '""')
            lines += [f"        intervals [{index}]:", f"            xmin = {span.start_s:.6f}"]
            lines += [f"            xmax = {span.end_s:.6f}", f'            text = "{text}"']
    return "\n".join([*lines, ""]).encode()


FORMS: dict[str, Callable[[Sequence[Sequence[TimedWord]], float], bytes]] = {
    "srt": _srt,
    "vtt": _vtt,
    "json": _json,
    "TextGrid": _textgrid,
}


def _without_gaps(spans: Sequence[Span], duration_s: float) -> list[Span]:
    """Return spans with empty ones between them, so that together they are the whole sound."""
    filled = []
    end_s = 0.0
    for span in [*spans, Span("", duration_s, duration_s)]:
        if span.start_s > end_s:
            filled.append(Span("", end_s, span.start_s))
        if span.end_s > span.start_s:
            filled.append(span)
        end_s = span.end_s
    return filled


def _cues(sentences: Sequence[Sequence[TimedWord]]) -> Iterator[list[TimedWord]]:
    """Yield the words of each subtitle: of a sentence, or of a part that fits on two lines."""
    for words in sentences:
        cue: list[TimedWord] = []
        for word in words:
            if cue and len(_joined([*cue, word]).text) > CUE_CHARACTERS:
                yield cue
                cue = []
            cue.append(word)
        yield cue


def _joined(words: Sequence[TimedWord]) -> Span:
    return Span(" ".join(word.text for word in words), words[0].start_s, words[-1].end_s)


def _spoken(text: str) -> str:
    """Return a word without the marks around it."""
    is_mark = [unicodedata.category(character).startswith("P") for character in text]
    kept = [place for place, mark in enumerate(is_mark) if not mark]
    return text[kept[0] : kept[-1] + 1] if kept else text


def _clock(seconds: float, point: str) -> str:
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{ms // 1000:02}{point}{ms % 1000:03}"
