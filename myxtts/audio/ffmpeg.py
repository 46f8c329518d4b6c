"""Audio that libsndfile cannot read, decoded by ffmpeg, once, into a cache of the user."""

import logging
import os
import shutil
import subprocess
from functools import cache, partial
from pathlib import Path

from myxtts.base.errors import DataError
from myxtts.base.files import cache_folder, cached_folder, file_stamp

# G.722 and GSM have no header: ffmpeg knows them by these names.
FFMPEG_SUFFIXES = (
    *(".g722", ".gsm", ".m4a", ".m4b", ".aac", ".mp4", ".mov"),
    *(".mkv", ".mka", ".webm", ".avi", ".wma", ".amr", ".3gp"),
)

DECODED = "audio.flac"

log = logging.getLogger(__name__)


def libsndfile_path(path: str, is_better: bool = False) -> str:
    """Return a file that libsndfile can read: `path`, or a FLAC file of its first audio stream, if
    the name says so, or ffmpeg reads it better and is installed.

    The FLAC file, of 16 bits, keeps rate and channels. Raises DataError if ffmpeg is missing or
    fails, or the cache cannot be written.
    """
    if not path.lower().endswith(FFMPEG_SUFFIXES) and not (is_better and shutil.which("ffmpeg")):
        return path
    key = os.path.realpath(path), file_stamp(path)
    try:
        return str(cached_folder("audio", key, partial(_decode, path)) / DECODED)
    except OSError as error:
        raise DataError(
            f"it cannot be decoded into {cache_folder()}: {error.strerror}. Free some disk space,"
            " or set XDG_CACHE_HOME to another folder"
        ) from error


def _decode(path: str, folder: Path) -> None:
    program = shutil.which("ffmpeg")
    if program is None:
        suffix = os.path.splitext(path)[1]
        raise DataError(
            f"{suffix} is read by ffmpeg, which is not installed. Install it, or convert the file"
            " to WAV or FLAC"
        )
    _announce(folder.parent)
    # A playlist must not make it reach the network, nor may a name be taken for an option.
    source = "-protocol_whitelist", "file", "-i", f"file:{path}"
    flac = "-map", "0:a:0", "-sample_fmt", "s16", f"file:{folder / DECODED}"
    command = [program, "-nostdin", "-v", "error", "-xerror", "-threads", "1", *source, *flac]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise DataError(f"ffmpeg cannot decode it: {lines[-1]}")


@cache
def _announce(folder: Path) -> None:
    log.info("%-14s what libsndfile cannot read is decoded into %s", "ffmpeg", folder)
