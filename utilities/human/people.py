"""Put the people of utilities/human/corpora.py into one corpus, and measure whose voice a run has.

    python utilities/human/people.py corpus
    python utilities/human/people.py measure --run runs/people
    python utilities/human/people.py corpus --without menardi
    python utilities/human/people.py measure --run runs/without-menardi --speakers menardi

`corpus` writes data/human/people, or people-without-NAME, for --train-data. `measure` speaks as
each speaker held-out sentences in the languages of the speaker and, with an accent, in one that
the speaker never spoke, with references of 3 and 10 s, clean and noisy (with the rooms and the
noise of degrade.py). A sentence is right if Resemblyzer finds its speaker the nearest of all; each
is the mean of recordings that are no references. RUN/people gets the sounds, a list of them, and
the tables: that of right sentences, whose first row, of held-out recordings, is the ceiling; and
one of the level of TREBLE_HZ in the speech of each, which recordings of telephones do not have.
"""

import argparse
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import scipy.signal

from myxtts.audio.audio_file import read_wave, write_wav
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import read_header
from myxtts.base.console import report_errors
from myxtts.base.errors import DataError
from myxtts.base.files import write_whole
from utilities.human.corpora import CORPORA, OUT, TABLES, Row, read_tables, write_tables
from utilities.human.degrade import NOISE, ROOM, augmented

LANGUAGES = "en", "es", "fr", "it", "ru"
# Pieces, and the seconds of each: a run reads the beginning of a reference, 3 s by default.
REFERENCES = {"3 s": (1, 3.0), "10 s": (4, 2.5)}
SENTENCES, LETTERS = 5, (25, 90)
CENTROID_RECORDINGS, MIN_CENTROID_S = 20, 1.5
# Above what telephones carry, and below half of 16 kHz.
TREBLE_HZ = 4200, 7600


class Spoken(NamedTuple):
    """Speech of a run or a recording, its speaker, and its group in the table."""

    group: str
    speaker: str
    wave: np.ndarray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    speakers = sorted({corpus.speaker for corpus in CORPORA.values()})
    parser.add_argument("command", choices=("corpus", "measure"))
    parser.add_argument("--corpora", type=Path, default=OUT, help=f"folder of the corpora ({OUT})")
    parser.add_argument("--without", choices=speakers, help="leave a speaker out of the corpus")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each corpus, at most (20)")
    parser.add_argument("--run", type=Path, default=Path("runs/people"))
    parser.add_argument("--vocoder", help="run of a vocoder; by default the one that the run names")
    parser.add_argument("--speakers", nargs="+", choices=speakers, default=speakers)
    options = parser.parse_args()
    tables = read_people(options.corpora)
    if options.command == "corpus":
        make_corpus(options.corpora, tables, options.without, options.minutes)
    else:
        measure(options.run, options.vocoder, tables, options.speakers)
    return 0


def read_people(folder: Path) -> dict[str, list[Row]]:
    """Return the rows of all corpora by table, with full paths; DataError if one is missing."""
    missing = [name for name in CORPORA if not (folder / name / TABLES[1]).exists()]
    if missing:
        raise DataError(
            f"all corpora of people were requested, but {folder} lacks {', '.join(missing)}. Run:"
            f" python utilities/human/corpora.py {' '.join(missing)} --out {folder}"
        )
    tables: dict[str, list[Row]] = {table: [] for table in TABLES}
    for name in CORPORA:
        for table, rows in read_tables(folder / name).items():
            tables[table] += [row | {"path": str(folder / name / row["path"])} for row in rows]
    return tables


