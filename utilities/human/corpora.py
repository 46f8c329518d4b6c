"""Make corpora of human speech from Debian packages, without root.

    python utilities/human/corpora.py festvox-ru
    python utilities/human/corpora.py prompts-en menardi --from PACKAGES

A corpus is a folder data/human/NAME for --train-data: `metadata_train.csv` and `metadata_eval.csv`
(path|text|speaker|language), the second with the sentences that are held out, every 20th or, with
--held-out N, N of those with four words or more, and with --fold 1 as well the sentences after
those; and `wavs/`, a link to the recordings. A corpus that exists is divided anew if --held-out is
given, and kept otherwise. `apt-get download` fetches the packages, unless --from names a folder
that has them, as files *.deb or unpacked (/ if they are installed). The prompts of Asterisk need
ffmpeg.

festvox-ru is one man who reads Russian for 99 minutes (BSD-like licence). The others are telephone
prompts by professional speakers, from one word to a minute (CC-BY-SA-3.0, CC-BY-3.0; armelle:
BSD-like). Prompts whose texts have digits or brackets, or do not fit their length, are left out.
The packages of menardi and armelle have no texts, and say much in other words than those of their
language: NAME.txt lists the prompts in which the package hama hears the consonants that espeak-ng
expects, and single words.
"""

import argparse
import csv
import gzip
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.audio.sound_header import read_header
from myxtts.base.console import report_errors
from myxtts.base.errors import DataError

Row = dict[str, str]

OUT = Path("data/human")
TABLES = "metadata_train.csv", "metadata_eval.csv"
HELD_OUT_EVERY = 20
MIN_HELD_OUT_WORDS = 4  # of --held-out
# Letters a second. Single letters are spelled slowly; beeps and half of a text are beyond.
LETTER_RATES = 0.8, 22.0


@dataclass(frozen=True)
class Corpus:
    """Packages with recordings and with texts, and the folder of the recordings in usr/share."""

    recordings: str
    texts: str
    folder: str
    speaker: str
    language: str


def prompts(language: str, folder: str) -> Corpus:
    """The prompts of Asterisk in a language; their folder ends with the speaker."""
    texts = f"asterisk-core-sounds-{language}"
    speaker = folder.split("_")[-1].lower()
    return Corpus(f"{texts}-g722", texts, f"asterisk/sounds/{folder}", speaker, language)


