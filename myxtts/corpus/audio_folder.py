"""The audio files of a folder, found by the names that a metadata file gives them.

A subfolder is listed once, when the first name in it is looked up: a corpus of a million rows needs
no system call for each row.
"""

import os
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from myxtts.audio.ffmpeg import FFMPEG_SUFFIXES
from myxtts.base.errors import DataError
from myxtts.base.members import member_of

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", *FFMPEG_SUFFIXES)
# So named by LJSpeech, Piper, others and Common Voice.
AUDIO_SUBFOLDERS = ("wavs", "wav", "audio", "clips")


class AudioFolder:
    """A folder whose files may have other suffixes than the metadata says."""

    def __init__(self, path: Path):
        self.path = path
        absolute = os.path.abspath(path)
        # Absolute names may begin with the name of a linked folder, or with the name of its target.
        roots = dict.fromkeys((absolute, os.path.realpath(absolute)))
        self._prefixes = tuple(os.path.join(root, "") for root in roots)
        self._listing = cache(self._list)
        self._by_stem = cache(self._index)

    def find(self, name: str) -> str | None:
        r"""Return the path of a file, relative unless `name` is absolute; None if it is missing.

        Also returns None if .. or an absolute name leads out of the folder. These are tried: the
        name as it is; the name with / instead of \; the file of the same stem, in the Unicode form
        NFC, with the first suffix of SUFFIXES that there is, in upper or lower case.
        """
        if member_of(name):
            return name
        for prefix in self._prefixes:
            if name.startswith(prefix):
                inside = self.find(name.removeprefix(prefix))
                return inside and prefix + inside
        leads_out = ".." in name and os.path.normpath(name).split(os.sep)[0] == os.pardir
        if leads_out or os.path.isabs(name):
            return None
        subfolder, _, file = name.rpartition("/")
        if file in self._listing(subfolder):
            return name
        if "\\" in name:
            return self.find(name.replace("\\", "/"))
        similar = self._by_stem(subfolder).get(_stem_of(file))
        return similar and os.path.join(subfolder, similar)

    def _list(self, subfolder: str) -> frozenset[str]:
        """The names in a subfolder; none if it is missing."""
        try:
            return frozenset(os.listdir(os.path.join(self.path, subfolder)))
        except OSError:
            return frozenset()

    def _index(self, subfolder: str) -> dict[str, str]:
        """The audio files of a subfolder by their stem; the first of SUFFIXES wins."""
        files = {}
        for name in sorted(filter(suffix_of, self._listing(subfolder)), key=_order, reverse=True):
            files[_stem_of(name)] = name
        return files


def _order(name: str) -> tuple[int, bool, str]:
    suffix = suffix_of(name)
    return SUFFIXES.index(suffix), not name.endswith(suffix), name


def suffix_of(name: str) -> str:
    """Return the suffix of an audio file in lower case; empty for any other file."""
    suffix = "." + name.rpartition(".")[2].lower()
    return suffix if suffix in SUFFIXES else ""


def _stem_of(name: str) -> str:
    """Return a name in the Unicode form NFC, without the suffix of an audio file."""
    return unicodedata.normalize("NFC", name[: len(name) - len(suffix_of(name))])


def audio_subfolders(folder: Path) -> list[Path]:
    """Return the subfolders whose names say that they hold the audio, such as wavs/ or Clips/."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    usual = [name for name in names if name.lower() in AUDIO_SUBFOLDERS]
    usual.sort(key=lambda name: AUDIO_SUBFOLDERS.index(name.lower()))
    return [folder / name for name in usual]


def files_below(folder: Path) -> Iterator[str]:
    """Yield the files in and below a folder, in order, relative to it; not the hidden ones.

    Links are followed, and each folder is listed once, so that a link to a folder around it ends.
    Raises DataError if a folder cannot be read.
    """
    listed = set()
    for path, subfolders, names in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        real_path = os.path.realpath(path)
        if real_path in listed:
            subfolders.clear()
            continue
        listed.add(real_path)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(path, name), folder)


def _raise_unreadable(error: OSError) -> None:
    raise DataError(
        f"the folder {error.filename} cannot be read: {error.strerror}. Fix its permissions, or"
        " move it away."
    ) from error
