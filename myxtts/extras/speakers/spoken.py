"""A corpus that other voices speak: texts → waves, then only the clips that are good.

Files of the corpus:

    wavs/NAME-KEY.wav  16 bit, at the rate of the speaker; KEY is of the text and the speaker
    spoken.csv         path,text,speaker,language of all clips, in the order of the texts
    excluded.csv       path,reason of those that are left out
    heard.jsonl        what a recogniser heard of each clip
    corpus.json        the ancestry: speakers, texts, and what was left out
    metadata.csv       the clips to train on, as in spoken.csv
"""

import hashlib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from tqdm import tqdm

from myxtts.audio.audio_file import read_wave, to_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import wav_header
from myxtts.base.errors import ConfigError, DataError, check_packages
from myxtts.base.files import (
    decode_text,
    locked_file,
    make_folder,
    remove_partial_files,
    write_csv,
    write_json,
    write_whole,
)
from myxtts.base.names import base_language
from myxtts.base.published import file_digest
from myxtts.config.flags import SETTINGS
from myxtts.config.schema import DataConfig
from myxtts.corpus.ancestry import ANCESTRY
from myxtts.corpus.demo_corpus import DEMO_TEXTS, demo_texts, grammar_languages
from myxtts.extras.inspect.inspection import EXCLUDED, EXCLUDED_COLUMNS, inspect_corpus
from myxtts.extras.speakers.speaker import CorpusSpeaker, open_speaker

SPOKEN, METADATA, HEARD, LOCK = "spoken.csv", "metadata.csv", "heard.jsonl", ".lock"
FILES = {"wavs", SPOKEN, METADATA, HEARD, LOCK, EXCLUDED, ANCESTRY}
COLUMNS = "path", "text", "speaker", "language"
NAMED = re.compile(r"([\w-]+)=(.+)")  # a URL has : before any =
KEY_CHARACTERS = 12
SILENT = 1e-3  # a peak below is no speech

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpokenOptions:
    """What is spoken, and what is left out.

    Attributes:
        voices: names for `open_speaker`, perhaps with NAME= before; they take the texts in turn.
        texts: UTF-8 file with a text in each line; None for sentences of the demo corpus.
        utterances: so many of the texts, from the first on; None for all, or 400 of the demo's.
        each: each speaker speaks all texts.
        language: of the texts; by default as the speaker says.
        text_frontend: a text that it does not read is left out.
        threads: how many texts are spoken at the same time.
        texts_from: where the texts are from, and their licence.
        licence: of the speakers that do not say theirs.
        recogniser: run, or pocketsphinx; a clip is left out if its character error rate is higher
            than `max_error_rate`.
    """

    voices: Sequence[str]
    texts: Path | None = None
    utterances: int | None = None
    each: bool = False
    language: str | None = None
    text_frontend: str = SETTINGS["text_frontend"].default
    threads: int = 1
    texts_from: str = ""
    licence: str = ""
    recogniser: Path | None = None
    max_error_rate: float = 0.5


class _Clip(NamedTuple):
    path: str
    text: str
    speaker: str
    language: str


# The clips are planned first: a name for each text that only its speaker and the text decide. Those
# whose file exists are spoken already, whatever became of the process that spoke them. The others
# are spoken. Then all of them are judged, and the metadata of the good ones is written last.
def make_spoken_corpus(out: Path, options: SpokenOptions) -> dict[str, Any]:
    """Speak the texts into a folder, or go on with it; return the content of corpus.json.

    Raises UserError if a speaker, the texts or the folder cannot be used, or nothing is spoken.
    """
    texts = options.texts and _read_texts(options.texts)[: options.utterances]
    speakers = _open_speakers(options)
    texts = texts or _demo_texts(options, speakers)
    names = [*speakers]
    make_folder(out / "wavs", "--out")
    with ExitStack() as scope:
        _lock(out, scope)
        clips = []
        for number, text in enumerate(texts):
            turn = names if options.each else [names[number % len(names)]]
            clips += [_clip(text, name, speakers[name], options.language) for name in turn]
        excluded = _speak(out, clips, speakers, options.threads)
        spoken = [clip for clip in clips if clip.path not in excluded]
        write_csv(out / SPOKEN, [COLUMNS, *spoken])
        excluded |= _faults(out / SPOKEN, options.text_frontend)
        good = [clip for clip in spoken if clip.path not in excluded]
        if options.recogniser is not None:
            excluded |= _misheard(out, good, options.recogniser, options.max_error_rate)
            good = [clip for clip in good if clip.path not in excluded]
        if not good:
            reason = next(iter(excluded.values()))
            raise DataError(f"no clip can be used. The first: {reason}")
        document = _document(out, speakers, good, options)
        document["excluded"] = dict(Counter(reason.split(":")[0] for reason in excluded.values()))
        write_csv(out / EXCLUDED, [EXCLUDED_COLUMNS, *excluded.items()])
        write_json(out / ANCESTRY, document)
        write_csv(out / METADATA, [COLUMNS, *good])
    return document


