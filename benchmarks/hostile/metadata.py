"""Hostile corpora: metadata tables, the files that they name, and folders of audio without
metadata.
"""

import csv
import io
import os
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.hostile.bytes_and_files import encoded, write_odd_file
from benchmarks.hostile.case import Call, Place
from benchmarks.hostile.texts import INVISIBLE, SENTENCES, hostile_text
from myxtts.config.load import load
from myxtts.data.dataset import load_corpora
from myxtts.data.manifest import LengthRule
from myxtts.data.metadata_form import COLUMN_NAMES

HEADERS = (
    ("path", "text"),
    ("audio_file", "text", "speaker_name"),
    ("client_id", "path", "sentence", "up_votes", "locale"),
    ("file_name", "transcription", "speaker", "language"),
    ("id", "text", "normalized_text"),
    ("wav_filename", "wav_filesize", "transcript"),
)
LANGUAGES = (
    "en",
    "de",
    "ka",
    "EN_us",
    "Deutsch",
    "xx",
    "",
    "en-" * 40,
    "☃",
    "../x",
    "en\x1b[31m",
    "l" * 70_000,
)
SPEAKERS = ("anna", "boris", "", "../..", "\u202eanna", "s" * 300, "a|b", 'a"b', "anna ", "\x1b[2J")
ROWS = ("none", "once", "twice", "long")
LONG = 10_000_000  # characters of a line
AUDIO_NAMES = ("a", "b", "c")


@cache
def _sound() -> bytes:
    """A second of speech-like noise, as the program reads it without conversion."""
    wave = np.random.default_rng(0).normal(0, 0.1, 22_050)
    content = io.BytesIO()
    soundfile.write(content, wave, 22_050, format="WAV", subtype="PCM_16")
    return content.getvalue()


def prepare(draw: random.Random, place: Place) -> Call:
    (place.outside / "secret.wav").write_bytes(_sound())
    (place.outside / "secret.csv").write_text("path,text\nsecret.wav,a secret text\n")
    names = _write_audio(draw, place)
    needs_text = draw.random() < 0.85
    settings = {
        "train_data": str(place.corpus),
        "text_frontend": draw.choice(("characters", "characters", "phonemes")),
        "language": draw.choice(("en", "en", "en", "de", "xx")),
        "max_rejected": draw.choice((1.0, 1.0, 0.05)),
        "validation_fraction": draw.choice((0.05, 0.5, 0.0)),
    }
    if needs_text or draw.random() < 0.4:
        metadata = _write_metadata(draw, place, names)
        if draw.random() < 0.3:
            settings["train_data"] = str(metadata)
        if draw.random() < 0.1:
            settings["val_data"] = str(
                place.corpus / draw.choice(("", "nothing", "metadata_eval.csv", "audio"))
            )
    if draw.random() < 0.1:
        settings["audio_root"] = str(
            place.corpus / draw.choice(("wavs", "", "nothing", "metadata.csv", "../corpus"))
        )
    return partial(_load, settings, place.runs / "run", LengthRule() if needs_text else None)


def _load(settings: dict, folder: Path, length_rule: LengthRule | None) -> None:
    """As a run loads its corpus: rows, headers of the audio, symbols, rejected.csv, caches; and as
    it resumes.
    """
    config = load(overrides=settings)
    train, _, _ = load_corpora(config, folder, length_rule)
    again, _, _ = load_corpora(config, folder, length_rule)
    if train.manifest.fingerprint != again.manifest.fingerprint:
        raise AssertionError("the cached manifest is another one")


