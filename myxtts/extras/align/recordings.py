"""Long recordings and the plain texts that are read in them → a corpus that names their sentences.

No sound is copied: a row is a stretch of its recording. Without a run of the language, espeak-ng
speaks some of the sentences, by which an aligner finds the surest ones in the recording, and learns
from those how the person speaks.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from myxtts.audio.audio_file import speech_span
from myxtts.audio.format import HOP_SAMPLES, frames_in
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import decode_text
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.flags import SETTINGS
from myxtts.corpus.audio_folder import suffix_of
from myxtts.corpus.rows import DEFAULT_SPEAKER
from myxtts.extras.align.placing import Placed, place
from myxtts.extras.align.scorer import SymbolScorer
from myxtts.extras.align.tape import (
    PAUSE_FRAMES,
    Stretch,
    Tape,
    make_corpus_folder,
    runs,
    write_corpus,
)
from myxtts.placement import devices
from myxtts.report.alignment import LEAST_EVIDENCE
from myxtts.tasks import loading
from myxtts.tasks.tts.aligner import Aligner
from myxtts.text.espeak import EspeakVoice, isolated_copy
from myxtts.text.frontend import TextFrontend
from myxtts.text.readers import PUNCTUATION
from myxtts.text.sentences import split_text
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable

# What a frame of a pause loses in a sound, and between two words; marks lose nothing.
IN_PAUSE, IN_GAP, BLOCKED = np.float32(-0.5), np.float32(-0.1), np.float32(-1e4)
# Lessons: by espeak-ng, which speaks as several people do; then of the surest sentences of an hour.
SPOKEN_TEXTS, SPOKEN_STEPS, VARIANTS = 250, 150, ("", "f1", "m3", "m7", "m1")
ROUNDS, ROUND_STEPS, ROUND_S = 2, 120, 3600.0
SUREST, MOST_LESSONS, LONGEST_LESSON_S = 0.7, 600, 15.0
LONGEST_S = 60.0  # of a sentence with its pauses
# A sentence ends at the pause within a second of its last sound, as `--trim 40` has it.
# A stop at the end may be silent for a fifth of a second before it is heard.
PAUSE_WITHIN_S, BELOW_DB, END_PAUSE_FRAMES = 1.0, 40.0, 20
# A sentence with less evidence than this share of the median is not what is said, nor one that
# takes less than this share of the median time of a symbol. If fewer of the sentences are said, and
# less of the speech has a text, it is another text.
LEAST_SHARE, LEAST_FOUND = 0.5, 0.25
LEAST_SPEECH_S = 1.0  # without a text that is listed


class Sentence(NamedTuple):
    text: str
    tokens: np.ndarray


class Chapter(NamedTuple):
    """Recordings, the sentences of the text that is read in them, and those that are not read."""

    tape: Tape
    sentences: list[Sentence]
    unread: list[Stretch]

    @property
    def tokens(self) -> list[np.ndarray]:
        return [sentence.tokens for sentence in self.sentences]


class Heard(NamedTuple):
    """A sentence where it was placed, the frames of its speech, and its evidence, at most 1."""

    placed: Placed
    first: int
    end: int
    evidence: float


# Texts are read first, which takes seconds and finds most faults. The aligner is that of the run,
# or learns from espeak-ng. Then it learns from the recordings, and all sentences are placed.
def align_recordings(
    audio: Path,
    text: Path,
    out: Path,
    run: Path | None = None,
    checkpoint: str | None = None,
    language: str | None = None,
    speaker: str = DEFAULT_SPEAKER,
) -> None:
    """Write a corpus of the sentences of texts that are read in recordings.

    `audio` and `text` are a file each, or folders whose files have the same names, or a folder of
    recordings of one text, in the order of their names. Raises UserError if any is unusable.
    """
    trained = TrainedRun.open_for_use(run, checkpoint, "tts") if run else None
    frontend = TextFrontend("phonemes", SETTINGS["text_normaliser"].default)
    if trained:
        frontend = trained.record.frontend
        language = trained.record.choose_language(language)
    elif language is None:
        raise ConfigError("the language of the text is not known. Give it as --language.")
    make_corpus_folder(out)
    pairs = [(Tape(files), path) for files, path in pairs_of(audio, text)]
    known = trained.record.vocabulary.symbols if trained else None
    chapters, table = read_chapters(pairs, frontend, language, known)
    hearing = Hearing(chapters, table, trained, language)
    heard = [hearing.hear(chapter) for chapter in tqdm(chapters, "placing", disable=None)]
    heard = without_hasty(chapters, heard)
    median = float(np.median([of.evidence for of in chain.from_iterable(heard)] or [0.0]))
    least = max(LEAST_EVIDENCE, LEAST_SHARE * median)
    check_found(chapters, heard, least)
    both = zip(chapters, heard, strict=True)
    found = [(chapter.tape, [*stretches_of(chapter, rows, least)]) for chapter, rows in both]
    facts = {"texts": "read in them", "median_evidence": round(median, 3)}
    write_corpus(out, found, {"speaker": speaker, "language": language}, facts)


def pairs_of(audio: Path, text: Path) -> list[tuple[list[Path], Path]]:
    """Return recordings and the text of each; raise DataError for what has no other half."""
    recordings = files_of(audio, "--audio", is_recording)
    texts = files_of(text, "--text", lambda path: path.suffix.lower() in (".txt", ".md", ""))
    if len(texts) == 1:
        return [(recordings, texts[0])]
    names = [[path.stem for path in files] for files in (recordings, texts)]
    if sorted(names[0]) != sorted({*names[1]}):
        alone = sorted({*names[0]} ^ {*names[1]}) or names[0]
        raise DataError(
            f"--audio {audio} has {len(recordings)} recordings and --text {text} {len(texts)} texts"
            f", but {alone[0]!r} has no single other one of its name. Give each recording a text of"
            " its name, or one text for all."
        )
    by_name = dict(zip(names[1], texts, strict=True))
    return [([path], by_name[path.stem]) for path in recordings]


def is_recording(path: Path) -> bool:
    return suffix_of(path.name) != ""


def files_of(path: Path, flag: str, is_one: Callable[[Path], bool]) -> list[Path]:
    """Return a file, or those of a folder in the order of their names: 2 comes before 10."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{flag} {path} does not exist in {Path.cwd()}.")
    files = [file for file in path.iterdir() if file.is_file() and is_one(file)]
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise DataError(f"{flag} {path} has no file of its kind. Give the file, or its folder.")
    return sorted(files, key=lambda of: re.sub(r"\d+", lambda n: n[0].zfill(9), of.name))


