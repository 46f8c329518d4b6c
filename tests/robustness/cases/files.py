"""Audio files: read by training, inspection and references alike, or rejected by each, by name."""

import io
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
import soxr

from myxtts.audio import audio_file
from myxtts.audio.audio_file import REFERENCE, read_pcm, read_recording
from myxtts.base.errors import DataError
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.corpus.rows import RowTuple
from myxtts.extras.inspect.inspection import inspect_corpus
from tests.robustness.cases import Case, Lab

RATE_HZ = 22_050
FORM = struct.pack("<HHIIHH", 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")
EXTENSIBLE = struct.pack("<HHIIHHHHI", 0xFFFE, 1, RATE_HZ, 2 * RATE_HZ, 2, 16, 22, 16, 4) + PCM_GUID
ID3 = b"ID3\3\0\0\0\0\10\0" + bytes(1_024)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n"
SUBTYPES = "PCM_24 PCM_32 FLOAT DOUBLE ULAW ALAW PCM_U8 IMA_ADPCM MS_ADPCM GSM610".split()
LENGTHS = {  # name: bytes that the header promises, those of RIFF
    "sox in a pipe": (0x7FFFF000, 0x7FFFF024),
    "largest integer": (0x7FFFFFFF, 0x7FFFFFFF),
    "2e9": (2 * 10**9, 2 * 10**9 + 36),
    "one less": (0xFFFFFFFE, 0xFFFFFFFF),
    "FFmpeg in a pipe": (0xFFFFFFFF, 0xFFFFFFFF),
    "a killed recorder": (0, 0),
    "RIFF of 0": (None, 0),
    "RIFF too small": (None, 100),
    "RIFF too large": (None, 10**9),
}
READ, QUIET = "read", "read with 1.00 of the length, {} of the level"
REJECTED = "{} by training, inspection, references"
# Name: what is right for files that are not READ.
EXPECTED = {
    **dict.fromkeys(("two data", "joined", "joined without lengths", "two OGG", "two MP3", "two FLAC"), REJECTED.format("joined")),
    **dict.fromkeys(("scale of 16 bits", "scale of 24 bits", "divided twice"), REJECTED.format("another scale")),
    **dict.fromkeys(("RIFX after the data", "FLAC without length", "HTML", "Git LFS", "AppleDouble", "zeros"), REJECTED.format("unreadable")),
    **dict.fromkeys(("half", "half of FLAC", "half of OGG", "half of MP3"), REJECTED.format("truncated")),
    "NaN": REJECTED.format("not finite"),
    "header only": REJECTED.format("too short"),
    "empty": REJECTED.format("empty file"),
    "1,000 Hz": "read with 1.00 of the length, 0.* of the level",
    "with a constant": QUIET.format("0.50"),
    "2.5 of full scale": "read with 1.00 of the length, .* of the level",
    "silent": "no sound by references",
    "a constant": "no sound by references",
}  # fmt: skip


# Name: what is done to each recording of a corpus, or to those with numbers, and what is right.
CORPORA = {
    "plain": (lambda wave: sound(wave), None, "20 usable"),
    "sox": (lambda wave: riff(pcm_of(wave), *LENGTHS["sox in a pipe"]), None, "20 usable"),
    "killed": (lambda wave: riff(pcm_of(wave), 0, 0), None, "20 usable"),
    # The last block of GSM may end in a tone.
    "telephone": (lambda wave: sound(wave, subtype="GSM610"), None, "20 usable(; . cut off)?"),
    "joined": (lambda wave: sound(wave) * 2, (3, 7), "18 usable, 2 joined"),
    "16 bits": (lambda wave: sound(wave * 32_767, subtype="FLOAT"), (3,), "19 usable, 1 another scale"),
    "divided twice": (lambda wave: sound(wave / 32_768, subtype="FLOAT"), (3,), "19 usable, 1 another scale"),
    "opposite": (lambda wave: channels(wave, -wave), None, "20 usable"),
    "silent": (lambda wave: sound(0 * wave), (5,), "20 usable; 1 silence|20 usable; .*nothing.*"),
}  # fmt: skip
# What is done to the texts; tokens stay the same.
SPELLINGS = {
    "ligatures": lambda text: text.replace("ffi", "\ufb03").replace("fi", "\ufb01"),
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "decomposed": lambda text: text.replace("é", "e\u0301"),
}  # fmt: skip


def pcm_of(wave: np.ndarray) -> bytes:
    return np.rint(wave * 32_767).astype("<i2").tobytes()


def riff(pcm: bytes, *lengths: int | None, form: bytes = FORM, before=b"", after=b"") -> bytes:
    """Return a WAV file whose header promises these lengths; by default those that it has."""
    promised, total = (*lengths, None, None)[:2]
    body = b"WAVE" + chunk(b"fmt ", form) + before
    body += chunk(b"data", pcm, promised) + after
    return b"RIFF" + struct.pack("<I", len(body) if total is None else total) + body


def chunk(name: bytes, content: bytes, promised: int | None = None) -> bytes:
    return name + struct.pack("<I", len(content) if promised is None else promised) + content


def sound(wave: np.ndarray, container="WAV", subtype=None, rate_hz=RATE_HZ) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, wave, rate_hz, subtype, format=container)
    return file.getvalue()