def make_corpus(
    folder: Path, tables: dict[str, list[Row]], without: str | None, minutes: float
) -> None:
    """Write one corpus of all people but one, with links to the recordings of each."""
    suffix = f"-without-{without}" if without else ""
    out = folder / f"people{suffix}"
    out.mkdir(exist_ok=True)
    seconds: dict[str, float] = defaultdict(float)
    chosen: dict[str, list[Row]] = {table: [] for table in TABLES}
    for table, rows in tables.items():
        for row in rows:
            path = Path(row["path"]).relative_to(folder)
            corpus = f"{table} {path.parts[0]}"
            if row["speaker"] != without and seconds[corpus] < 60 * minutes:
                seconds[corpus] += length_s(row)
                chosen[table].append(row | {"path": str(path)})
    for name in CORPORA:
        if not (out / name).is_symlink():
            (out / name).symlink_to(Path("..") / name)
    write_tables(out, chosen)
    print(f"{out}: {', '.join(f'{len(rows)} rows in {table}' for table, rows in chosen.items())}")


def measure(
    run: Path, vocoder: str | None, tables: dict[str, list[Row]], speakers: Sequence[str]
) -> None:
    """Speak with a run as each speaker, and print whose voice it is; files go to RUN/people."""
    from myxtts.placement import devices
    from myxtts.tasks.tts.synthesizer import Synthesizer

    embed = embedder()
    device = devices.configure_default().routes[0].model
    synthesizer = Synthesizer(run, device, vocoder)
    folder = run / "people"
    folder.mkdir(exist_ok=True)
    training, held_out = (by_speaker(tables[table]) for table in TABLES)
    spoken, listing = [], []
    for speaker in speakers:
        for row in held_out[speaker][:SENTENCES]:
            spoken.append(Spoken("recordings", speaker, read_wave(row["path"])))
        own = {row["language"] for row in training[speaker]}
        for reference, files in references(training[speaker], folder, speaker).items():
            for language in (*sorted(own), foreign_to(own)):
                kind = "own language" if language in own else "never spoken"
                accent = None if language in own else min(own)
                for number, text in enumerate(sentences(tables[TABLES[1]], language)):
                    wave = synthesizer.synthesize(text, files, language, accent=accent)
                    name = f"{speaker}-{language}-{reference.replace(' ', '')}-{number}.wav"
                    write_wav(folder / name, wave)
                    spoken.append(Spoken(f"{kind}, {reference}", speaker, wave))
                    listing.append({"file": name, "text": text, "language": language})
    centroids = {
        speaker: centroid(centroid_waves(rows[len(reference_rows(rows)) :]), embed)
        for speaker, rows in training.items()
    }
    embedded = [(group, speaker, embed(wave)) for group, speaker, wave in spoken]
    table = nearest_table(embedded, centroids) + "\n" + treble_table(spoken)
    print(table)
    write_whole(folder / "speakers.md", table.encode())
    write_whole(folder / "list.json", json.dumps(listing, ensure_ascii=False, indent=1).encode())


def by_speaker(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["speaker"]].append(row)
    return groups


def length_s(row: Row) -> float:
    header = read_header(row["path"])
    return header.samples / header.rate_hz


def reference_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the first rows, which together are as long as the longest reference."""
    left_s, count = max(pieces * seconds for pieces, seconds in REFERENCES.values()), 0
    while left_s > 0:
        left_s -= length_s(rows[count])
        count += 1
    return rows[:count]


def references(rows: Sequence[Row], folder: Path, speaker: str) -> dict[str, list[Path]]:
    """Write the references of a speaker, clean and noisy; return their files by name."""
    files: dict[str, list[Path]] = {}
    speech = np.concatenate([read_wave(row["path"]) for row in reference_rows(rows)])
    for name, (count, seconds) in REFERENCES.items():
        size = round(seconds * sample_rate_hz())
        for noisy in (False, True):
            kind = f"{name} {'noisy' if noisy else 'clean'}"
            source = np.random.default_rng(zlib.crc32(f"{speaker} {kind}".encode()))
            files[kind] = []
            for number in range(count):
                piece = speech[number * size : (number + 1) * size]
                if noisy:
                    piece = augmented(augmented(piece, ROOM, source), NOISE, source)
                file = folder / f"reference-{speaker}-{kind.replace(' ', '')}-{number}.wav"
                write_wav(file, piece)
                files[kind].append(file)
    return files


def foreign_to(own: set[str]) -> str:
    """Return the first language after one of a speaker's own that the speaker does not speak."""
    start = LANGUAGES.index(min(own))
    return next(code for code in LANGUAGES[start:] + LANGUAGES[:start] if code not in own)