def _read_texts(path: Path) -> list[str]:
    """Return the lines of a file, each once, in their order."""
    lines = decode_text(path.read_bytes, str(path)).splitlines()
    texts = [" ".join(line.split()) for line in lines if any(map(str.isalnum, line))]
    distinct = [*dict.fromkeys(texts)]
    if not distinct:
        raise DataError(f"--texts {path} has no texts. Give a file with a text in each line.")
    if left := len(lines) - len(distinct):
        log.info("texts          %d; %d lines are empty, or repeat one", len(distinct), left)
    return distinct


def _demo_texts(options: SpokenOptions, speakers: Mapping[str, CorpusSpeaker]) -> list[str]:
    of_speakers = {base_language(options.language or of.language) for of in speakers.values()}
    language, *others = sorted(of_speakers)
    if others or language not in grammar_languages():
        found = ", ".join([language, *others])
        known = ", ".join(grammar_languages())
        raise ConfigError(f"there are sentences in {known}, but not in {found}. Give --texts.")
    return demo_texts(language, options.utterances or DEMO_TEXTS)


def _open_speakers(options: SpokenOptions) -> dict[str, CorpusSpeaker]:
    """Return the speakers by their names in the corpus: what is before =, or else their voice."""
    speakers: dict[str, CorpusSpeaker] = {}
    for entry in options.voices:
        named = NAMED.fullmatch(entry)
        source = named[2] if named else entry
        speaker = open_speaker(source)
        of = speaker.ancestry
        name = named[1] if named else re.sub(r"\W", "_", of.voice or of.model)
        if name in speakers:
            raise ConfigError(f"two speakers are called {name}. Name them: --speaker ann={source}.")
        if not (options.language or speaker.language):
            raise ConfigError(f"{source} does not say its language. Give it as --language.")
        if not (of.licence or options.licence):
            log.warning("the licence of %s is not known: state it as --licence", source)
        speakers[name] = speaker
    return speakers


def _lock(out: Path, scope: ExitStack) -> None:
    """Lock a folder that has no other corpus, for this process; raises ConfigError."""
    remove_partial_files(out)
    others = {path.name for path in out.iterdir()} - FILES
    if others or ((out / METADATA).exists() and not (out / ANCESTRY).exists()):
        found = min(others, default=METADATA)
        raise ConfigError(
            f"--out {out} has other files than a spoken corpus, such as {found}. Give a new folder."
        )
    try:
        scope.enter_context(locked_file(out / LOCK, wait=False))
    except BlockingIOError as error:
        raise ConfigError(f"another process speaks into {out}. Wait for it, or stop it.") from error
    remove_partial_files(out / "wavs")


def _clip(text: str, name: str, speaker: CorpusSpeaker, language: str | None) -> _Clip:
    of = speaker.ancestry
    identity = json.dumps([text, of.model, of.version, of.voice, of.sha256]).encode()
    key = hashlib.sha256(identity).hexdigest()
    path = f"wavs/{name}-{key[:KEY_CHARACTERS]}.wav"
    return _Clip(path, text, name, language or speaker.language)


def _speak(
    out: Path, clips: Sequence[_Clip], speakers: Mapping[str, CorpusSpeaker], threads: int
) -> dict[str, str]:
    """Speak the clips that have no file; return why some cannot be spoken, by path."""
    missing = [clip for clip in clips if not (out / clip.path).exists()]
    reasons: dict[str, str] = {}
    started_s, seconds = time.process_time(), 0.0

    def speak(clip: _Clip) -> float:
        try:
            wave, rate_hz = speakers[clip.speaker].speak(clip.text)
            content = _wav(wave, rate_hz, clip.path)
        except DataError as error:
            reasons[clip.path] = f"not spoken: {error}"
            return 0.0
        write_whole(out / clip.path, content)
        return len(wave) / rate_hz

    with ThreadPoolExecutor(threads) as pool:
        try:
            bar = tqdm(pool.map(speak, missing), "speaking", len(missing), disable=None, unit="utt")
            seconds = sum(bar)
        finally:
            # Ctrl-C and the error of a speaker must not wait for all other texts.
            pool.shutdown(cancel_futures=True)
    if missing:
        cost = (time.process_time() - started_s) / max(seconds, 1e-9)
        line = "spoken         %d clips of %.0f s, %.3f s of processor time a second of speech"
        log.info(line, len(missing) - len(reasons), seconds, cost)
    return reasons