CORPORA = {
    "festvox-ru": Corpus(
        *("festvox-ru", "festvox-ru"), "festival/voices/russian/msu_ru_nsh_clunits", "nsh", "ru"
    ),
    "prompts-en": prompts("en", "en_US_f_Allison"),
    "prompts-es": prompts("es", "es_MX_f_Allison"),
    "prompts-fr": prompts("fr", "fr_CA_f_June"),
    "prompts-it": prompts("it", "it_IT_m_Carlo"),
    "prompts-ru": prompts("ru", "ru_RU_f_IvrvoiceRU"),
    "menardi": Corpus(
        *("asterisk-prompt-it-menardi-wav", "asterisk-core-sounds-it"),
        *("asterisk/sounds/it_IT_f_Menardi", "menardi", "it"),
    ),
    "armelle": Corpus(
        *("asterisk-prompt-fr-armelle", "asterisk-core-sounds-fr"),
        *("asterisk/sounds/fr", "armelle", "fr"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="+", choices=CORPORA, metavar="NAME", help=", ".join(CORPORA)
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the corpora ({OUT})")
    parser.add_argument("--held-out", type=int, metavar="N", help="hold out N sentences")
    parser.add_argument("--fold", type=int, default=0, metavar="K", help="the K-th after each of N")
    parser.add_argument("--from", dest="source", type=Path, help="folder of the packages")
    options = parser.parse_args()
    if options.fold and options.held_out is None:
        parser.error("--fold needs --held-out: every 20th sentence is held out without it")
    for name in options.names:
        folder = options.out / name
        complete = all((folder / table).exists() for table in TABLES)
        if options.held_out is not None or not complete:
            store, held_out = options.out / "packages", options.held_out
            make_corpus(name, folder, options.source, store, held_out, options.fold)
        rows = read_tables(folder)
        print(f"{folder}: {len(rows[TABLES[0]])} utterances, {len(rows[TABLES[1]])} held out")
    return 0


def make_corpus(
    name: str, folder: Path, source: Path | None, store: Path, held_out: int | None, fold: int = 0
) -> None:
    """Write the tables of a corpus and a link to its recordings; DataError without its packages."""
    corpus = CORPORA[name]
    recordings = unpack(corpus.recordings, source, store) / "usr/share" / corpus.folder
    if corpus.folder.startswith("festival"):
        texts = festvox_texts(recordings / "etc/txt.done.data")
        recordings = recordings / "wav"
    else:
        documents = unpack(corpus.texts, source, store) / "usr/share/doc" / corpus.texts
        texts = prompt_texts(documents / f"core-sounds-{corpus.language}.txt.gz")
        spoken = Path(__file__).with_name(f"{name}.txt")
        if spoken.exists():
            texts = {id: texts[id] for id in spoken.read_text().split() if id in texts}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wavs").unlink(missing_ok=True)
    (folder / "wavs").symlink_to(recordings.resolve())
    found = [path for id in texts for path in sorted(recordings.glob(f"{id}.*"))[:1]]
    rows: dict[int, Row] = {}
    for number, path in enumerate(found):
        sound = path.relative_to(recordings)
        speech = {"path": f"wavs/{sound}", "text": texts[str(sound.with_suffix(""))]}
        if fits(folder, speech):
            rows[number] = speech | {"speaker": corpus.speaker, "language": corpus.language}
    chosen: Sequence[int] = range(0, len(found), HELD_OUT_EVERY)
    if held_out is not None:
        # Evenly, so that the voice also learns from sentences.
        long = [i for i, row in rows.items() if len(row["text"].split()) >= MIN_HELD_OUT_WORDS]
        count = min(held_out, len(long))
        firsts = [len(long) * number // count for number in range(count)]
        chosen = [long[(first + fold) % len(long)] for first in firsts]
    tables: dict[str, list[Row]] = {table: [] for table in TABLES}
    for number, row in rows.items():
        tables[TABLES[number in chosen]].append(row)
    write_tables(folder, tables)


def unpack(package: str, source: Path | None, store: Path) -> Path:
    """Return a folder in which a package is unpacked: `source`, or one in `store`."""
    if source and (source / "usr/share/doc" / package).is_dir():
        return source
    folder = store / package
    if folder.is_dir():
        return folder
    store.mkdir(parents=True, exist_ok=True)
    if not source:
        run(("apt-get", "download", package), "fetch the packages", cwd=store)
    files = sorted((source or store).glob(f"{package}_*.deb"))
    if not files:
        raise DataError(
            f"the package {package} was requested from {source}, but it is neither unpacked there"
            " (usr/share) nor a file *.deb. Give another folder, or leave out --from."
        )
    part = folder.with_suffix(".part")
    run(("dpkg", "-x", str(files[-1]), str(part)), "unpack the packages")
    return part.rename(folder)


def run(command: tuple[str, ...], purpose: str, cwd: Path | None = None) -> None:
    """Run a program; DataError if it is missing or fails."""
    if not shutil.which(command[0]):
        raise DataError(
            f"{command[0]} is needed to {purpose}, but is not installed. Install it, or give"
            " unpacked packages with --from."
        )
    process = subprocess.run(command, cwd=cwd, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        last = "".join(process.stderr.strip().splitlines()[-1:])
        raise DataError(
            f"{' '.join(command[:3])} failed: {last}. Check the network and the disk, or give"
            " unpacked packages with --from."
        )


def festvox_texts(file: Path) -> dict[str, str]:
    """Return text by id from lines `( ru_0001 "text" )`, without the + before a stressed vowel."""
    lines = re.findall(r'^\( (\S+) "(.*)" \)', file.read_text(encoding="utf-8"), re.MULTILINE)
    return {id: text.replace("+", "") for id, text in lines}


def prompt_texts(file: Path) -> dict[str, str]:
    """Return text by name from lines `name: text`, without those with digits or brackets."""
    content = gzip.decompress(file.read_bytes()).decode("utf-8-sig")
    texts = {}
    for name, text in re.findall(r"^([\w/-]+):(.*)", content, re.MULTILINE):
        if re.search(r"\w", text) and not re.search(r"[][()<>\d]", text):
            texts[name] = text.strip()
    return texts


def fits(folder: Path, row: Row) -> bool:
    """Whether a text has about as many letters as its recording has time for."""
    header = read_header(str(folder / row["path"]))
    letters = len(re.sub(r"\W", "", row["text"]))
    return LETTER_RATES[0] <= letters * header.rate_hz / header.samples <= LETTER_RATES[1]


def write_tables(folder: Path, tables: dict[str, list[Row]]) -> None:
    """Write the tables of a corpus by name, with the columns of their rows."""
    for name, rows in tables.items():
        lines = ["|".join(row) for row in rows[:1]] + ["|".join(row.values()) for row in rows]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_tables(folder: Path) -> dict[str, list[Row]]:
    """Return the rows of both tables of a corpus, by the name of the table."""
    tables = {}
    for name in TABLES:
        with open(folder / name, encoding="utf-8", newline="") as file:
            tables[name] = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    return tables


if __name__ == "__main__":
    sys.exit(report_errors(main))