def read_chapters(
    pairs: Sequence[tuple[Tape, Path]],
    frontend: TextFrontend,
    language: str,
    known: SymbolTable | None,
) -> tuple[list[Chapter], SymbolTable]:
    """Read the texts; without a table of `known` symbols, return that of the texts."""
    read: list[list[tuple[str, list[str]]]] = []
    unread: list[list[Stretch]] = []
    for _, path in pairs:
        read.append([])
        unread.append([])
        for text, _ in split_text(decode_text(path.read_bytes, str(path)), language):
            try:
                symbols = frontend.symbols(text, language)
                if known:
                    known.encode(symbols)
                if all(map(is_mark, symbols)):
                    raise DataError("it has no sound")
                read[-1].append((text, symbols))
            except DataError as error:
                unread[-1].append(Stretch(0, 0, text, reason=f"not read: {error}"))
        if not read[-1]:
            reason = f" The first: {unread[-1][0].reason}" if unread[-1] else ""
            raise DataError(f"the text {path} has no sentence that can be read.{reason}")
    table = known or SymbolTable.from_sequences(symbols for _, symbols in chain.from_iterable(read))
    chapters = []
    for (tape, _), texts, others in zip(pairs, read, unread, strict=True):
        sentences = [Sentence(text, table.encode(symbols)) for text, symbols in texts]
        chapters.append(Chapter(tape, sentences, others))
    return chapters, table


