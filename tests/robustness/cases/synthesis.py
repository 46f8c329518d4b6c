"""References and options of synthesis: used as they are meant, or refused by name."""

import io
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import soundfile

from myxtts.config.synthesis import SynthesisOptions
from myxtts.tasks.tts.synthesizer import Synthesizer
from tests.robustness.cases import Case, Lab, warnings
from tests.robustness.cases.files import LFS

RATE_HZ = 22_050
SPOKEN, NO_SOUND = "speaks", "error: the reference .* has no sound in its first .*"
# It is said once.
ONE_CHANNEL = f"{SPOKEN}(; said .*are left out.*)?"
SCALE = "error: the reference .*: another scale: .*"

# Name: what makes the file of a wave of speech, and what is right.
REFERENCES: dict[str, tuple[Callable[[np.ndarray], np.ndarray | bytes], str]] = {
    "speech": (lambda wave: wave, SPOKEN),
    "speech after 5 s": (lambda wave: np.append(np.zeros(5 * RATE_HZ), wave), SPOKEN),
    "speech beside silence": (lambda wave: np.stack([wave, 0 * wave], 1), ONE_CHANNEL),
    "opposite phase": (lambda wave: np.stack([wave, -wave], 1), ONE_CHANNEL),
    "clipped": (lambda wave: np.clip(50 * wave, -1, 1), f"{SPOKEN}; said .*is clipped.*"),
    "silence": (lambda wave: 0 * wave, NO_SOUND),
    "a constant": (lambda wave: 0 * wave + 0.3, NO_SOUND),
    "divided twice": (lambda wave: wave / 32_768, SCALE),
    "scale of 16 bits": (lambda wave: wave * 32_768, SCALE),
    "NaN": (lambda wave: wave * np.nan, "error: the reference .*: not finite: sample 0.*"),
    "0.4 s": (lambda wave: wave[: int(0.4 * RATE_HZ)], "error: the reference .* has 0.40 s.*"),
    "Git LFS": (lambda wave: LFS, "error: the reference .*Git LFS.*"),
    "HTML": (lambda wave: b"<!DOCTYPE html><html></html>", "error: the reference .*unreadable.*"),
    "empty": (lambda wave: b"", "error: the reference .*empty file.*"),
}
TEXTS = {
    "": "error: .*no letter and no digit.*",
    "...": "error: .*no letter and no digit.*",
    "7": SPOKEN,
    "你好": "error: espeak-ng cannot read 你.*",
    "[[ˈæ]]": SPOKEN,
    "[[x": SPOKEN,
    "hundred oil lamps " * 40: SPOKEN,
    "a\u0301\u0301\u0301\u0301 lamp": SPOKEN,
}
OPTIONS = {
    **{f"speed {value}": {"speed": value} for value in (0.0, -1.0, 1e9, 1e-9, np.nan, np.inf)},
    **{f"variety {value}": {"variety": value} for value in (-1.0, 100.0, np.nan)},
    **{f"guidance {value}": {"guidance": value} for value in (np.inf, np.nan)},
    "ode_steps 0": {"ode_steps": 0},
    "pitch_semitones 1000": {"pitch_semitones": 1_000.0},
    "energy_db nan": {"energy_db": np.nan},
    "seed -1": {"seed": -1},
}


class Speaker:
    """Speaks with the run of a lab."""

    def __init__(self, lab: Lab):
        self._lab = lab
        self._folder = lab.folder / "references"
        self._folder.mkdir()
        audio = lab.demo / "wavs" / f"{lab.rows[0][0]}.wav"
        self._wave, _ = soundfile.read(audio)

    @cached_property
    def _synthesizer(self) -> Synthesizer:
        return Synthesizer(self._lab.trained, vocoder="griffin-lim")

    def file(self, name: str, content: np.ndarray | bytes) -> Path:
        path = self._folder / f"{name}.wav"
        if not isinstance(content, bytes):
            file = io.BytesIO()
            soundfile.write(file, content, RATE_HZ, "FLOAT", format="WAV")
            content = file.getvalue()
        path.write_bytes(content)
        return path

    def speak(self, text: str = "", references: list[Path] | None = None, **options) -> str:
        """Return whether something is heard, and what was warned about."""
        with warnings() as said:
            wave = self._synthesizer.synthesize(
                text or self._lab.rows[0][1], references or (), **options
            )
        heard = SPOKEN if np.isfinite(wave).all() and np.ptp(wave) > 1e-3 else "not heard"
        return "; ".join([heard, *(f"said {line}" for line in said)])

    def with_reference(self, name: str) -> str:
        return self.speak(references=[self.file(name, REFERENCES[name][0](self._wave))])

    def with_references(self, *names: str) -> str:
        return self.speak(references=[self.file(name, self._wave) for name in names])


def _option(given: dict) -> str:
    SynthesisOptions(**given)
    return "accepted"


def cases(lab: Lab) -> Iterator[Case]:
    speaker = Speaker(lab)
    for name, (_, expected) in REFERENCES.items():
        yield Case("references", name, expected, lambda n=name: speaker.with_reference(n))
    missing, folder = lab.folder / "none.wav", lab.folder
    yield Case("references", "one twice", SPOKEN, lambda: speaker.with_references("a", "a"))
    yield Case(
        "references",
        "missing",
        "error: the reference .*missing file.*",
        lambda: speaker.speak(references=[missing]),
    )
    yield Case(
        "references",
        "a folder",
        "error: the reference .*not a file.*",
        lambda: speaker.speak(references=[folder]),
    )
    for text, expected in TEXTS.items():
        yield Case("texts", text[:20], expected, lambda t=text: speaker.speak(t or " "))
    for name, given in OPTIONS.items():
        setting = name.split()[0]
        yield Case("options", name, f"error: .*{setting}.*", lambda g=given: _option(g))
    yield Case("options", "speed 2", "accepted", lambda: _option({"speed": 2.0}))