def channels(*waves: np.ndarray) -> bytes:
    return sound(np.stack(waves, axis=1))


def contents(wave: np.ndarray) -> dict[str, bytes]:
    """Return the files of a recording by their names."""
    pcm = pcm_of(wave)
    plain, nothing, bad = riff(pcm), 0 * wave, wave.copy()
    bad[1_000] = np.nan
    flac, ogg, mp3 = (sound(wave, container) for container in ("FLAC", "OGG", "MP3"))
    unknown = bytearray(flac)
    unknown[21:26] = bytes([unknown[21] & 0xF0, 0, 0, 0, 0])
    half = len(pcm) // 4 * 2
    chunks = {
        "JUNK": bytes(28),
        "bext": bytes(602),
        "cue ": bytes(4),
        "LIST": b"INFOISFT\4\0\0\0abc\0",
    }
    after = {
        "id3 ": bytes(20),
        "smpl": bytes(36),
        "LIST": b"INFOISFT\4\0\0\0abc\0",
        "DISP": bytes(8),
    }
    resampled = {8_000: "8 kHz", 1_000: "1,000 Hz", 44_056: "44,056 Hz", 192_000: "192 kHz"}
    return {
        "plain": plain,
        **{name: riff(pcm, *lengths) for name, lengths in LENGTHS.items()},
        **{f"{name} first": riff(pcm, before=chunk(name.encode(), data)) for name, data in chunks.items()},
        **{f"{name} last": riff(pcm, after=chunk(name.encode(), data)) for name, data in after.items()},
        "RIFX after the data": plain + chunk(b"RIFX", bytes(8)),
        "FFmpeg's LIST": riff(pcm, 2**32 - 1, 2**32 - 1, before=chunk(b"LIST", b"INFOISFT\4\0\0\0Lav\0")),
        "a byte short": riff(pcm[:-1], len(pcm)),
        "RIFF's length for the data": riff(pcm, len(pcm) + 36),
        "an odd length": riff(pcm + b"\0", len(pcm) + 1),
        "extensible": riff(pcm, form=EXTENSIBLE),
        "two data": riff(pcm[:half], after=chunk(b"data", pcm[half:])),
        "joined": plain * 2,
        "joined without lengths": riff(pcm, 2**32 - 1, 2**32 - 1) * 2,
        "half": plain[: len(plain) // 2],
        **{subtype: sound(wave, subtype=subtype) for subtype in SUBTYPES},
        **{name: sound(wave, name, "PCM_16") for name in ("RF64", "W64", "AIFF", "AU", "CAF", "FLAC")},
        "scale of 16 bits": sound(wave * 32_767, subtype="FLOAT"),
        "scale of 24 bits": sound(wave * 2**23, subtype="DOUBLE"),
        "divided twice": sound(wave / 32_768, subtype="FLOAT"),
        "2.5 of full scale": sound(wave * 2.5, subtype="DOUBLE"),
        "NaN": sound(bad, subtype="FLOAT"),
        "one silent channel": channels(nothing, wave),
        "opposite channels": channels(wave, -wave),
        "six channels": channels(wave, *[nothing] * 5),
        "with a constant": sound(np.clip(0.5 * wave + 0.4, -1, 1)),
        "silent": sound(nothing),
        "a constant": sound(nothing + 0.3),
        **{name: sound(soxr.resample(wave, RATE_HZ, hz), rate_hz=hz) for hz, name in resampled.items()},
        "Opus of 48 kHz": sound(soxr.resample(wave, RATE_HZ, 48_000), "OGG", "OPUS", 48_000),
        "OGG": ogg, "MP3": mp3, "MP3 with ID3": ID3 + mp3, "MP3 with two tags": ID3 + mp3 + b"TAG" + bytes(125),
        "two OGG": ogg * 2, "two MP3": mp3 * 2, "two FLAC": flac * 2,
        "half of FLAC": flac[: len(flac) // 2], "half of OGG": ogg[: len(ogg) // 2], "half of MP3": mp3[: len(mp3) // 2],
        "FLAC without length": bytes(unknown),
        "ID3 before a WAV": ID3 + plain,
        "HTML": b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "Git LFS": LFS,
        "AppleDouble": b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(4_000), "zeros": bytes(60_000),
        "header only": riff(b""), "empty": b"",
    }  # fmt: skip


def cases(lab: Lab) -> Iterator[Case]:
    wave, rate_hz = soundfile.read(lab.demo / "wavs" / f"{lab.rows[0][0]}.wav", dtype="float32")
    assert rate_hz == RATE_HZ
    corpus = Corpus(lab.folder / "files", wave)
    for name in contents(wave):
        expected = EXPECTED.get(name, READ)
        yield Case("audio files", name, expected, lambda n=name: corpus.verdict(n))
    for name, (change, only, expected) in CORPORA.items():
        yield Case("corpora", name, expected, lambda c=(name, change, only): _inspect(lab, *c))
    for name, spell in SPELLINGS.items():
        yield Case("corpora", name, "the same tokens", lambda s=spell: _respelled(lab, s))
    clips = [] if lab.clips is None else sorted(lab.clips.glob("*.ogg"))
    for path in clips:
        yield Case("clips of speech", path.name, "no music", lambda p=path: _music(lab.clips, p))


class Corpus:
    """All files as one corpus, whose suffixes say nothing."""

    def __init__(self, folder: Path, wave: np.ndarray):
        self._folder, self._wave = folder, wave

    @cache  # noqa: B019
    def _rejected(self) -> list[dict[str, str]]:
        """Write the corpus; return the reasons of training and of inspection."""
        self._folder.mkdir()
        files = contents(self._wave)
        for name, content in files.items():
            (self._folder / f"{name}.wav").write_bytes(content)
        lines = "".join(f"{name}.wav|{name}\n" for name in files)
        (self._folder / "metadata.csv").write_text(lines, "utf-8")
        data = DataConfig(train_data=str(self._folder), text_frontend="characters")
        rows = read_corpus(self._folder, "en")
        _, _, rejected = build_manifest(rows, data, LengthRule())
        both = rejected, inspect_corpus(data).rejected
        return [{Path(row.audio).stem: row.reason for row in rows} for rows in both]

    @mock.patch.object(audio_file, "_said", set())
    def verdict(self, name: str) -> str:
        """Return how a file is read, or by whom it is rejected for which reason."""
        training, inspection = (reasons.get(name, "") for reasons in self._rejected())
        reasons = {"training": training, "inspection": inspection, "references": ""}
        path = self._folder / f"{name}.wav"
        try:
            read_recording(path, REFERENCE)
        except DataError as error:
            reasons["references"] = _reason(str(error), training)
        if any(reasons.values()):
            by: dict[str, list[str]] = {}
            for who, reason in filter(all, reasons.items()):
                by.setdefault(reason, []).append(who)
            return "; ".join(f"{reason} by {', '.join(who)}" for reason, who in by.items())
        pcm = read_pcm(path) / 32_768
        length, level = len(pcm) / len(self._wave), pcm.std() / self._wave.std()
        if 0.97 < length < 1.06 and 0.85 < level < 1.15:
            return READ
        return f"read with {length:.2f} of the length, {level:.2f} of the level"


def _reason(message: str, expected: str) -> str:
    for reason in (expected, "no sound"):
        if reason and reason in message:
            return reason
    return "too short" if "Give" in message and " has 0.00 s" in message else message


def _inspect(lab: Lab, name: str, change: Callable, only: Sequence[int] | None) -> str:
    """Return how many clips of a changed corpus are usable, and their faults but for the voice."""
    folder = lab.folder / "corpora" / name
    folder.mkdir(parents=True)
    for number, (audio, _) in enumerate(lab.rows):
        content = (lab.demo / "wavs" / f"{audio}.wav").read_bytes()
        if only is None or number in only:
            content = change(soundfile.read(io.BytesIO(content), dtype="float32")[0])
        (folder / f"{audio}.wav").write_bytes(content)
    shutil.copy(lab.demo / "metadata.csv", folder)
    inspection = inspect_corpus(DataConfig(train_data=str(folder)))
    reasons = Counter(row.reason for row in inspection.rejected)
    faults = Counter(finding.fault for finding in inspection.findings)
    found = f"{len(inspection.clips)} usable"
    found += "".join(f", {count} {reason}" for reason, count in reasons.items())
    return found + "".join(f"; {count} {fault}" for fault, count in faults.items())


def _respelled(lab: Lab, spell: Callable[[str], str]) -> str:
    rows = read_corpus(lab.demo / "metadata.csv", "en")
    spelled = [row._replace(text=spell(row.text)) for row in rows.rows]
    both = rows, rows._replace(rows=RowTuple(spelled))
    first, second = (build_manifest(part, DataConfig(), LengthRule())[0].tokens for part in both)
    return "the same tokens" if np.array_equal(first, second) else "other tokens"


def _music(folder: Path, path: Path) -> str:
    found = _inspected(folder)
    return "music" if path.name in found else "no music"


@cache
def _inspected(folder: Path) -> set[str]:
    """Return the clips that are called music, of a folder and its clips.csv."""
    data = DataConfig(train_data=str(folder / "clips.csv"), text_frontend="characters")
    findings = inspect_corpus(data).findings
    return {Path(finding.id).name for finding in findings if finding.fault == "music"}