class Hearing:
    """Hears sentences in chapters, by an aligner that has learnt from a run or from espeak-ng."""

    def __init__(
        self,
        chapters: Sequence[Chapter],
        table: SymbolTable,
        trained: TrainedRun | None,
        language: str,
    ):
        device = devices.configure_default().routes[0].model
        tokens = np.concatenate([np.concatenate(chapter.tokens) for chapter in chapters])
        shares = np.bincount(tokens, minlength=len(table)) / len(tokens)
        aligner = Aligner(len(table))
        if trained:
            aligner = loading.load_network(trained, device, "tts").aligner
        self._scorer = SymbolScorer(aligner, shares, device)
        self._is_mark = np.array([*map(is_mark, table.symbols)])
        self._is_mark = np.concatenate([np.full(FIRST_SYMBOL_ID, True), self._is_mark])
        self._in_pause = np.where(self._is_mark, np.float32(0.0), IN_PAUSE)
        if " " in table.symbols:
            self._in_pause[FIRST_SYMBOL_ID + table.symbols.index(" ")] = IN_GAP
        if not trained:
            self._scorer.learn([*by_espeak(chapters, language)], SPOKEN_STEPS)
        for _ in tqdm(range(ROUNDS), "learning", disable=None):
            self._scorer.learn(self._surest(chapters), ROUND_STEPS)

    def hear(self, chapter: Chapter, frames: int | None = None) -> list[Heard]:
        """Return the sentences that are said in a chapter, or its first frames, in their order."""
        gains = self._gains(chapter.tape, frames or len(chapter.tape))
        heard = []
        for placed in place(gains, chapter.tokens):
            # A pause tells nothing, so that a window may begin or end with minutes of it.
            speech = placed.first + np.flatnonzero(~chapter.tape.quiet[placed.first : placed.end])
            if not len(speech) or speech[-1] - speech[0] > frames_in(LONGEST_S):
                continue
            first = max(int(speech[0]) - PAUSE_FRAMES, placed.first)
            end = min(int(speech[-1]) + PAUSE_FRAMES, placed.end)
            if end - first >= len(chapter.tokens[placed.sentence]):
                heard.append(self._fit(chapter, placed._replace(first=first, end=end)))
        return heard

    def _surest(self, chapters: Sequence[Chapter]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return waves and tokens of the sentences with the most evidence, of about an hour."""
        found, left = [], frames_in(ROUND_S)
        for chapter in chapters:
            if left > 0:
                heard = self.hear(chapter, left)
                left -= len(chapter.tape)
                short = [of for of in heard if of.end - of.first < frames_in(LONGEST_LESSON_S)]
                found += [(of.evidence, chapter, of.placed) for of in short]
        found.sort(key=lambda of: -of[0])
        surest = found[: round(SUREST * len(found))]
        if not surest:
            raise DataError("no sentence of the text was found. Check --text and --language.")
        lessons = []
        for _, chapter, placed in random.Random(0).sample(surest, min(len(surest), MOST_LESSONS)):
            tokens = chapter.sentences[placed.sentence].tokens
            lessons.append((chapter.tape.wave(placed.first, placed.end), tokens))
        return lessons

    def _gains(self, tape: Tape, frames: int) -> Iterator[np.ndarray]:
        for first, is_end, wave in tape.blocks():
            if first >= frames:
                return
            gains = self._gains_of(wave, tape.quiet[first:])
            if is_end:
                gains[-1] = BLOCKED
            yield gains

    def _gains_of(self, wave: np.ndarray, quiet: np.ndarray) -> np.ndarray:
        """Return gains of which pauses tell nothing, so that no sentence takes one for a sound."""
        gains = self._scorer.gains(wave)
        return np.where(quiet[: len(gains), None], self._in_pause, gains)

    # The best path of the tokens through their frames gives their places. The frame that fits the
    # first sound best is surely in it: the sentence begins behind the pause before that frame.
    def _fit(self, chapter: Chapter, placed: Placed) -> Heard:
        sentence, first, end = placed
        tape, tokens = chapter.tape, chapter.sentences[sentence].tokens
        quiet = tape.quiet[first:end]
        gains = self._gains_of(tape.wave(first, end), quiet)[:, tokens]
        path = self._scorer.path(gains)
        gain = gains[np.arange(len(path)), path]
        sounds = np.flatnonzero(~self._is_mark[tokens])
        is_sound = (path >= sounds[0]) & (path <= sounds[-1]) & ~quiet
        possible = -self._scorer.log_shares[tokens[path]]
        evidence = float(gain[is_sound].sum() / max(possible[is_sound].sum(), 1e-6))
        edges = []
        for sound, step in ((sounds[0], -1), (sounds[-1], 1)):
            frames = first + np.flatnonzero(path == sound)
            surest = int(frames[np.argmax(gain[frames - first])])
            edges.append(_through_pause(tape.quiet, surest, step, int(frames[::step][-1])))
        begin, end = speech_span(tape.wave(edges[0], edges[1] + 1), BELOW_DB)
        return Heard(
            placed, edges[0] + begin // HOP_SAMPLES, edges[0] - (-end // HOP_SAMPLES), evidence
        )


def _through_pause(quiet: np.ndarray, frame: int, step: int, otherwise: int) -> int:
    """Return the last frame of the next pause from a frame of speech on, in a direction."""
    most = frames_in(PAUSE_WITHIN_S)
    ahead = quiet[max(frame - most, 0) : frame][::-1]
    if step > 0:
        ahead = quiet[frame + 1 : frame + 1 + most]
    pauses = runs(ahead)
    if step > 0:
        pauses = pauses[np.diff(pauses)[:, 0] >= END_PAUSE_FRAMES]
    return frame + step * int(pauses[0, 1]) if len(pauses) else otherwise


def is_mark(symbol: str) -> bool:
    return symbol in PUNCTUATION or not any(map(str.isalpha, symbol))


def by_espeak(
    chapters: Sequence[Chapter], language: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield waves and tokens of some of the sentences, spoken by espeak-ng."""
    sentences = [*chain.from_iterable(chapter.sentences for chapter in chapters)]
    some = random.Random(0).sample(sentences, min(len(sentences), SPOKEN_TEXTS))
    with isolated_copy() as espeak:
        # Each sentence is spoken by all of them, if they are few.
        for number in range(min(len(VARIANTS) * len(some), SPOKEN_TEXTS)):
            turn, row = divmod(number, len(some))
            voice = EspeakVoice(language, VARIANTS[(turn + row) % len(VARIANTS)])
            wave, _ = espeak.synthesize(some[row].text, voice)
            yield wave.astype(np.float32) / 32768.0, some[row].tokens


def without_hasty(chapters: Sequence[Chapter], heard: Sequence[list[Heard]]) -> list[list[Heard]]:
    """Return what was heard, without evidence where nobody could speak so fast."""
    paces = []
    for chapter, rows in zip(chapters, heard, strict=True):
        lengths = [len(chapter.sentences[of.placed.sentence].tokens) for of in rows]
        paces.append([(of.end - of.first) / n for of, n in zip(rows, lengths, strict=True)])
    least = LEAST_SHARE * float(np.median([*chain.from_iterable(paces)] or [0.0]))
    judged = []
    for rows, pace in zip(heard, paces, strict=True):
        pairs = zip(rows, pace, strict=True)
        judged.append([of._replace(evidence=of.evidence * float(p >= least)) for of, p in pairs])
    return judged


def check_found(chapters: Sequence[Chapter], heard: Sequence[list[Heard]], least: float) -> None:
    """Raise DataError if little of the texts is said, and little of the speech is in a text."""
    said = speech = with_text = 0
    for chapter, rows in zip(chapters, heard, strict=True):
        speech += int((~chapter.tape.quiet).sum())
        for of in rows:
            if of.evidence >= least:
                said += 1
                with_text += int((~chapter.tape.quiet[of.first : of.end]).sum())
    sentences = sum(len(chapter.sentences) for chapter in chapters)
    share = with_text / max(speech, 1)
    if max(said / sentences, share) < LEAST_FOUND:
        raise DataError(
            f"{said} of {sentences} sentences were found, in {share:.0%} of the speech. Check that"
            " each text is that of its recording, and --language."
        )


def stretches_of(chapter: Chapter, heard: Sequence[Heard], least: float) -> Iterator[Stretch]:
    """Yield the sentences that fit, those that are left out, and speech without a text."""
    by_sentence = {of.placed.sentence: of for of in heard}
    for number, sentence in enumerate(chapter.sentences):
        of = by_sentence.get(number)
        if of is None:
            yield Stretch(0, 0, sentence.text, reason="not said")
        else:
            reason = "" if of.evidence >= least else "does not fit"
            yield Stretch(of.first, of.end, sentence.text, of.evidence, reason)
    yield from chapter.unread
    quiet = chapter.tape.quiet
    edges = [0, *chain.from_iterable((of.first, of.end) for of in heard), len(quiet)]
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        speech = first + np.flatnonzero(~quiet[first:end])
        if len(speech) >= frames_in(LEAST_SPEECH_S):
            yield Stretch(int(speech[0]), int(speech[-1]) + 1, "", reason="speech without text")
