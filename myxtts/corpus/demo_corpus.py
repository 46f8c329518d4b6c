"""Makes a speech corpus by espeak-ng, for demonstrations and tests, with known alignments.

Files of the corpus (LJSpeech format, and a CSV file for several speakers and languages):

    metadata.csv       id|text|normalised text
    corpus.csv         path,text,speaker,language (with this header)
    wavs/ID.wav        22,050 Hz, 16 bit, mono; 50 ms of digital silence at both ends
    alignments.jsonl   {"id": …, "phonemes": [[symbol, start_s, end_s], …]}, gapless to the end
    demo_corpus.json   the arguments; only a complete corpus has this file

In `alignments.jsonl` a symbol is a phoneme of espeak-ng, with its stress and length marks (a
diphthong is one symbol); "" is silence and " " the gap between two words. A gap may last 0 s, and
so may a phoneme that espeak-ng merges with its neighbour (the l of "small", a palatal mark).
"""

import csv
import errno
import itertools
import json
import math
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.sound_header import wav_header
from myxtts.base.errors import DataError
from myxtts.base.files import table_beside
from myxtts.text.espeak import PAUSE, SAMPLE_RATE_HZ, WORD_GAP, Espeak, EspeakVoice, isolated_copy
from myxtts.text.frontend import normalise_text

ARGUMENTS_FILE = "demo_corpus.json"
EDGE_SAMPLES = 1102  # 50 ms of silence at both ends

DEMO_TEXTS = 400
_GRAMMARS = Path(__file__).parent / "grammars"
# Variants with `breath` (f2, f3, f5, …) read uninitialised memory: six processes made six different
# waves from a text. Variants with `echo` (f4, m2, …) fill the silence between words.
_VARIANTS = ("", "f1", "m3", "steph", "m7", "Annie", "m1", "Andrea", "linda", "Denis")
_PITCH_AND_RATE_WPM = ((50, 165), (44, 150), (56, 175), (47, 170), (53, 155))
MAX_SPEAKERS = len(_VARIANTS) * len(_PITCH_AND_RATE_WPM)


@dataclass(frozen=True)
class Grammar:
    """Sentence templates with named slots, each filled with one of its choices."""

    templates: tuple[str, ...]
    slots: dict[str, list[str]]

    def choices(self, template: str) -> dict[str, list[str]]:
        return {name: self.slots[name] for name in re.findall(r"{(\w+)}", template)}

    def sizes(self) -> list[int]:
        return [math.prod(map(len, self.choices(template).values())) for template in self.templates]

    def sentence(self, template: str, number: int) -> str:
        """Return sentence `number` of a template, 0 <= number < its size."""
        choices = {}
        for name, words in self.choices(template).items():
            number, index = divmod(number, len(words))
            choices[name] = words[index]
        text = template.format(**choices)
        # Georgian has no capital letters.
        return text[0].upper() + text[1:] if text[0].isascii() else text

    def draw(self, count: int, source: random.Random) -> list[str]:
        """Draw `count` distinct sentences from the templates in turn, while each has some left."""
        numbers = {
            template: source.sample(range(size), min(size, count))
            for template, size in zip(self.templates, self.sizes(), strict=True)
        }
        sentences: list[str] = []
        while len(sentences) < count:
            unfinished = [template for template in self.templates if numbers[template]]
            for template in source.sample(unfinished, len(unfinished)):
                sentences.append(self.sentence(template, numbers[template].pop()))
        return sentences[:count]


class _Utterance(NamedTuple):
    id: str
    text: str
    speaker: str
    voice: EspeakVoice


def grammar_languages() -> list[str]:
    return sorted(path.stem for path in _GRAMMARS.glob("*.yaml"))


def load_grammar(language: str) -> Grammar:
    content = table_beside(__file__, f"grammars/{language}.yaml")
    return Grammar(tuple(content["templates"]), content["slots"])


