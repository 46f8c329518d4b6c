"""Finds the clips of a corpus that would harm a voice, from their sound and the length of texts.

`inspect_corpus` measures each clip once. The limits are those that take no clip of 481 prompts of
a professional speaker but those that have the fault: docs/experiments/corpus_inspection.md.
"""

import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from myxtts.audio.audio_file import MAX_CLIPPED, WHOLE, read_sound
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.base.files import write_csv
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest, frontend_of
from myxtts.corpus.layouts import read_rows
from myxtts.corpus.manifest import LengthRule, Manifest, Vocabulary
from myxtts.corpus.rows import RejectedRow, Rows
from myxtts.extras.inspect.quality import Quality, measure
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import letters_by_script, names_of, scripts_of
from myxtts.text.readers import PUNCTUATION, STRESS_AND_LENGTH

EXCLUDED, EXCLUDED_COLUMNS = "excluded.csv", ("path", "reason")
MIN_HUM_DB = 13.0
# A room prolongs what speech has of notes. espeak-ng, which glides little, has up to 0.32.
MIN_NOTES, MIN_NOTES_IN_ROOM = 0.4, 1.0
MIN_ECHO, MIN_DECAY_DB = 15.0, 11.0
MIN_SNR_DB = 12.0
MAX_SILENCE_S = 1.5
MIN_END_DB = -8.0
MIN_BANDWIDTH = 0.6  # of the median
MAX_LOUDNESS_LU = 12.0  # from the median
MIN_COPY, COPY_S = 0.99, 0.02
# A clip this long has enough sounds to judge its voice; a single word shows only its vowels.
MIN_VOICE_S, MIN_VOICES = 1.4, 20
# A voice is another one if it is this far away, and this many medians of the distances. Whole clips
# of a synthesizer differ more than their halves do.
MAX_VOICE_DISTANCE, MAX_MEDIANS = 7.0, 2.5
MEDOIDS = 500
# A line is fitted to 20 clips of a language or more. A clip does not fit if it is 5 deviations and
# a factor of 1.6, whose logarithm is 0.47, from the line.
MIN_FITTED, MAX_DEVIATIONS, MAX_LOG_RATIO = 20, 5.0, 0.47
MAX_FOREIGN_LETTERS = 0.5
# If more than half of the clips would be excluded, the most frequent fault excludes none: the
# corpus sounds like that.
MAX_EXCLUDED = 0.5
SHOWN_NAMES = 5
MEASURES = {
    "duration, s": "seconds",
    "bandwidth, Hz": "bandwidth_hz",
    "loudness, LUFS": "loudness",
    "peak": "peak",
    "before the speech, s": "leading_s",
    "after the speech, s": "trailing_s",
    "speech to noise, dB": "snr_db",
    "fall within 0.1 s, dB": "decay_db",
    "F0, Hz": "f0_hz",
}
# Faults that hide others: music rings on, and no pitch or pause is seen through it.
SOUNDS = ("clipping", "music", "hum", "echo", "noise", "bandwidth")

log = logging.getLogger(__name__)


class Clip(NamedTuple):
    """A usable utterance: its row, the first sample or WHOLE, and its measures.

    `symbols` counts its sounds.
    """

    id: str
    path: str
    text: str
    speaker: str
    language: str
    start: int
    samples: int
    symbols: int
    quality: Quality

    @property
    def active_s(self) -> float:
        return self.quality.seconds - self.quality.leading_s - self.quality.trailing_s


class Finding(NamedTuple):
    """A fault of a clip; `severity` is larger the worse, of the same fault."""

    id: str
    fault: str
    detail: str
    severity: float


