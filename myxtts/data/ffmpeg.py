"""Audio that libsndfile cannot read, decoded by ffmpeg, once, into a cache of the user."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

from myxtts.errors import DataError
from myxtts.files import cache_folder, file_stamp, partial_file_of

# G.722 and GSM have no header: ffmpeg knows them by these names.
FFMPEG_SUFFIXES = (
    *(".g722", ".gsm", ".m4a", ".m4b", ".aac", ".mp4", ".mov"),
    *(".mkv", ".mka", ".webm", ".avi", ".wma", ".amr", ".3gp"),
)

_ANNOUNCING = Lock()

log = logging.getLogger(__name__)


def libsndfile_path(path: str) -> str:
    """Return a file that libsndfile can read: `path`, or a FLAC file of its first audio stream.

    The FLAC file, of 16 bits, keeps rate and channels, and is made if there is none of this content
    (size and times of the file). Raises DataError if ffmpeg is missing or fails, or the cache
    cannot be written.
    """
    if not path.lower().endswith(FFMPEG_SUFFIXES):
        return path
    key = json.dumps([os.path.realpath(path), file_stamp(path)]).encode()
    decoded = cache_folder() / "audio" / f"{hashlib.sha256(key).hexdigest()[:32]}.flac"
    if not decoded.exists():
        _decode(path, decoded)
    return str(decoded)


def _decode(path: str, decoded: Path) -> None:
    program = shutil.which("ffmpeg")
    if program is None:
        suffix = os.path.splitext(path)[1]
        raise DataError(
            f"{suffix} is read by ffmpeg, which is not installed. Install it, or convert the file"
            " to WAV or FLAC"
        )
    partial = partial_file_of(decoded)
    # A playlist must not make it reach the network, nor may a name be taken for an option.
    source = "-protocol_whitelist", "file", "-i", f"file:{path}"
    flac = "-map", "0:a:0", "-sample_fmt", "s16", "-f", "flac", f"file:{partial}"
    try:
        decoded.parent.mkdir(parents=True, exist_ok=True)
        with _ANNOUNCING:
            _announce(decoded.parent)
        subprocess.run(
            [program, "-nostdin", "-v", "error", "-xerror", "-threads", "1", *source, *flac],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        os.replace(partial, decoded)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise DataError(f"ffmpeg cannot decode it: {lines[-1]}") from error
    except OSError as error:
        raise DataError(
            f"it cannot be decoded into {decoded.parent}: {error.strerror}. Free some disk space,"
            " or set XDG_CACHE_HOME to another folder"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


@cache
def _announce(folder: Path) -> None:
    log.info("%-14s what libsndfile cannot read is decoded into %s", "ffmpeg", folder)