def demo_texts(language: str, count: int, seed: int = 0) -> list[str]:
    """Return distinct sentences of a language's grammar; DataError if it has fewer."""
    grammar = load_grammar(language)
    if count > (distinct := sum(grammar.sizes())):
        raise DataError(
            f"{count} utterances in language {language} were requested, but its grammar has"
            f" {distinct} distinct sentences. Request fewer utterances, or more languages."
        )
    return grammar.draw(count, random.Random(f"{seed} {language}"))


def make_demo_corpus(
    out: Path,
    utterances: int,
    languages: Sequence[str],
    speakers: int,
    seed: int,
    progress: Callable[[], object] | None = None,
    first_speaker: int = 0,
) -> bool:
    """Make a corpus in the folder `out`, unless the same corpus is there already.

    Utterances are distributed in turn over all pairs of a speaker and a language. Speakers of one
    language are named after it ("en-00", …), of several "speaker-00", …. The same arguments give
    the same bytes. The folder appears when it is complete. `progress` is called after each
    utterance.

    Returns whether the corpus was made. Raises DataError if it cannot be.
    """
    out = Path(out)
    languages = list(languages)
    arguments = {"utterances": utterances, "languages": languages, "speakers": speakers}
    arguments["seed"] = seed
    # Left out if 0, since corpora of older versions do not have it.
    if first_speaker:
        arguments["first_speaker"] = first_speaker
    _check(languages, first_speaker, first_speaker + speakers - 1)
    planned = _plan(utterances, languages, speakers, seed, first_speaker)
    if _is_complete(out, arguments):
        return False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as unfinished:
            folder = Path(unfinished) / "corpus"
            _write(folder, planned, progress or (lambda: None))
            content = json.dumps(arguments, indent=2) + "\n"
            (folder / ARGUMENTS_FILE).write_text(content, encoding="utf-8")
            folder.rename(out)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and _is_complete(out, arguments):
            # Another process made the same corpus meanwhile.
            return False
        raise DataError(
            f"the demo corpus cannot be written to {out}: {error}. Give another folder."
        ) from error
    return True


def _check(languages: list[str], first_speaker: int, last_speaker: int) -> None:
    known = grammar_languages()
    if last_speaker >= MAX_SPEAKERS:
        raise DataError(
            f"speakers {first_speaker} to {last_speaker} were requested, but there are 0 to"
            f" {MAX_SPEAKERS - 1}. Request fewer, or give a lower --first-speaker."
        )
    if len(set(languages)) < len(languages) or not set(languages) <= set(known):
        raise DataError(
            f"a demo corpus in the languages {', '.join(languages)} was requested, but there are"
            f" {', '.join(known)}, each at most once. Choose from these."
        )


def _plan(
    utterances: int, languages: list[str], speakers: int, seed: int, first_speaker: int
) -> list[_Utterance]:
    numbers = range(first_speaker, first_speaker + speakers)
    voices = itertools.cycle(itertools.product(numbers, languages))
    texts = {}
    for turn, language in enumerate(languages):
        count = (utterances - turn + len(languages) - 1) // len(languages)
        texts[language] = iter(demo_texts(language, count, seed))
    planned = []
    prefix = languages[0] if len(languages) == 1 else "speaker"
    for number, (speaker, language) in enumerate(itertools.islice(voices, utterances)):
        identifier = f"{language}-{speaker:02d}-{number:05d}"
        voice = _voice(language, speaker)
        text = next(texts[language])
        planned.append(_Utterance(identifier, text, f"{prefix}-{speaker:02d}", voice))
    return planned


def _voice(language: str, speaker: int) -> EspeakVoice:
    """Return one of MAX_SPEAKERS voices; further passes over the variants change pitch and rate."""
    passes, variant = divmod(speaker, len(_VARIANTS))
    pitch, rate_wpm = _PITCH_AND_RATE_WPM[(speaker + passes) % len(_PITCH_AND_RATE_WPM)]
    return EspeakVoice(language, _VARIANTS[variant], pitch, rate_wpm)