def _write_audio(draw: random.Random, place: Place) -> list[str]:
    """Write some audio files, some of them odd; return names for the metadata."""
    folder = place.corpus / draw.choice(("wavs", "", "audio", "Clips", "a\u0301", "sub/folder"))
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name in AUDIO_NAMES:
        path = folder / f"{name}{draw.choice(('.wav', '.wav', '.wav', '.WAV', '.flac', ''))}"
        path.write_bytes(_sound())
        names.append(os.path.relpath(path, place.corpus) if draw.random() < 0.7 else path.name)
    if draw.random() < 0.3:
        folder = folder / os.fsdecode(draw.choice((b"", b"caf\xe9", b"\x1b[2J")))
        folder.mkdir(exist_ok=True)
        odd = folder / draw.choice(("odd.wav", "odd.flac", "odd.mp3", "odd.ogg"))
        write_odd_file(draw, odd, place, _sound())
        names.append(os.path.relpath(odd, place.corpus))
    if draw.random() < 0.15:
        linked = place.corpus / draw.choice(("link", "linked", "linked.wav"))
        linked.symlink_to(
            draw.choice(
                (
                    place.outside,
                    Path("."),
                    Path(".."),
                    Path("/"),
                    linked,
                    Path("/etc"),
                    Path("/dev"),
                )
            )
        )
        names.append(
            f"{linked.name}/{draw.choice(('secret.wav', 'a.wav', 'passwd', 'zero', 'link/link/secret.wav'))}"
        )
    if draw.random() < 0.15:
        names.append(os.path.relpath(_oddly_named(draw, folder), place.corpus))
    return names


def _oddly_named(draw: random.Random, folder: Path) -> Path:
    names = (
        b"\xff\xfe.wav",
        b"\x1b[31mred.wav",
        b"new\nline.wav",
        b"-rf.wav",
        b"'; touch pwned.wav",
        "\u202egpj.wav".encode(),
        b"a b.wav",
        b" .wav",
        b"%s.wav",
        b"e\xcc\x81.wav",
        b"\xed\xa0\x80.wav",
        b"x" * 250 + b".wav",
        b"|.wav",
        b'".wav',
    )
    path = folder / os.fsdecode(draw.choice(names))
    path.write_bytes(_sound())
    return path


def _write_metadata(draw: random.Random, place: Place, names: list[str]) -> Path:
    path = place.corpus / draw.choice(
        (*["metadata.csv"] * 6, "metadata.tsv", "metadata_train.csv", "list.txt")
    )
    data = encoded(draw, draw.choice(TABLES)(draw, place, names))
    if draw.random() < 0.07:
        write_odd_file(draw, path, place, data, named=True)
    else:
        path.write_bytes(data)
    if draw.random() < 0.1:
        other = place.corpus / "metadata_eval.csv"
        if draw.random() < 0.3:
            write_odd_file(draw, other, place, data, named=True)
        else:
            other.write_bytes(data)
    return path


def _table(draw: random.Random, place: Place, names: list[str]) -> str:
    """A table with a header, written by the rules of CSV or against them."""
    header = draw.choice(HEADERS)
    separator = draw.choice(",|\t;,|")
    rows = [_row(draw, place, names, header) for _ in range(draw.choice((0, 1, 4, 20, 300)))]
    head = list(header)
    if draw.random() < 0.1:
        head[draw.randrange(len(head))] = draw.choice(
            ("path", "text", "", "PATH ", '"text"', "x" * 100_000, "\ufeffpath")
        )
    if draw.random() < 0.6:
        content = io.StringIO(newline="")
        writer = csv.writer(
            content, delimiter=separator, lineterminator=draw.choice(("\n", "\r\n", "\r"))
        )
        writer.writerows([head, *rows])
        return content.getvalue()
    return draw.choice(("\n", "\r\n", "\n\n")).join(
        separator.join(fields) for fields in (head, *rows)
    )


def _lines(draw: random.Random, place: Place, names: list[str]) -> str:
    """Lines without a header, as in LJSpeech."""
    separator, columns = draw.choice("|||\t,;"), draw.choice((1, 2, 2, 3, 3, 4, 40))
    lines = []
    for _ in range(draw.choice((1, 4, 20, 300))):
        stem = _name(draw, place, names)
        fields = [stem, *(_text(draw) for _ in range(columns - 1))]
        lines.append(
            separator.join(fields[: draw.choice((columns, columns, columns, 1, columns + 1))])
        )
    return draw.choice(("\n", "\n", "\r\n", "\r")).join(lines)


