"""Voices by name: of the package `myxtts-voices`, of a checkout, and those that can be fetched.

An index.json in a folder of voices lists them by name, each with its folder below that of the
index, or a URL, from which it is fetched once into the user's cache:

    {"en-woman": {"languages": ["en"], "speakers": ["woman"], "licence": "Apache-2.0",
                  "consent": "synthetic: taught by …", "folder": "en-woman", "mb": 14.2,
                  "url": "https://…", "sha256": "…"}}

A voice's folder is one that `myxtts publish` writes: `onnx/` in it speaks without TensorFlow, and
`checkpoints/` makes it a run, from which others can start. It may have one of them alone.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from myxtts.base.errors import ConfigError
from myxtts.base.names import base_language
from myxtts.base.published import local_run
from myxtts.speak.chunks import FRONTEND
from myxtts.speak.piper_voice import PiperVoice
from myxtts.speak.player import ExportedSpeaker, Speaker, read_voice
from myxtts.text.languages import letters_by_script, names_of, scripts_of

PACKAGE = "myxtts_voices"  # of the wheel myxtts-voices
CHECKOUT = Path(__file__).parents[2] / "voices" / PACKAGE
INDEX = "index.json"
TRAIN_ONE = "docs/guides/voices.md says how to train one, and --voice takes a folder."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Voice:
    """A voice of an index.

    Attributes:
        consent: whose voice it is, and what they have agreed to; or which voice has taught it.
        folder: where it is installed; None if it has to be fetched.
        sha256: of the file of checksums at the URL.
    """

    name: str
    languages: tuple[str, ...]
    licence: str
    consent: str
    speakers: tuple[str, ...] = ()
    folder: Path | None = None
    url: str = ""
    sha256: str = ""
    mb: float = 0.0

    @property
    def path(self) -> Path:
        """The folder that `myxtts publish` wrote; it is fetched if it is not installed."""
        return self.folder or local_run(f"{self.url}#sha256={self.sha256}")

    @property
    def is_mute(self) -> bool:
        """Whether it has weights alone, from which runs start."""
        return self.folder is not None and not (self.folder / "onnx").is_dir()


@cache
def voices() -> dict[str, Voice]:
    """Return all voices by name; those of the installed package before those of the checkout."""
    found: dict[str, Voice] = {}
    for folder in _folders():
        for name, entry in json.loads((folder / INDEX).read_text("utf-8")).items():
            found.setdefault(name, _voice(name, entry, folder))
    return found


def _folders() -> Iterator[Path]:
    spec = find_spec(PACKAGE)
    places = [*(spec.submodule_search_locations or ())] if spec else []
    for folder in map(Path, dict.fromkeys([*places, str(CHECKOUT)])):
        if (folder / INDEX).is_file():
            yield folder


def _voice(name: str, entry: dict, folder: Path) -> Voice:
    own = folder / entry["folder"] if "folder" in entry else None
    if own is not None and not any((own / part).is_dir() for part in ("onnx", "checkpoints")):
        own = None
    return Voice(
        name=name,
        languages=tuple(entry["languages"]),
        licence=entry["licence"],
        consent=entry["consent"],
        speakers=tuple(entry.get("speakers", ())),
        folder=own,
        url=entry.get("url", "").rstrip("/"),
        sha256=entry.get("sha256", ""),
        mb=entry.get("mb", 0.0),
    )


def voice_named(name: str) -> Voice:
    """Return a voice of the index; raises ConfigError if there is none of this name."""
    if name not in voices():
        raise ConfigError(f"there is no voice {name!r}. {known_voices()} {TRAIN_ONE}")
    return voices()[name]


def run_folder(name: str | Path) -> Path:
    """Return the folder of a run: a folder, else the voice of this name, else what a URL has."""
    if not Path(name).exists() and str(name) in voices():
        return voices()[str(name)].path
    return local_run(name) if isinstance(name, str) else name


def voice_for(text: str, language: str | None) -> Voice:
    """Return the first voice of a language, or else one in whose script most letters of the text
    are, installed ones first. Raises ConfigError if there is none: no other voice stands in for it.
    """
    speaking = (voice for voice in voices().values() if not voice.is_mute)
    ordered = sorted(speaking, key=lambda voice: voice.folder is None)
    if language is not None:
        code = base_language(language)
        fitting = (voice for voice in ordered if code in _bases(voice.languages))
        wanted = f"for --language {language}"
    else:
        letters = letters_by_script([text])
        script = letters.most_common(1)[0][0] if letters else "Latn"
        fitting = (voice for voice in ordered if script in scripts_of(voice.languages[0]))
        wanted = f"for a text in {names_of([script])} letters"
    if (voice := next(fitting, None)) is None:
        raise ConfigError(f"there is no voice {wanted}. {known_voices()} {TRAIN_ONE}")
    return voice


def open_exported(path: Path) -> Speaker:
    """Open an exported voice: its folder, a published one, or a file *.onnx, also one of Piper."""
    graph, document = read_voice(path)
    return ExportedSpeaker(path) if FRONTEND in document else PiperVoice(graph, document)


def known_voices() -> str:
    names = [f"{voice.name} ({' '.join(voice.languages)})" for voice in voices().values()]
    return f"There are {', '.join(names)}." if names else "No voice is installed."


def _bases(languages: Iterable[str]) -> set[str]:
    return {base_language(language) for language in languages}