@dataclass
class Inspection:
    """What was found of a corpus: its usable clips, other rows, and faults of the clips.

    `evidence` is how far the aligner of a run explains a clip by its text, by id, if there is one.
    """

    clips: list[Clip]
    rejected: list[RejectedRow]
    findings: list[Finding] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, Clip]:
        return {clip.id: clip for clip in self.clips}

    def facts(self) -> dict[str, str]:
        """Return what the corpus is, in words."""
        hours = sum(clip.quality.seconds for clip in self.clips) / 3600
        letters = Counter("".join(clip.text for clip in self.clips).lower())
        rates = Counter(f"{clip.quality.rate_hz:,} Hz" for clip in self.clips)
        facts = {
            "clips": f"{len(self.clips)} in {hours:.2f} h; {len(self.rejected)} rows unusable",
            "speakers": self._shares(clip.speaker for clip in self.clips),
            "languages": self._shares(clip.language for clip in self.clips),
            "sample rates": ", ".join(f"{count} of {rate}" for rate, count in rates.most_common(5)),
            "characters": " ".join(sorted(letter for letter in letters if not letter.isspace())),
        }
        reasons = Counter(row.reason for row in self.rejected).most_common(5)
        facts["unusable"] = ", ".join(f"{count} {reason}" for reason, count in reasons)
        return {name: text for name, text in facts.items() if text}

    def _shares(self, names: Iterable[str]) -> str:
        counts = Counter(names).most_common()
        parts = [f"{name} ({count})" for name, count in counts[:SHOWN_NAMES]]
        if len(counts) > SHOWN_NAMES:
            parts.append("…")
        return f"{len(counts)}: {', '.join(parts)}"

    def measures(self) -> list[tuple[str, float, float, float]]:
        """Return the name of each measure, and its 5th, 50th and 95th percentiles."""
        columns = {
            title: [getattr(clip.quality, name) for clip in self.clips]
            for title, name in MEASURES.items()
        }
        if self.evidence:
            columns["explained by the text"] = list(self.evidence.values())
        rows = []
        for title, values in columns.items():
            finite = [value for value in values if np.isfinite(value)] or [0.0]
            low, median, high = np.percentile(finite, (5, 50, 95)).tolist()
            rows.append((title, low, median, high))
        return rows

    def table(self) -> str:
        """Return what was found as lines for the console."""
        lines = [f"{name:<14} {text}" for name, text in self.facts().items()]
        lines += ["", f"{'measure':<28} {'5 %':>9} {'median':>9} {'95 %':>9}"]
        for name, *values in self.measures():
            lines.append(" ".join([f"{name:<28}", *(f"{value:>9.2f}" for value in values)]))
        if not self.findings:
            return "\n".join([*lines, "", "no faults found"])
        lines += ["", f"{'fault':<15} {'clips':>5}  the worst"]
        for fault, findings in self.of_fault().items():
            worst = f"{findings[0].id}: {findings[0].detail}"
            lines.append(f"{fault:<15} {len(findings):>5}  {worst}")
        return "\n".join(lines)

    def of_fault(self) -> dict[str, list[Finding]]:
        """Return the findings of each fault, the most frequent fault and the worst clip first."""
        faults = Counter(finding.fault for finding in self.findings)
        worst = sorted(self.findings, key=lambda finding: -finding.severity)
        return {
            fault: [finding for finding in worst if finding.fault == fault]
            for fault, _ in faults.most_common()
        }

    def excluded(self) -> dict[str, list[Finding]]:
        """Return the findings of the clips to leave out, by id.

        While they are more than MAX_EXCLUDED of all clips, the most frequent fault excludes none.
        """
        faults = [*self.of_fault().values()]
        while True:
            by_id: dict[str, list[Finding]] = {}
            for finding in itertools.chain.from_iterable(faults):
                by_id.setdefault(finding.id, []).append(finding)
            if len(by_id) <= MAX_EXCLUDED * len(self.clips):
                return by_id
            del faults[0]

    def write_excluded(self, path: Path) -> int:
        """Write the clips to leave out as CSV for `--exclude`; return how many there are."""
        lines = [
            (id_, "; ".join(f"{of.fault}: {of.detail}" for of in findings))
            for id_, findings in sorted(self.excluded().items())
        ]
        write_csv(path, [EXCLUDED_COLUMNS, *lines])
        return len(lines)


