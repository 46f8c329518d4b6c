"""The audio files of a folder, found by the names that a metadata file gives them.

A subfolder is listed once, when the first name in it is looked up: a corpus of a million rows needs
no system call for each row.
"""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from myxtts.errors import DataError

AUDIO_SUFFIXES = (
    ".wav",
    ".flac",
    ".ogg",
    ".opus",
    ".mp3",
)  # in the order in which files of one stem are taken
AUDIO_SUBFOLDERS = ("wavs", "wav", "audio", "clips")  # LJSpeech, Piper, others, Common Voice
SEARCHED_FOLDERS = 1_000  # bounds the time for an error message about a large tree


class AudioFolder:
    """A folder whose files may have other suffixes, and names in another Unicode form, than the
    metadata says.
    """

    def __init__(self, path: Path):
        self.path = path
        self._prefix = os.path.join(os.path.abspath(path), "")
        self._listing = cache(self._list)
        self._by_stem = cache(self._index)
        self._real_path = cache(os.path.realpath)
        self._is_inside = cache(self._leads_inside)

    def find(self, name: str) -> str | None:
        r"""Return the path of a file in this folder, relative to it unless `name` is absolute; None
        if there is none.

        These are tried: the name as it is; the name with / instead of \; the file of the same stem,
        compared in the Unicode form NFC, with a suffix of AUDIO_SUFFIXES in upper or lower case. Of
        several, the first in that order.
        """
        if name.startswith(self._prefix):
            found = self.find(name.removeprefix(self._prefix))
            return found and self._prefix + found
        if name.startswith("/") or "../" in name:
            return name if self._contains(name) else None
        subfolder, _, file = name.rpartition("/")
        if not self._is_inside(subfolder):
            return name if os.path.exists(os.path.join(self.path, name)) else None
        written, files = self._listing(subfolder)
        if file in files:
            return name if written == subfolder else os.path.join(written, file)
        if "\\" in name:
            return self.find(name.replace("\\", "/"))
        similar = self._by_stem(subfolder).get(stem_of(file))
        return os.path.join(written, similar[0]) if similar else None

    def _contains(self, name: str) -> bool:
        """Whether a path that may lead out of the folder names a file in it."""
        return self._is_inside(os.path.dirname(name)) and os.path.exists(
            os.path.join(self.path, name)
        )

    def _leads_inside(self, subfolder: str) -> bool:
        """Whether a path is in this folder, and by no link outside of it, where nothing is
        listed.
        """
        real_path = os.path.join(self._real_path(os.path.join(self.path, subfolder)), "")
        return real_path.startswith(os.path.join(self._real_path(self.path), ""))

    def _list(self, subfolder: str) -> tuple[str, frozenset[str]]:
        """The subfolder as it is written on the disk, and the names in it."""
        for form in dict.fromkeys(
            (subfolder, *(unicodedata.normalize(form, subfolder) for form in ("NFC", "NFD")))
        ):
            try:
                return form, frozenset(os.listdir(os.path.join(self.path, form)))
            except OSError:
                continue
        return subfolder, frozenset()

    def _index(self, subfolder: str) -> dict[str, list[str]]:
        """The audio files of a subfolder by their stem, in the order of AUDIO_SUFFIXES."""
        files: dict[str, list[str]] = {}
        for name in sorted(filter(suffix_of, self._listing(subfolder)[1]), key=_order):
            files.setdefault(stem_of(name), []).append(name)
        return files


def _order(name: str) -> tuple[int, bool, str]:
    suffix = suffix_of(name)
    return AUDIO_SUFFIXES.index(suffix), not name.endswith(suffix), name


def suffix_of(name: str) -> str:
    """Return the suffix of an audio file in lower case; empty for any other file."""
    suffix = "." + name.rpartition(".")[2].lower()
    return suffix if suffix in AUDIO_SUFFIXES else ""


def stem_of(name: str) -> str:
    """Return a name in the Unicode form NFC, without the suffix of an audio file."""
    stem = name[: -len(suffix)] if (suffix := suffix_of(name)) else name
    return stem if stem.isascii() else unicodedata.normalize("NFC", stem)


def audio_subfolders(folder: Path) -> list[Path]:
    """Return the subfolders whose names say that they hold the audio, such as wavs/ or Clips/."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for usual in AUDIO_SUBFOLDERS for name in names if name.lower() == usual]


def audio_files(folder: Path, others: Sequence[str] = ()) -> Iterator[str]:
    """Yield the audio files in a folder and below it, in order, relative to it; hidden ones are
    left out.

    Links to folders are not followed; they are yielded, with a slash at the end.

    Args:
        others: more suffixes to count as audio.

    Raises:
        DataError: a folder cannot be read.
    """
    for path, subfolders, names in os.walk(folder, onerror=_raise_unreadable):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in subfolders:
            if os.path.islink(link := os.path.join(path, name)):
                yield os.path.join(os.path.relpath(link, folder), "")
        for name in sorted(names):
            if not name.startswith(".") and (
                suffix_of(name) or name.lower().endswith(tuple(others))
            ):
                yield os.path.relpath(os.path.join(path, name), folder)


def _raise_unreadable(error: OSError) -> None:
    raise DataError(
        f"the folder {error.filename} cannot be read: {error.strerror}. Fix its permissions, or"
        " move it away."
    ) from error


def walk_folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the first SEARCHED_FOLDERS folders of a tree, each with its sorted file names."""
    for number, (path, subfolders, names) in enumerate(os.walk(folder)):
        if number == SEARCHED_FOLDERS:
            return
        subfolders.sort()
        yield Path(path), sorted(names)
