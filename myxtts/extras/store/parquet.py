"""Parquet files with the bytes of the audio, as Hugging Face publishes corpora."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base.errors import DataError, check_packages
from myxtts.base.files import cached_folder, file_stamp
from myxtts.corpus.audio_folder import suffix_of
from myxtts.corpus.rows import CorpusOptions, Layout
from myxtts.corpus.tables import COLUMN_NAMES, JSON, Table, meanings, row_of

BATCH_ROWS = 64


class _Part(NamedTuple):
    """One file: its column of audio, a struct of bytes and path, and the columns of the row."""

    path: Path
    file: Any
    audio: str
    others: list[str]


# The header of the first file decides about the columns. The audio is extracted into the user's
# cache unless that was done before. Then the rows are read like those of any other table.
def read_parquet(options: CorpusOptions) -> Layout | None:
    """Read a file, or a folder with its subfolder data/; of several splits, train is read."""
    paths = [options.path]
    if os.path.isdir(options.path):
        paths = sorted([*options.path.glob("*.parquet"), *options.path.glob("data/*.parquet")])
        paths = [path for path in paths if path.name.startswith("train")] or paths
    if not paths or paths[0].suffix != ".parquet":
        return None
    parts = [*map(_open, paths)]
    header = ("path", *(name.lower() for name in parts[0].others))
    columns = meanings(header, options.needs_text)
    if columns is None:
        raise DataError(
            f"{paths[0]} should have a column of texts, but has {', '.join(header[1:])}. Name it"
            f" {COLUMN_NAMES['text'][0]}."
        )
    stamps = [(os.path.realpath(path), file_stamp(path)) for path in paths]
    try:
        folder = cached_folder("parquet", stamps, partial(_extract, parts))
    except OSError as error:
        raise DataError(
            f"the audio in {paths[0]} cannot be written to {error.filename}: {error.strerror}. Free"
            " some disk space, or set XDG_CACHE_HOME to another folder."
        ) from error
    table = Table(JSON, columns, [], header)
    rows = []
    for line, name, part, record in _records(parts, "path"):
        fields = [name, *map(record.get, part.others)]
        row = row_of(line, fields, table, part.path)
        rows.append(row._replace(metadata=str(part.path)))
    form = table.form.replace("JSON lines, keys path", f"parquet, columns {parts[0].audio}")
    return Layout(form, options.path, rows, [folder])


def load_pyarrow(path: Path) -> Any:
    """Return the module that reads a file; raise ConfigError if it is not installed."""
    check_packages(str(path), "pyarrow")
    import pyarrow

    return pyarrow


def _open(path: Path) -> _Part:
    pyarrow = load_pyarrow(path)
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore the file.") from error
    for field in file.schema_arrow:
        if pyarrow.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            others = [
                name
                for name in file.schema_arrow.names
                if name != field.name and name.lower() not in COLUMN_NAMES["path"]
            ]
            return _Part(path, file, field.name, others)
    raise DataError(
        f"{path} should have a column with the bytes of the audio, but has"
        f" {', '.join(file.schema_arrow.names)}. Give audio files and a table that names them."
    )


def _records(parts: Sequence[_Part], field: str) -> Iterator[tuple[int, str, _Part, dict]]:
    """Yield each row's number, name of its audio file, and columns with a field of the audio."""
    number = 0
    for part in parts:
        names = [f"{part.audio}.path", f"{part.audio}.{field}", *part.others]
        for batch in part.file.iter_batches(BATCH_ROWS, columns=[*dict.fromkeys(names)]):
            for record in batch.to_pylist():
                number += 1
                audio = record[part.audio] or {}
                yield number, f"{number:08d}{suffix_of(audio.get('path') or '')}", part, record


def _extract(parts: Sequence[_Part], folder: Path) -> None:
    for _, name, part, record in _records(parts, "bytes"):
        audio = record[part.audio] or {}
        (folder / name).write_bytes(audio.get("bytes") or b"")