# Rows that cannot be used are rejected as in training. All others are measured, in threads, once.
# Then faults are found: of single clips against fixed limits and medians, and of clips against all
# others. `_findings` has the order.
def inspect_corpus(data: DataConfig, frontend: TextFrontend | None = None) -> Inspection:
    """Measure the clips of --train-data, and of its metadata_eval.csv, and find those with faults.

    An hour of speech takes about 20 s on two cores. `frontend` is by default as the settings say.
    Raises DataError if the corpus cannot be read or has no usable clip.
    """
    assert data.train_data is not None
    corpora = read_rows(data, data.train_data, fraction=0.0, seed=0)
    rejected = list(corpora[2])
    clips: dict[str, Clip] = {}
    for rows in corpora[:2]:
        found, unusable = _measured(rows, data, frontend or frontend_of(data))
        clips |= {clip.id: clip for clip in found}
        rejected += unusable
    if not clips:
        reasons = Counter(row.reason for row in rejected).most_common(3)
        faults = ", ".join(f"{count} {reason}" for reason, count in reasons) or "no rows"
        first = f"; the first: {rejected[0].detail}" if rejected else ""
        raise DataError(
            f"--train-data {data.train_data} was to be inspected, but has no usable clips"
            f" ({faults}{first}). Fix these rows, or give another corpus."
        )
    inspection = Inspection(list(clips.values()), rejected)
    inspection.findings = _findings(inspection.clips)
    return inspection


def _measured(
    rows: Rows, data: DataConfig, frontend: TextFrontend
) -> tuple[list[Clip], list[RejectedRow]]:
    manifest, vocabulary, rejected = build_manifest(rows, data, LengthRule(), frontend=frontend)
    symbols = _sounds(manifest, vocabulary)

    def clip(row: int) -> Clip | None:
        start, samples = int(manifest.starts[row]), int(manifest.samples[row])
        path = manifest.paths[row]
        try:
            quality = measure(*read_clip(path, start, samples))
        except DataError as error:
            # Its header is intact, or it has changed.
            rejected.append(RejectedRow(str(rows.metadata), 0, path, "unreadable", str(error)))
            return None
        names = manifest.names_of(row, vocabulary)
        place = start, samples, int(symbols[row])
        return Clip(manifest.ids[row], path, manifest.texts[row], *names, *place, quality)

    # NumPy computes most of it without Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        clips = pool.map(clip, range(len(manifest)))
        bar = tqdm(clips, "clips", len(manifest), leave=False, disable=None, unit="utt")
        try:
            return [clip for clip in bar if clip is not None], rejected
        finally:
            # Ctrl-C must not wait for the rest of the corpus.
            pool.shutdown(cancel_futures=True)