def sentences(rows: Sequence[Row], language: str) -> list[str]:
    """Return evenly spaced held-out texts of a language, neither single words nor very long."""
    lowest, highest = LETTERS
    texts = [
        row["text"]
        for row in rows
        if row["language"] == language and lowest <= len(row["text"]) <= highest
    ]
    places = np.linspace(0, len(texts) - 1, min(SENTENCES, len(texts))).round().astype(int)
    return [texts[place] for place in places]


def embedder():
    """Return a function from waves at sample_rate_hz() to vectors of norm 1 (Resemblyzer)."""
    try:
        from resemblyzer import VoiceEncoder, preprocess_wav
    except ModuleNotFoundError as error:
        raise DataError(
            f"speakers were to be compared, which needs {error.name}, but it is not installed. Run:"
            " pip install resemblyzer"
        ) from error
    encoder = VoiceEncoder("cpu", verbose=False)
    return lambda wave: encoder.embed_utterance(preprocess_wav(wave, sample_rate_hz()))


def centroid_waves(rows: Sequence[Row]) -> list[np.ndarray]:
    chosen = [row for row in rows if length_s(row) >= MIN_CENTROID_S][-CENTROID_RECORDINGS:]
    return [read_wave(row["path"]) for row in chosen]


def centroid(waves: Sequence[np.ndarray], embed) -> np.ndarray:
    """Return the mean vector of recordings, of norm 1."""
    mean = np.mean([embed(wave) for wave in waves], axis=0)
    return mean / np.linalg.norm(mean)


def nearest_table(
    embedded: Sequence[tuple[str, str, np.ndarray]], centroids: dict[str, np.ndarray]
) -> str:
    """Return a table of how often the right speaker is the nearest, by group.

    `embedded` has groups, speakers and the vectors of their speech.
    """
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for group, speaker, vector in embedded:
        cosines = {name: float(vector @ center) for name, center in centroids.items()}
        right = cosines.pop(speaker)
        groups[group].append((right, max(cosines.values())))
    lines = [
        f"nearest of {len(centroids)} speakers\n",
        "| speech | sentences | right | cosine, others |",
    ]
    lines.append("|---|---|---|---|")
    for group, pairs in groups.items():
        right, other = np.array(pairs).T
        share = f"{100 * np.mean(right > other):.0f} %"
        cosine = f"{right.mean():.2f}, {other.mean():.2f}"
        lines.append(f"| {group} | {len(pairs)} | {share} | {cosine} |")
    return "\n".join(lines) + "\n"


def treble_table(spoken: Sequence[Spoken]) -> str:
    """Return a table of the level of TREBLE_HZ, relative to what is below, by speaker and group."""
    levels: dict[tuple[str, str], list[float]] = defaultdict(list)
    for group, speaker, wave in spoken:
        if "noisy" not in group:
            levels[speaker, group].append(treble_db(wave))
    speakers, groups = (list(dict.fromkeys(names)) for names in zip(*levels, strict=True))
    lines = [f"level of {TREBLE_HZ[0]} to {TREBLE_HZ[1]} Hz, in dB of what is below\n"]
    lines += [f"| speaker | {' | '.join(groups)} |", f"{'|---' * (1 + len(groups))}|"]
    for speaker in speakers:
        means = (f"{np.mean(levels[speaker, group]):.0f}" for group in groups)
        lines.append(f"| {speaker} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def treble_db(wave: np.ndarray) -> float:
    """Return the level of TREBLE_HZ in a wave at sample_rate_hz() relative to the band below."""
    frequencies_hz, density = scipy.signal.welch(wave, sample_rate_hz(), nperseg=1024)
    low, high = np.searchsorted(frequencies_hz, TREBLE_HZ)
    return 10 * np.log10(density[low:high].sum() / density[:low].sum())


if __name__ == "__main__":
    sys.exit(report_errors(main))
