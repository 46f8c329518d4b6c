"""espeak-ng through ctypes: phonemes of a text, and speech with the time of each phoneme.

espeak-ng has the licence GPL-3, so it is loaded on first use and never at import. The interface is
`speak_lib.h`, API revision 12 (espeak-ng 1.49 to 1.52).
"""

import ctypes
import logging
import re
import shutil
import signal
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.base.errors import DataError
from myxtts.base.names import canonical_code

# The sample rate of every formant voice.
SAMPLE_RATE_HZ = 22_050
PAUSE, WORD_GAP = "", " "

# espeak_Synth returns after the last callback and opens no audio device.
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _IPA_EVENTS, _NO_EXIT = 1, 2, 0x8000
_UTF8, _IPA = 1, 2
_RATE, _VOLUME, _PITCH = 1, 2, 3
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7
# A buffer this long takes most sentences in one callback.
_BUFFER_MS = 10_000
# At 100 some vowels reach full scale and activate the gain control of the library.
_VOLUME_PERCENT = 60
_LANGUAGE_SWITCH = re.compile(r"\([a-z][a-z0-9-]*\)")
# espeak-ng 1.52 writes the word for each dot of 1.1.1. … behind the end of a buffer of 200 bytes
# (Georgian, Haitian).
_LONG_NUMBER = re.compile(r"\d[\d.]{19,}")
# NFC puts these behind the vowels, but espeak-ng's rules have them in front, as people write them:
# Arabic shadda; Hebrew shin dot, sin dot and dagesh. By canonical class, as in Unicode's UTR 53.
_BEFORE_VOWELS = {33: 1, 24: 2, 25: 3, 21: 4}
_SEVERAL_MARKS = re.compile("[\u05b0-\u05c7\u064b-\u065f\u0670]{2,}")
# A dagesh behind other letters is not heard. espeak-ng spells words for it (אִשָּׁה), or adds vowels.
_SILENT_DAGESH = re.compile("(?<![בגדוכךפ])\u05bc")
# Accents of Hebrew and pauses of Arabic recitation.
_UNSPOKEN = re.compile("[\u0591-\u05af\u05bd\u05bf\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06ed]")
# NFC decomposes these letters of Hindi and Bengali. Without them ড়া and য়া have no vowel.
_COMPOSED = {
    unicodedata.normalize("NFD", letter): letter
    for letter in map(chr, [*range(0x958, 0x960), 0x9DC, 0x9DD, 0x9DF])
}
_WITH_NUKTA = re.compile(".[\u093c\u09bc]")
# espeak-ng reads only these as Nepali, and leaves out letters of Arabic and Urdu that look alike.
_SPELLINGS = {
    "ne": str.maketrans("0123456789", "०१२३४५६७८९"),
    "ar": str.maketrans("کی", "كي"),
    "ur": str.maketrans("كيى", "کیی"),
}
_DEFAULT_DIALECT = {"en": "en-us"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EspeakVoice:
    """A voice of espeak-ng."""

    language: str
    variant: str = ""  # such as "f2" or "m3"; "" is the plain voice
    pitch: int = 50  # 0 to 99; 50 is the default pitch of the variant
    rate_wpm: int = 175  # 80 to 450


class PhonemeEvent(NamedTuple):
    """Start of a symbol: an IPA phoneme with its stress and length, PAUSE or WORD_GAP."""

    start_s: float
    symbol: str


_INTEGER, _UNSIGNED = ctypes.c_int, ctypes.c_uint
_TEXT, _POINTER = ctypes.c_char_p, ctypes.c_void_p


class _Event(ctypes.Structure):
    _fields_ = (
        *(("type", _INTEGER), ("unique_identifier", _UNSIGNED), ("text_position", _INTEGER)),
        *(("length", _INTEGER), ("audio_position_ms", _INTEGER), ("sample", _INTEGER)),
        *(("user_data", _POINTER), ("symbol", ctypes.c_char * 8)),
    )


class _VoiceRecord(ctypes.Structure):
    # `languages` is no string: (priority byte, code, NUL)… NUL. More fields follow.
    _fields_ = (("name", _TEXT), ("languages", _POINTER), ("identifier", _TEXT))


_Callback = ctypes.CFUNCTYPE(
    _INTEGER, ctypes.POINTER(ctypes.c_short), _INTEGER, ctypes.POINTER(_Event)
)


class Espeak:
    """One loaded copy of the library. The library has global state, so a lock serialises all calls.

    Phonemes depend only on the text and the language. Speech also depends on earlier calls (flutter
    and wave phase continue): the same calls in the same order return the same samples, except for
    variants with `breath` (f2, f3, f5, …), which read uninitialised memory.

    Raises DataError if the library or its data cannot be loaded.
    """

    def __init__(self, library_path: Path, data_path: Path):
        self._lock = threading.Lock()
        self._library = _load(library_path)
        # The library keeps no reference, so this object must.
        self._callback = _Callback(self._receive)
        self._samples: list[bytes] = []
        self._events: list[PhonemeEvent] = []
        self._voice_name = ""
        options = _PHONEME_EVENTS | _IPA_EVENTS | _NO_EXIT
        # The path compiled into the wheel is a path of its build machine.
        path = str(data_path).encode()
        rate_hz = self._library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, path, options)
        if rate_hz != SAMPLE_RATE_HZ:
            raise DataError(
                f"espeak-ng cannot read its data in {data_path}. Reinstall espeakng-loader, in an"
                " environment of a shorter path if this one has more than 159 bytes."
            )
        self._library.espeak_SetSynthCallback(self._callback)
        self._voices, self._codes_by_name = self._list_voices()

    def phonemes(self, text: str, language: str) -> str:
        """Return the IPA of a text with one space between words; raise DataError for an unknown
        language.
        """
        return " ".join(_LANGUAGE_SWITCH.sub("", self.marked_phonemes(text, language)).split())

    def marked_phonemes(self, text: str, language: str) -> str:
        """Return the same with its language switches: (en)wˈɪndəʊz(ru)."""
        text = text.translate(_SPELLINGS.get(canonical_code(language), {}))
        with self._lock:
            self._select(language)
            return " ".join(self._clauses(text)).strip()

    def check_language(self, language: str) -> None:
        """Raise DataError if the language is unknown."""
        with self._lock:
            self._select(language)

    def synthesize(self, text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[PhonemeEvent]]:
        """Return speech, int16 at 22,050 Hz, and the starts of phonemes, pauses and words.

        Raises DataError if the language is unknown, and ValueError if the variant is.
        """
        encoded = _utf8(text)
        settings = {_RATE: voice.rate_wpm, _VOLUME: _VOLUME_PERCENT, _PITCH: voice.pitch}
        with self._lock:
            self._select(voice.language, voice.variant)
            for parameter, value in settings.items():
                self._library.espeak_SetParameter(parameter, value, 0)
            self._samples, self._events = [], []
            size = len(encoded) + 1
            with _interrupt_deferred():
                status = self._library.espeak_Synth(encoded, size, 0, 0, 0, _UTF8, None, None)
            samples, events = self._samples, self._events
        assert status == 0, status
        return np.frombuffer(b"".join(samples), dtype=np.int16), events

    def _receive(self, wave, samples: int, events) -> int:
        """Collect the output of espeak_Synth. Returning 0 lets it continue."""
        if samples:
            self._samples.append(ctypes.string_at(wave, 2 * samples))
        index = 0
        while events[index].type != _END_OF_LIST:
            self._collect(events[index])
            index += 1
        return 0

    def _collect(self, event: _Event) -> None:
        start_s = event.sample / SAMPLE_RATE_HZ
        if event.type == _WORD and self._events:
            self._events.append(PhonemeEvent(start_s, WORD_GAP))
        elif event.type == _PHONEME:
            # Truncated to 8 bytes, possibly inside a character.
            symbol = event.symbol.decode(errors="ignore")
            if not _LANGUAGE_SWITCH.match(symbol):
                self._events.append(PhonemeEvent(start_s, symbol))

    def _clauses(self, text: str) -> Iterator[str]:
        buffer = ctypes.create_string_buffer(_utf8(text))
        position = ctypes.c_void_p(ctypes.addressof(buffer))
        # Each call reads one clause; the last one sets NULL.
        while position.value:
            yield self._library.espeak_TextToPhonemes(ctypes.byref(position), _UTF8, _IPA).decode()

    def _select(self, language: str, variant: str = "") -> None:
        identifier = self._voices.get(voice_of(language))
        if identifier is None:
            raise self._unknown(language)
        name = identifier
        if variant:
            name += f"+{variant}"
        if name == self._voice_name:
            return
        self._voice_name = ""
        status = self._library.espeak_SetVoiceByName(name.encode())
        # Without a dictionary in the wheel (fo, kaa, xex), a voice is silent.
        if status != 0 or not "".join(self._clauses("a")):
            raise self._unknown(language)
        selected = self._library.espeak_GetCurrentVoice().contents.identifier.decode()
        if selected != name:
            raise ValueError(f"espeak-ng has no voice variant {variant!r}")
        self._voice_name = name

    def probable_code(self, language: str) -> str | None:
        """Return the code that an English name or a locale means; None if uncertain."""
        code = canonical_code(language)
        for name in (code, re.split(r"[-.@ ]", code)[0]):
            if (found := self._codes_by_name.get(name, name)) in self._voices:
                return found
        return None

    def _unknown(self, language: str) -> DataError:
        code = self.probable_code(language)
        advice = "Use a code such as en, de, ka or fa, or --text-frontend characters."
        if code and code != canonical_code(language):
            advice = f"Did you mean {code}? Give it with --language, or in the language column."
        return DataError(
            f"language {language[:40]!r} was requested, but the installed espeak-ng does not have"
            f" it. {advice}"
        )

    def _list_voices(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the best voice by language code, and the language code by English name."""
        records = self._library.espeak_ListVoices(None)
        ranked: dict[str, tuple[int, str]] = {}
        codes_by_name: dict[str, str] = {}
        index = 0
        while records[index]:
            record = records[index].contents
            identifier = record.identifier.decode()
            languages: list[tuple[int, str]] = []
            address = record.languages
            while priority := ctypes.string_at(address, 1)[0]:
                spelling = ctypes.string_at(address + 1)
                languages.append((priority, spelling.decode().lower()))
                address += len(spelling) + 2
            name = record.name.decode().lower().split(" (")[0].strip()
            codes = [codes_by_name.get(name, languages[0][1]), *(code for _, code in languages)]
            codes_by_name[name] = min(codes, key=len)  # English is en, not en-029
            for priority, code in languages:
                ranked[code] = min(ranked.get(code, (priority, identifier)), (priority, identifier))
            index += 1
        return {code: identifier for code, (_, identifier) in ranked.items()}, codes_by_name


@contextmanager
def isolated_copy() -> Iterator[Espeak]:
    """Load a copy of the library with a fresh state, so that equal calls return equal samples."""
    library_path, data_path = _installed_paths()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Espeak(Path(shutil.copy(library_path, folder)), data_path)


_shared_lock = threading.Lock()
_shared_copies: list[Espeak] = []


def shared() -> Espeak:
    """Return the copy that all callers of this process share."""
    with _shared_lock:
        if not _shared_copies:
            library_path, data_path = _installed_paths()
            _shared_copies.append(Espeak(library_path, data_path))
        return _shared_copies[0]


def voice_of(language: str) -> str:
    """Return the code of the voice that speaks a language: en-us for en."""
    code = canonical_code(language)
    return _DEFAULT_DIALECT.get(code, code)


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Defer Ctrl-C until the block ends: ctypes drops exceptions within a callback."""
    # Only the main thread receives signals, so another one has nothing to defer.
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    arrived = []
    signal.signal(signal.SIGINT, lambda *arguments: arrived.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if arrived:
        previous(*arrived[0])


def _installed_paths() -> tuple[Path, Path]:
    try:
        import espeakng_loader
    except ModuleNotFoundError as error:
        raise DataError(
            "phonemes and demo speech need the package espeakng-loader, which is not installed."
            " Run: pip install espeakng-loader"
        ) from error
    return Path(espeakng_loader.get_library_path()), Path(espeakng_loader.get_data_path())


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DataError(
            f"espeak-ng could not be loaded from {path}: {error}. Reinstall espeakng-loader. If the"
            " temporary folder is mounted noexec, set TMPDIR to another one."
        ) from error
    voice = ctypes.POINTER(_VoiceRecord)
    library.espeak_GetCurrentVoice.restype = voice
    library.espeak_ListVoices.restype = ctypes.POINTER(voice)
    library.espeak_TextToPhonemes.restype = _TEXT
    # Other arguments are integers of C and pointers, as ctypes passes them by itself.
    numbers = _UNSIGNED, _INTEGER, _UNSIGNED, _UNSIGNED
    library.espeak_Synth.argtypes = (_TEXT, ctypes.c_size_t, *numbers, _POINTER, _POINTER)
    return library


def _utf8(text: str) -> bytes:
    assert "\0" not in text, "NUL ends C strings"

    def without_dots(number: re.Match) -> str:
        if number[0].count(".") < 2:
            return number[0]
        return number[0].replace(".", " ")

    text = _WITH_NUKTA.sub(lambda letter: _COMPOSED.get(letter[0], letter[0]), text)
    # U+05C7 is a variant of the vowel U+05B8.
    text = _UNSPOKEN.sub("", text).replace("\u05c7", "\u05b8")
    text = _SILENT_DAGESH.sub("", _SEVERAL_MARKS.sub(_in_order, text))
    return _LONG_NUMBER.sub(without_dots, text).encode()


def _in_order(marks: re.Match) -> str:
    def place(mark: str) -> int:
        mark_class = unicodedata.combining(mark)
        return _BEFORE_VOWELS.get(mark_class, mark_class)

    return "".join(sorted(unicodedata.normalize("NFD", marks[0]), key=place))
