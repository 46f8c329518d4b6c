"""The page that speaks: by `myxtts serve`, or in a folder without it, by packages of npm."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from myxtts.base.errors import ConfigError
from myxtts.base.files import write_whole
from myxtts.speak.page import PAGE
from myxtts.text.readers import PLAYED

RUNTIME = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
ESPEAK = "espeak-ng.js", "espeak-ng.wasm"


def npm_files(node_modules: Path, text_frontend: str) -> dict[str, bytes]:
    """Return the files of npm that the page of a voice needs; raises ConfigError if one is missing.

    They come from the packages onnxruntime-web and, for phonemes, espeak-ng.
    """
    if text_frontend not in PLAYED:
        raise ConfigError(
            f"--format web was given, but the page cannot read texts by {text_frontend!r}. Speak"
            " with `myxtts say` or `myxtts serve`, whose machine has this front end."
        )
    files = dict.fromkeys(RUNTIME, "onnxruntime-web")
    if text_frontend == "phonemes":
        files |= dict.fromkeys(ESPEAK, "espeak-ng")
    try:
        return {
            name: (node_modules / package / "dist" / name).read_bytes()
            for name, package in files.items()
        }
    except OSError as error:
        packages = " ".join(dict.fromkeys(files.values()))
        raise ConfigError(
            f"--format web needs {error.filename}: {error.strerror}. Run `npm install {packages}`,"
            " or give its folder node_modules with --node-modules."
        ) from error


def write_page(folder: Path, voice: str, files: Mapping[str, bytes]) -> None:
    """Write index.html, which speaks with an exported file beside it, and the files of npm."""
    page = PAGE.read_text("utf-8").replace('data-voice=""', f'data-voice="{quote(voice)}"', 1)
    for name, content in {**files, "index.html": page.encode()}.items():
        write_whole(folder / name, content)