def _is_complete(out: Path, arguments: dict) -> bool:
    """Whether `out` has the complete corpus of `arguments`; DataError if it has other contents."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    found: object = "something else"
    with suppress(OSError, ValueError):
        found = json.loads((out / ARGUMENTS_FILE).read_text(encoding="utf-8"))
    waves = len(list((out / "wavs").glob("*.wav")))
    if found != arguments or waves != arguments["utterances"]:
        raise DataError(
            f"a demo corpus with {json.dumps(arguments)} was requested, but {out} has"
            f" {json.dumps(found)} and {waves} waves. Give another folder, or remove this one."
        )
    return True


def _write(folder: Path, planned: list[_Utterance], progress: Callable[[], object]) -> None:
    (folder / "wavs").mkdir(parents=True)
    with (
        isolated_copy() as espeak,
        open(folder / "metadata.csv", "w", encoding="utf-8", newline="\n") as metadata,
        open(folder / "corpus.csv", "w", encoding="utf-8", newline="") as corpus,
        open(folder / "alignments.jsonl", "w", encoding="utf-8", newline="\n") as alignments,
    ):
        rows = csv.writer(corpus, lineterminator="\n")
        rows.writerow(("path", "text", "speaker", "language"))
        for utterance in planned:
            samples, phonemes = speak_trimmed(espeak, utterance.text, utterance.voice)
            path = f"wavs/{utterance.id}.wav"
            # soundfile 0.14 crashes by a double free on Ctrl-C during its close.
            pcm = samples.astype("<i2").tobytes()
            (folder / path).write_bytes(wav_header(len(pcm), SAMPLE_RATE_HZ) + pcm)
            metadata.write(f"{utterance.id}|{utterance.text}|{normalise_text(utterance.text)}\n")
            language = utterance.voice.language
            rows.writerow((path, utterance.text, utterance.speaker, language))
            alignment = {"id": utterance.id, "phonemes": phonemes}
            alignments.write(json.dumps(alignment, ensure_ascii=False) + "\n")
            progress()


def speak_trimmed(
    espeak: Espeak, text: str, voice: EspeakVoice
) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Speak with silence at both ends: int16 samples, and (symbol, start_s, end_s) of phonemes."""
    samples, events = espeak.synthesize(text, voice)
    first, last = np.flatnonzero(samples)[[0, -1]].tolist()
    edge = np.zeros(EDGE_SAMPLES, np.int16)
    trimmed = np.concatenate([edge, samples[first : last + 1], edge])
    shift = EDGE_SAMPLES - first
    return trimmed, _spans(
        trimmed, [(round(start_s * SAMPLE_RATE_HZ) + shift, name) for start_s, name in events]
    )


# The events are followed from the last to the first, because a silence ends where the next phoneme
# begins. Each silence is moved to the end of the sound before it. Pauses without silence, and the
# first of two pauses in a row, are left out.
def _spans(samples: np.ndarray, events: list[tuple[int, str]]) -> list[tuple[str, float, float]]:
    """Convert events (start in samples, symbol) to spans without gaps, from 0 s to the end.

    espeak-ng reports pauses and words early, before the last sound is over, and reports a glide
    between two vowels like a pause. So a silence begins after the last non-zero sample, and a pause
    without silence is left out.
    """
    sounding = np.flatnonzero(samples)
    silent_from = np.concatenate([[0], sounding + 1])
    starts: list[tuple[int, str]] = []
    next_start = next_phoneme = len(samples)
    for start, symbol in reversed(events):
        if symbol in (PAUSE, WORD_GAP):
            start = max(start, int(silent_from[np.searchsorted(sounding, next_phoneme)]))
        else:
            next_phoneme = start
        if symbol == PAUSE and start >= next_start:
            continue
        if symbol == PAUSE and starts and starts[-1][1] == PAUSE:
            starts.pop()
        starts.append((start, symbol))
        next_start = start
    starts = [(0, PAUSE), *reversed(starts)]
    times_s = [round(start / SAMPLE_RATE_HZ, 5) for start, _ in starts]
    times_s.append(round(len(samples) / SAMPLE_RATE_HZ, 5))
    symbols = [symbol for _, symbol in starts]
    return list(zip(symbols, times_s[:-1], times_s[1:], strict=True))