def _wav(wave: np.ndarray, rate_hz: int, name: str) -> bytes:
    """Return a wave as 16-bit WAV; one that exceeds full scale is scaled to it, with a warning."""
    peak = float(np.abs(wave).max(initial=0.0))
    if not SILENT < peak < np.inf:
        raise DataError(f"the speaker returns no sound: its peak is {peak:g}")
    if peak > 1.0:
        log.warning("%s has a peak of %.2f, and is scaled to 1", name, peak)
        wave = wave / peak
    pcm = to_pcm(wave).astype("<i2").tobytes()
    return wav_header(len(pcm), rate_hz) + pcm


def _faults(spoken: Path, frontend: str) -> dict[str, str]:
    """Return the reasons of `inspect` to leave out clips, by path."""
    data = {"train_data": str(spoken), "text_frontend": frontend, "sample_rate": sample_rate_hz()}
    # Numbers need not be read as training does: only the lengths of texts are compared.
    data["text_normaliser"] = "none"
    inspection = inspect_corpus(DataConfig.model_validate(data))
    reasons = {row.audio: f"{row.reason}: {row.detail}" for row in inspection.rejected}
    for id_, findings in inspection.excluded().items():
        reasons[id_] = "; ".join(f"{of.fault}: {of.detail}" for of in findings)
    return reasons


# A recogniser may take as long as the speech, so what it heard of a clip is kept at once.
def _misheard(
    out: Path, clips: Sequence[_Clip], recogniser: Path, max_error_rate: float
) -> dict[str, str]:
    """Return why clips are left out that a recogniser hears otherwise than they are written."""
    check_packages("--recogniser", "jiwer", "tensorflow")
    # Imports TensorFlow, which takes seconds.
    from myxtts.extras.inspect.heard import fault_of
    from myxtts.tasks.evaluation.recognisers import open_recogniser

    judge = open_recogniser(recogniser)
    by = f"{recogniser} {judge.checkpoint}"
    heard = _heard(out / HEARD, by)
    left = [clip for clip in clips if clip.path not in heard]
    waves = (read_wave(str(out / clip.path)) for clip in left)
    with open(out / HEARD, "a", encoding="utf-8") as file:
        for clip, text in zip(left, judge.transcribe(waves), strict=True):
            heard[clip.path] = text
            print(json.dumps({"path": clip.path, "by": by, "heard": text}), file=file, flush=True)
    reasons = {}
    for clip in clips:
        of = fault_of(judge, clip.text, clip.language, heard[clip.path], max_error_rate)
        if of:
            reasons[clip.path] = f"heard otherwise: {of[0]}"
    return reasons


def _heard(path: Path, by: str) -> dict[str, str]:
    """Return what a recogniser heard, by path; the file loses a line that was written in part."""
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    write_whole(path, "".join(whole).encode())
    records = map(json.loads, whole)
    return {record["path"]: record["heard"] for record in records if record["by"] == by}


def _document(
    out: Path, speakers: Mapping[str, CorpusSpeaker], good: Sequence[_Clip], options: SpokenOptions
) -> dict[str, Any]:
    entries, clips = [], Counter(clip.speaker for clip in good)
    for name, speaker in speakers.items():
        ancestry = speaker.ancestry._asdict()
        ancestry["licence"] = ancestry["licence"] or options.licence
        entries.append({"name": name, **ancestry, "clips": clips[name]})
    texts = {"from": options.texts_from or "sentences of the demo corpus of MyXTTS"}
    if options.texts is not None:
        texts = {"file": options.texts.name, "sha256": file_digest(options.texts)}
        texts["from"] = options.texts_from
    seconds = sum(soundfile.info(out / clip.path).duration for clip in good)
    judge = ""
    if options.recogniser:
        judge = f"{options.recogniser}, at most {options.max_error_rate:.0%} errors"
    return {
        "speakers": entries,
        "texts": texts,
        "recogniser": judge,
        "clips": len(good),
        "hours": round(seconds / 3600, 3),
    }