def read_clip(path: str, start: int, samples: int) -> tuple[np.ndarray, int]:
    """Read a clip at its own rate, float32 [samples], as training hears it; and the rate."""
    mono, rate_hz, skipped = read_sound(path, samples, start=start)
    first, end = (place * rate_hz // sample_rate_hz() for place in (skipped, skipped + samples))
    if start == WHOLE:
        end = len(mono)
    return np.clip(mono[first:end], -1.0, 1.0), rate_hz


def _sounds(manifest: Manifest, vocabulary: Vocabulary) -> np.ndarray:
    """Count the symbols of each text that sound, int [N]."""
    marks = PUNCTUATION + STRESS_AND_LENGTH + " "
    symbols = vocabulary.symbols
    silent = symbols.encode([symbol for symbol in symbols.symbols if symbol in marks])
    sums = np.cumsum(np.pad(~np.isin(manifest.joined_tokens(slice(None)), silent), (1, 0)))
    return np.diff(sums[np.cumsum(np.pad(manifest.token_counts, (1, 0)))])


# Faults of the sound come first, since voices are compared only among clips without them: noise and
# music would look like another speaker. Length and script are judged last, by the texts.
def _findings(clips: Sequence[Clip]) -> list[Finding]:
    median_hz = float(np.median([clip.quality.bandwidth_hz for clip in clips]))
    loud = [clip.quality.loudness for clip in clips if np.isfinite(clip.quality.loudness)]
    median_lufs = float(np.median(loud or [0.0]))
    findings: list[Finding] = []
    for clip in clips:
        findings += _sound_faults(clip, median_hz, median_lufs)
    findings += _copies(clips)
    noisy = {finding.id for finding in findings if finding.fault in SOUNDS}
    findings += _other_speakers([clip for clip in clips if clip.id not in noisy])
    findings += _misfits(clips)
    findings += _foreign_texts(clips)
    return findings


def _sound_faults(clip: Clip, median_hz: float, median_lufs: float) -> Iterator[Finding]:
    """Yield the faults of one clip, given the median bandwidth and loudness of all."""
    of = clip.quality

    def finding(fault: str, detail: str, severity: float) -> Finding:
        return Finding(clip.id, fault, detail, severity)

    if not np.isfinite(of.loudness):
        yield finding("silence", "nothing is heard", of.seconds)
        return
    if of.clipped > MAX_CLIPPED:
        yield finding("clipping", f"{of.clipped:.1%} of the samples in flat peaks", of.clipped)
    if of.bandwidth_hz < MIN_BANDWIDTH * median_hz:
        detail = f"nothing above {of.bandwidth_hz / 1000:.1f} kHz, others {median_hz / 1000:.1f}"
        yield finding("bandwidth", detail, -of.bandwidth_hz)
    if abs(off := of.loudness - median_lufs) > MAX_LOUDNESS_LU:
        yield finding("loudness", f"{off:+.0f} LU from the median", abs(off))
    for place, seconds in (("before", of.leading_s), ("after", of.trailing_s)):
        if seconds > MAX_SILENCE_S:
            yield finding("silence", f"{seconds:.1f} s {place} the speech", seconds)
    is_echo = of.echo > MIN_ECHO or of.decay_db < MIN_DECAY_DB
    min_notes = MIN_NOTES_IN_ROOM if is_echo else MIN_NOTES
    if of.hum_db > MIN_HUM_DB:
        yield finding("hum", f"mains, {of.hum_db:.0f} dB over its surroundings", of.hum_db)
    elif of.notes > min_notes:
        yield finding("music", f"{of.notes:.2f} notes in chords at any time", of.notes)
        # Notes fill the pauses and the end.
        return
    if of.echo > MIN_ECHO:
        yield finding("echo", f"a repetition, {of.echo:.0f} medians", of.echo)
    elif of.decay_db < MIN_DECAY_DB:
        detail = f"falls by no more than {of.decay_db:.0f} dB in 0.1 s"
        yield finding("echo", detail, MIN_DECAY_DB - of.decay_db)
    elif of.snr_db < MIN_SNR_DB:
        yield finding("noise", f"{of.snr_db:.0f} dB below the speech", -of.snr_db)
    elif of.end_db > MIN_END_DB:
        yield finding("cut off", f"ends {of.end_db:+.0f} dB from the level of speech", of.end_db)


# Clips are sorted by length, and each is compared with those that are at most COPY_S longer.
def _copies(clips: Sequence[Clip]) -> Iterator[Finding]:
    """Yield each clip but the first of those that have the same sound.

    A word that is said again differs by more than MIN_COPY allows.
    """
    seconds = np.array([clip.active_s for clip in clips])
    order = np.argsort(seconds, kind="stable")
    shapes = np.stack([clips[place].quality.shape for place in order])
    copied: set[int] = set()
    for place, row in enumerate(order.tolist()):
        end = np.searchsorted(seconds[order], seconds[row] + COPY_S, side="right")
        alike = shapes[place + 1 : end] @ shapes[place]
        for other in order[place + 1 : end][alike > MIN_COPY].tolist():
            first, second = (clips[one] for one in sorted((row, other)))
            if max(row, other) not in copied:
                copied.add(max(row, other))
                differs = first.text.casefold() != second.text.casefold()
                detail = f"the recording of {first.id}" + ", with another text" * differs
                yield Finding(second.id, "duplicate", detail, float(differs))


# Two halves of a clip have one speaker, so their differences show how much a voice varies by
# itself. In that unit, the clip that is nearest to most others stands for a speaker, and clips far
# from it, by a fixed limit and by the spread of this speaker, have another voice.
def _other_speakers(clips: Sequence[Clip]) -> Iterator[Finding]:
    """Yield clips whose voice is far from most clips under the same name."""
    judged = [
        clip
        for clip in clips
        if clip.active_s >= MIN_VOICE_S and np.isfinite(clip.quality.voice).all()
    ]
    if len(judged) < MIN_VOICES:
        return
    voices = np.stack([clip.quality.voice for clip in judged]).astype(np.float64)
    halves = voices[:, 1] - voices[:, 2]
    # Halved, to be the covariance of means over whole clips, which have twice the sounds of a half.
    covariance = halves.T @ halves / len(halves) / 2
    scale = np.linalg.cholesky(np.linalg.pinv(covariance + 1e-6 * np.eye(len(covariance))))
    whitened = voices[:, 0] @ scale
    names = np.array([clip.speaker for clip in judged])
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        candidates = whitened[rows[:: max(len(rows) // MEDOIDS, 1)]]
        away = np.stack([np.linalg.norm(whitened[rows] - one, axis=1) for one in candidates])
        distances = away[np.median(away, axis=1).argmin()]
        limit = max(MAX_VOICE_DISTANCE, MAX_MEDIANS * float(np.median(distances)))
        for row, distance in zip(rows.tolist(), distances.tolist(), strict=True):
            if distance > limit:
                f0_hz = judged[row].quality.f0_hz
                detail = f"another voice than most of {name}, with F0 of {f0_hz:.0f} Hz"
                yield Finding(judged[row].id, "speaker", detail, distance)


# A line is fitted through sounds and seconds of all clips of a language. Clips far off the line
# were cut wrongly or have another text.
def _misfits(clips: Sequence[Clip]) -> Iterator[Finding]:
    """Yield clips that last longer or shorter than others of so many sounds in their language."""
    for language in dict.fromkeys(clip.language for clip in clips):
        spoken = [clip for clip in clips if clip.language == language]
        if len(spoken) < MIN_FITTED:
            continue
        counts = np.array([clip.symbols for clip in spoken], float)
        seconds = np.maximum([clip.active_s for clip in spoken], 0.1)
        # Reweighted least squares minimise absolute deviations: outliers do not bend the line.
        ratios = np.ones(len(spoken))
        for _ in range(10):
            weights = 1 / ((seconds + 0.3) * np.sqrt(np.maximum(np.abs(ratios), 0.02)))
            slope, offset = np.polyfit(counts, seconds, 1, w=weights)
            ratios = np.log(seconds / np.maximum(offset + slope * counts, 0.1))
        limit = max(MAX_LOG_RATIO, MAX_DEVIATIONS * 1.4826 * float(np.median(np.abs(ratios))))
        for clip, ratio in zip(spoken, ratios.tolist(), strict=True):
            if abs(ratio) > limit:
                detail = f"{np.exp(ratio):.1f} times as long as others of {clip.symbols} sounds"
                yield Finding(clip.id, "length", detail, abs(ratio))


def _foreign_texts(clips: Iterable[Clip]) -> Iterator[Finding]:
    for clip in clips:
        scripts, letters = scripts_of(clip.language), letters_by_script([clip.text])
        foreign = [script for script in letters if script not in scripts]
        share = sum(letters[script] for script in foreign) / max(letters.total(), 1)
        if scripts and share > MAX_FOREIGN_LETTERS:
            yield Finding(clip.id, "language", f"its letters are {names_of(foreign)}", share)
