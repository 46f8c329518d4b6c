"""Corpora in tar files as others write them: Lhotse Shar, NeMo's tarred datasets and WebDataset.

Their audio stays where it is: the name of a row's audio is an address within a tar file.
"""

import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any

from myxtts.base.errors import DataError
from myxtts.base.files import decode_text
from myxtts.base.members import Member, base_of, is_url, store_of
from myxtts.corpus.audio_folder import suffix_of
from myxtts.corpus.rows import CorpusOptions, Layout
from myxtts.corpus.tables import COLUMN_NAMES, decompressed, objects_of, row_of, table_of
from myxtts.extras.store.stores import Store


# Files beside the tars tell the form: cuts of Lhotse, a list of NeMo, or none, as in WebDataset.
# Each form yields the same entries: keys and values with the address of the audio.
def read_tar_shards(options: CorpusOptions) -> Layout | None:
    """Read a folder of tar files, or a folder that stands for an object store with them."""
    folder = options.path
    if not os.path.isdir(folder):
        return None
    base = base_of(folder)
    files = store_of(base).list() if is_url(base) else os.listdir(folder)
    names = [name for name in files if "/" not in name]
    tars = sorted(name for name in names if name.endswith(".tar"))
    cuts = sorted(name for name in names if name.startswith("cuts.") and ".jsonl" in name)
    lists = sorted({name for name in names if name.endswith((".json", ".jsonl"))}.difference(cuts))
    if not tars:
        return None
    store = store_of(base)
    if cuts:
        recordings = [name for name in tars if name.startswith("recording.")]
        form, entries = "Lhotse Shar", _shar(store, cuts, recordings)
    elif lists:
        form, entries = "tar files listed for NeMo", _nemo(store, lists, tars)
    else:
        form, entries = "WebDataset", _webdataset(store, tars)
    found = [*enumerate(entries, 1)]
    table = table_of(found, options.needs_text)
    if table is None:
        keys = ", ".join(dict.fromkeys(chain.from_iterable(entry for _, entry in found)))
        raise DataError(
            f"the tar files in {base} should have audio and texts, but have {keys}."
            f" Name the texts {COLUMN_NAMES['text'][0]}, in a JSON or text file of each utterance."
        )
    rows = [row_of(line, fields, table, folder) for line, fields in table.records]
    form += f" in {base}, keys {', '.join(filter(None, table.columns))}"
    return Layout(form, folder, rows, [folder])


def _members(
    store: Store, tar: str, suffixes: Sequence[str] = ()
) -> Iterator[tuple[Member, bytes]]:
    """Yield the files in a tar file, with the content of those with some suffixes."""
    try:
        with store.explained(tar), tarfile.open(fileobj=store.reader(tar), mode="r|") as archive:
            for header in archive:
                if header.isfile():
                    content = b""
                    if header.name.endswith(tuple(suffixes)):
                        content = archive.extractfile(header).read()  # type: ignore[union-attr]
                    file, name = os.path.join(store.base, tar), header.name.removeprefix("./")
                    yield Member(file, header.offset_data, header.size, name), content
    except tarfile.TarError as error:
        raise DataError(f"{store.base}/{tar} cannot be read: {error}. Restore the file.") from error


def _audio(store: Store, tar: str) -> dict[str, str]:
    """Return the addresses of the audio of a tar file by name, with and without the suffix."""
    found = {}
    for member, _ in _members(store, tar):
        if suffix_of(member.name):
            found[member.name] = found[os.path.splitext(member.name)[0]] = member.address
    return found


def _objects(store: Store, name: str) -> Iterator[dict[str, Any]]:
    with store.explained(name):
        content = bytes(store.reader(name).read())
    text = decode_text(lambda: decompressed(content, name), f"{store.base}/{name}")
    for line in text.split("\n"):
        if line.strip():
            yield from objects_of(line)


def _shar(store: Store, cuts: Iterable[str], tars: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name, tar in zip(cuts, tars, strict=False):
        audio = _audio(store, tar)
        for row in _objects(store, name):
            yield {**row, "path": audio.get(row.get("path", row.get("id", "")))}


def _nemo(store: Store, lists: Iterable[str], tars: Iterable[str]) -> Iterator[dict[str, Any]]:
    audio: dict[str, str] = {}
    for tar in tars:
        audio |= _audio(store, tar)
    for name in lists:
        for entry in _objects(store, name):
            path = str(entry.pop("audio_filepath", ""))
            yield {"path": audio.get(path) or audio.get(os.path.basename(path)), **entry}


def _webdataset(store: Store, tars: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the samples: files of one name up to the first dot, one after the other."""
    for tar in tars:
        members = _members(store, tar, (".txt", ".json"))
        for _, files in groupby(members, lambda each: _name_and_suffix(each[0])[0]):
            row = dict[str, Any]()
            for member, content in files:
                suffix = _name_and_suffix(member)[1]
                if suffix_of(member.name):
                    row["path"] = member.address
                elif suffix == "txt":
                    row["text"] = content.decode(errors="replace")
                elif suffix == "json":
                    with suppress(ValueError, TypeError):
                        row = {**json.loads(content), **row}
            if row.get("path"):
                yield row


def _name_and_suffix(member: Member) -> tuple[str, str]:
    folder, slash, file = member.name.rpartition("/")
    name, _, suffix = file.partition(".")
    return folder + slash + name, suffix