def _long_line(draw: random.Random, place: Place, names: list[str]) -> str:
    """A line of 10 MB: the first one, or one of others."""
    unit = draw.choice(
        (
            "a",
            ",",
            "|",
            "\t",
            ";",
            '"',
            '""',
            "a,",
            "path,",
            "a|",
            '",',
            "e\u0301",
            "\u0301\u0323",
            " ",
            "a b. ",
            "\r",
            "../",
            "\u202e",
        )
    )
    long = unit * (draw.choice((100_000, 1_000_000, LONG)) // len(unit))
    table = draw.choice((_table, _lines))(draw, place, names).split("\n")
    at = draw.choice((0, min(1, len(table) - 1), len(table) - 1))
    table[at] = draw.choice(
        (long, table[at] + long, long + table[at], f"{names[0]}|{long}", f'{names[0]},"{long}"')
    )
    return "\n".join(table)


def _broken(draw: random.Random, place: Place, names: list[str]) -> str:
    """A table with characters inserted that mean something to its format."""
    characters = list(draw.choice((_table, _lines))(draw, place, names))
    odd = (
        '"',
        '""',
        ",",
        "|",
        "\t",
        "\r",
        "\n",
        "\0",
        "\ufeff",
        "\u2028",
        "\x1c",
        "\x0b",
        "\\",
        *INVISIBLE,
    )
    for _ in range(draw.choice((1, 3, 20))):
        characters.insert(draw.choice((0, draw.randrange(len(characters) + 1))), draw.choice(odd))
    return "".join(characters)


def _other(draw: random.Random, place: Place, names: list[str]) -> str:
    """A file of another form."""
    return draw.choice(
        (
            f'{{"audio": "{names[0]}", "text": "one"}}\n',
            "[" * 100_000,
            "<html><table><tr><td>path</td></tr></table></html>",
            "path,text\n" * 1000,
            "path\n" + "\n".join(names),
            "|\n" * 1000,
            "\n" * 100_000,
            ",".join(name for column in COLUMN_NAMES.values() for name in column) + "\n",
            f"{names[0]}|one\n" * 2000,
            "sep=,\npath,text\n",
            hostile_text(draw),
        )
    )


TABLES: tuple[Callable[[random.Random, Place, list[str]], str], ...] = (
    *(_table, _table, _table, _lines, _lines, _broken, _broken, _long_line, _other),
)


def _row(draw: random.Random, place: Place, names: list[str], header: tuple[str, ...]) -> list[str]:
    fields = []
    for column in header:
        if column in COLUMN_NAMES["path"]:
            fields.append(_name(draw, place, names))
        elif column in COLUMN_NAMES["speaker"]:
            fields.append(draw.choice(SPEAKERS))
        elif column in COLUMN_NAMES["language"]:
            fields.append(draw.choice(LANGUAGES) if draw.random() < 0.2 else "en")
        else:
            fields.append(_text(draw))
    if draw.random() < 0.05:
        fields = fields[: draw.randrange(len(fields) + 1)] + [""] * draw.randrange(3)
    return fields


def _text(draw: random.Random) -> str:
    return (
        hostile_text(draw, draw.choice((30, 200, 5_000)))
        if draw.random() < 0.05
        else draw.choice(SENTENCES)[:40]
    )


def _name(draw: random.Random, place: Place, names: list[str]) -> str:
    if draw.random() < 0.8:
        return draw.choice(names)
    return draw.choice(
        (
            *(
                "../outside/secret.wav",
                "wavs/../../outside/secret.wav",
                str(place.outside / "secret.wav"),
                "../outside/secret",
            ),
            *(
                "..\\outside\\secret.wav",
                "/etc/passwd",
                "/dev/zero",
                "/proc/self/mem",
                "C:\\x.wav",
                "file:///etc/passwd",
                "~/x",
            ),
            *(
                "",
                ".",
                "..",
                "./",
                "/",
                "//",
                "a/",
                "wavs",
                "\x1b[2J.wav",
                "\u202ea.wav",
                "a" * 300,
                "a/" * 3000,
                "x" * 100_000,
            ),
            *(
                ".." * 50,
                "../" * 500,
                "a\\b\\c",
                "%2e%2e/x",
                "a.wav.wav",
                ".wav",
                "a.WAV",
                "a.m4a",
                "\u0301" * 2000,
                "con",
                "$HOME",
            ),
            *(
                str(place.corpus / names[0]),
                f"./{names[0]}",
                f"{names[0]} ",
                f"../corpus/{names[0]}",
                f"{place.corpus}/../outside/secret.wav",
            ),
        )
    )
