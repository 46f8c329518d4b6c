"""Measure what `myxtts inspect` finds of faults that are planted in a copy of a corpus.

    python utilities/human/corpora.py prompts-en prompts-es
    python benchmarks/planted_faults.py data/human/prompts-en data/planted \\
        --other data/human/prompts-es --run runs/en

Each fault is planted in --share of the recordings, of at least 1.5 s, at random; a fault with a
share of its own (`--faults music=0.1 clipping`) gets that. OUT is a corpus for --train-data:
metadata.csv, the changed recordings and planted.csv, which has the fault of each.
"""

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import librosa
import numpy as np
import soundfile
import soxr

from myxtts.audio.audio_file import read_sound
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.sound_header import read_header
from myxtts.base.console import report_errors
from myxtts.config.schema import DataConfig
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.rows import Row
from myxtts.extras.inspect.inspection import Inspection, inspect_corpus
from utilities.human.degrade import echo, level, music, peak

MIN_S = 1.5
ROOM_S = 0.9
NARROW_HZ = 8_000
Wave = np.ndarray
Draw = np.random.Generator


def clipping(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Raise the wave by 10 dB, so that its peaks are cut."""
    limit = peak(wave)
    return np.clip(wave * 10**0.5, -limit, limit)


def with_music(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Add music 10 to 20 dB below."""
    tune = music(draw, len(wave) * SAMPLE_RATE_HZ // rate_hz + 9)
    tune = soxr.resample(tune, SAMPLE_RATE_HZ, rate_hz)
    return wave + below(wave, tune[: len(wave)], draw.uniform(10, 20))


def hum(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Add the mains of 50 or 60 Hz with nine harmonics, 25 to 35 dB below."""
    time_s = np.arange(len(wave)) / rate_hz
    hz = draw.choice((50, 60))
    tone = sum(np.sin(2 * np.pi * hz * k * time_s + draw.uniform(0, 6)) / k for k in range(1, 11))
    return wave + below(wave, tone, draw.uniform(25, 35))


def with_echo(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Repeat it after 0.15 to 0.3 s, or put it into a room with a reverberation time of 0.9 s."""
    if draw.random() < 0.5:
        return echo(wave, round(draw.uniform(0.15, 0.3) * rate_hz))
    time_s = np.arange(round(ROOM_S * rate_hz)) / rate_hz
    response = draw.standard_normal(len(time_s)) * 10 ** (-3 * time_s / ROOM_S)
    response[0] = np.sqrt(np.square(response).sum())
    return np.convolve(wave, response)[: len(wave)]


def silence(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Add 2 s of noise 70 dB below at one end."""
    quiet = below(wave, draw.standard_normal(2 * rate_hz), 70)
    return np.concatenate([quiet, wave] if draw.random() < 0.5 else [wave, quiet])


def speaker(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Lower the pitch and the formants by 5 semitones, or raise those of a low voice, in time."""
    ratio = 2 ** (5 / 12)
    f0 = np.nanmedian(librosa.yin(wave, fmin=60, fmax=400, sr=rate_hz))
    ratio = ratio if f0 > 160 else 1 / ratio
    return librosa.effects.time_stretch(soxr.resample(wave, 1.0, ratio), rate=ratio)


def narrowband(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """Take it through a sample rate of 8 kHz."""
    return soxr.resample(soxr.resample(wave, rate_hz, NARROW_HZ), NARROW_HZ, rate_hz)


def cut_off(wave: Wave, draw: Draw, rate_hz: int) -> Wave:
    """End it in the loudest 30 ms between 60 and 85 % of its length."""
    first, frame = int(0.6 * len(wave)), round(0.03 * rate_hz)
    frames = wave[first : int(0.85 * len(wave))]
    frames = frames[: len(frames) // frame * frame].reshape(-1, frame)
    return wave[: first + frame * int(np.square(frames).sum(axis=1).argmax()) + frame // 2]


def below(wave: Wave, sound: Wave, db: float) -> Wave:
    return sound * level(wave) / level(sound) * 10 ** (-db / 20)


SIGNAL_FAULTS = {
    **{"clipping": clipping, "music": with_music, "hum": hum, "echo": with_echo},
    **{"silence": silence, "speaker": speaker, "bandwidth": narrowband, "cut off": cut_off},
}
OTHER_FAULTS = "duplicate", "language", "text", "half text"
# What a finding may call a fault that has another name.
NAMES = {
    "language": {"language", "text"},
    "text": {"text", "length"},
    "half text": {"text", "length"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path, help="folder of the planted corpus")
    parser.add_argument("--other", type=Path, help="corpus in another language")
    parser.add_argument("--run", type=Path, help="run of a voice, as for `myxtts inspect`")
    names = [*SIGNAL_FAULTS, *OTHER_FAULTS]
    parser.add_argument("--faults", nargs="+", default=names, help="NAME or NAME=SHARE")
    parser.add_argument("--share", type=float, default=0.02, help="of the clips, for each fault")
    options = parser.parse_args()
    shares = {}
    for fault in options.faults:
        name, _, share = fault.partition("=")
        shares[name] = float(share or options.share)
    plant(options.corpus, options.out, options.other, shares)
    data = DataConfig(train_data=str(options.out))
    if options.run is None:
        inspection = inspect_corpus(data)
    else:
        from myxtts.extras.inspect.with_run import inspect_with_run

        inspection = inspect_with_run(data, options.run)
    print(inspection.table(), end="\n\n")
    with open(options.out / "planted.csv", newline="", encoding="utf-8") as file:
        planted = {row["path"]: row["fault"] for row in csv.DictReader(file)}
    print_rates(planted, inspection)
    return 0


def print_rates(planted: dict[str, str], inspection: Inspection) -> None:
    found: dict[str, set[str]] = {}
    for finding in inspection.findings:
        found.setdefault(finding.id, set()).add(finding.fault)
    usable = {id_: fault for id_, fault in planted.items() if id_ in inspection.by_id}
    print("| planted | clips | found by its name | found |\n|---|---|---|---|")
    for fault in dict.fromkeys(usable.values()):
        ids = [id_ for id_ in usable if usable[id_] == fault]
        named = sum(bool(found.get(id_, set()) & NAMES.get(fault, {fault})) for id_ in ids)
        print(f"| {fault} | {len(ids)} | {named} | {sum(id_ in found for id_ in ids)} |")
    hits = len(found.keys() & usable.keys())
    alarms = sorted(found.keys() - usable.keys())
    print(f"\nprecision {hits / max(len(found), 1):.2f}, recall {hits / max(len(usable), 1):.2f}")
    print(f"alarms: {len(alarms)} of {len(inspection.clips) - len(usable)} other clips")
    for id_ in alarms:
        print(f"  {id_}: {', '.join(found[id_])}: {inspection.by_id[id_].text[:60]}")


def plant(corpus: Path, out: Path, other: Path | None, shares: dict[str, float]) -> None:
    """Write a copy of a corpus with faults: metadata.csv, planted.csv and the sounds."""
    rows = rows_of(corpus)
    draw = np.random.default_rng(0)
    long = [place for place, row in enumerate(rows) if is_long(row)]
    chosen = iter(draw.permutation(long))
    fault_of = {}
    for name, share in shares.items():
        fault_of |= {next(chosen): name for _ in range(max(round(share * len(rows)), 1))}
    places = [place for place in sorted(fault_of) if fault_of[place] == "text"]
    for place, text in zip(places, [rows[at].text for at in np.roll(places, 1)], strict=True):
        rows[place] = rows[place]._replace(text=text)
    others = rows_of(other) if other else []
    foreign = iter([others[at] for at in draw.permutation(len(others))])
    (out / "wavs").mkdir(parents=True, exist_ok=True)
    table, planted = [], []
    for place, row in enumerate(rows):
        fault = fault_of.get(place, "")
        if fault == "language":
            row = next(one for one in foreign if is_long(one))
            row = row._replace(language=rows[place].language, speaker=rows[place].speaker)
        if fault == "half text":
            words = row.text.split()
            row = row._replace(text=" ".join(words[: len(words) // 2 or 1]))
        wave, rate_hz, _ = read_sound(row.audio)
        if fault in SIGNAL_FAULTS:
            wave = SIGNAL_FAULTS[fault](wave, draw, rate_hz)
        name = f"wavs/{place:05d}.flac"
        write_sound(out / name, wave, rate_hz)
        fields = row.text, row.speaker, row.language
        table.append((name, *fields))
        if fault == "duplicate":
            name = f"wavs/{place:05d}-copy.flac"
            write_sound(out / name, 0.9 * wave, rate_hz)
            table.append((name, *fields))
        planted += [(name, fault)] if fault else []
    for file, columns, lines in (
        ("metadata.csv", ("path", "text", "speaker", "language"), table),
        ("planted.csv", ("path", "fault"), planted),
    ):
        with open(out / file, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([columns, *lines])


def rows_of(corpus: Path) -> list[Row]:
    """Return the rows of a corpus, also the held-out ones, with absolute names of their files."""
    read = read_corpus(corpus, "en")
    held_out = corpus / "metadata_eval.csv"
    rows = [*read.rows, *(read_corpus(held_out, "en").rows if held_out.exists() else ())]
    return [row._replace(audio=str(read.folder / row.audio)) for row in rows]


def is_long(row: Row) -> bool:
    header = read_header(row.audio)
    return header.samples >= MIN_S * header.rate_hz


def write_sound(path: Path, wave: Wave, rate_hz: int) -> None:
    soundfile.write(path, wave / max(peak(wave), 1.0), rate_hz, subtype="PCM_16")


if __name__ == "__main__":
    sys.exit(report_errors(main))
