"""espeak-ng through ctypes: phonemes of a text, and speech with the time of each phoneme.

The package `espeakng_loader` contains the library and its data. espeak-ng has the licence GPL-3, so
it is loaded on first use and never at import. The interface is `speak_lib.h`, API revision 12
(espeak-ng 1.49 to 1.52).
"""

import ctypes
import difflib
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.errors import DataError
from myxtts.text.languages import canonical_code, probable_code

# The sample rate of every formant voice.
SAMPLE_RATE_HZ = 22_050
PAUSE = ""  # event symbol: silence begins
# Event symbol: another word begins.
WORD_GAP = " "

# espeak_Synth returns after the last callback and opens no audio device.
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _IPA_EVENTS, _NO_EXIT = 1, 2, 0x8000
_UTF8 = 1
_IPA = 2
_RATE, _VOLUME, _PITCH = 1, 2, 3
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7
# One callback for most sentences.
_BUFFER_MS = 10_000
# At 100 some vowels reach full scale and activate the gain control of the library.
_VOLUME_PERCENT = 60
# Size of the buffer that espeak-ng has for the path of its data.
_HOME_PATH_CHARACTERS = 159
_LANGUAGE_SWITCH = re.compile(r"\([a-z][a-z0-9-]*\)")
# espeak-ng 1.52 writes the word for each dot of 1.1.1. … behind the end of a buffer of 200 bytes
# (Georgian, Haitian).
_LONG_NUMBER = re.compile(r"\d[\d.]{19,}")
_DEFAULT_DIALECT = {"en": "en-us"}


@dataclass(frozen=True)
class EspeakVoice:
    """A voice of espeak-ng.

    Attributes:
        language: language code.
        variant: such as "f2" or "m3"; "" is the plain voice.
        pitch: 0 to 99; 50 is the default pitch of the variant.
        rate_wpm: words per minute, 80 to 450.
    """

    language: str
    variant: str = ""
    pitch: int = 50
    rate_wpm: int = 175


class PhonemeEvent(NamedTuple):
    """Start of a symbol: an IPA phoneme with its stress and length, PAUSE or WORD_GAP."""

    start_s: float
    symbol: str


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


class _VoiceRecord(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        # (priority byte, code, NUL)… NUL.
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Espeak:
    """One loaded copy of the library. The library has global state, so a lock serialises all calls.

    Phonemes depend only on the text and the language. Speech also depends on earlier calls (flutter
    and wave phase continue): the same calls in the same order return the same samples, except for
    variants with `breath` (f2, f3, f5, …), which read uninitialised memory.

    Raises:
        DataError: the library or its data cannot be loaded.
    """

    def __init__(self, library_path: Path, data_path: Path):
        self._lock = threading.Lock()
        self._library = _load(library_path)
        # The library stores only its address.
        self._callback = _Callback(self._receive)
        self._samples: list[bytes] = []
        self._events: list[PhonemeEvent] = []
        self._voice_name = ""
        options = _PHONEME_EVENTS | _IPA_EVENTS | _NO_EXIT
        # The path compiled into the wheel is a path of its build machine.
        rate_hz = self._library.espeak_Initialize(
            _SYNCHRONOUS, _BUFFER_MS, str(data_path).encode(), options
        )
        if rate_hz != SAMPLE_RATE_HZ:
            raise DataError(
                f"espeak-ng cannot read its data in {data_path} (the path has"
                f" {len(str(data_path).encode())} bytes; espeak-ng accepts at most"
                f" {_HOME_PATH_CHARACTERS}). Reinstall espeakng-loader, or use an environment with"
                " a shorter path."
            )
        self._library.espeak_SetSynthCallback(self._callback)
        self._voices, self._codes_by_name = self._list_voices()

    def phonemes(self, text: str, language: str) -> str:
        """Return the IPA of a text with stress marks and one space between words.

        Raises:
            DataError: the language is unknown.
        """
        with self._lock:
            self._select(language, variant="")
            ipa = " ".join(self._clauses(text))
        return " ".join(_LANGUAGE_SWITCH.sub("", ipa).split())

    def synthesize(self, text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[PhonemeEvent]]:
        """Return speech, int16 at 22,050 Hz, and the starts of phonemes, pauses and words.

        Raises:
            DataError: the language is unknown.
            ValueError: the variant is unknown.
        """
        encoded = _utf8(text)
        with self._lock:
            self._select(voice.language, voice.variant)
            for parameter, value in (
                (_RATE, voice.rate_wpm),
                (_VOLUME, _VOLUME_PERCENT),
                (_PITCH, voice.pitch),
            ):
                self._library.espeak_SetParameter(parameter, value, 0)
            self._samples, self._events = [], []
            with _interrupt_deferred():
                status = self._library.espeak_Synth(
                    encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None
                )
            samples, events = self._samples, self._events
        if status != 0:
            raise RuntimeError(f"espeak_Synth returned {status} for {text!r}")
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
            symbol = event.id.string.decode(errors="ignore")
            if not _LANGUAGE_SWITCH.match(symbol):
                self._events.append(PhonemeEvent(start_s, symbol))

    def _clauses(self, text: str) -> Iterator[str]:
        buffer = ctypes.create_string_buffer(_utf8(text))
        position = ctypes.c_void_p(ctypes.addressof(buffer))
        # Each call reads one clause; the last one sets NULL.
        while position.value:
            yield self._library.espeak_TextToPhonemes(ctypes.byref(position), _UTF8, _IPA).decode()

    def _select(self, language: str, variant: str) -> None:
        code = canonical_code(language)
        identifier = self._voices.get(_DEFAULT_DIALECT.get(code, code))
        if identifier is None:
            raise self._unknown(language)
        name = f"{identifier}+{variant}" if variant else identifier
        if name == self._voice_name:
            return
        self._voice_name = ""
        if self._library.espeak_SetVoiceByName(name.encode()) != 0 or not "".join(
            self._clauses("a")
        ):
            # Without a dictionary in the wheel (fo, kaa, xex), a voice is silent.
            raise self._unknown(language)
        selected = self._library.espeak_GetCurrentVoice().contents.identifier.decode()
        if selected != name:
            raise ValueError(f"espeak-ng has no voice variant {variant!r}")
        self._voice_name = name

    def check_language(self, language: str) -> None:
        """Raise DataError if the language is unknown."""
        with self._lock:
            self._select(language, variant="")

    def _unknown(self, language: str) -> DataError:
        probable = probable_code(language, self._voices, self._codes_by_name)
        if probable and probable != canonical_code(language):
            to_do = (
                f"Did you mean {probable}? Give --language {probable}, or write {probable} in the"
                " language column."
            )
        else:
            named = difflib.get_close_matches(
                language.lower(), [*self._voices, *self._codes_by_name], n=5, cutoff=0.6
            )
            nearest = list(
                dict.fromkeys(
                    self._codes_by_name.get(name, name) for name in named if name != language
                )
            )
            to_do = f"The nearest are: {', '.join(nearest)}. " if nearest else ""
            to_do += (
                "Use a code such as en, de, ka or fa, or the text front end 'characters', which"
                " needs no language."
            )
        return DataError(
            f"language {language[:40]!r} was requested, but the installed espeak-ng does not"
            f" support it. {to_do}"
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
            languages = _languages(record.languages)
            name = record.name.decode().lower().split(" (")[0].strip()
            codes = [codes_by_name.get(name, languages[0][1]), *(code for _, code in languages)]
            codes_by_name[name] = min(codes, key=len)  # English is en, not en-029
            for priority, code in languages:
                ranked[code] = min(ranked.get(code, (priority, identifier)), (priority, identifier))
            index += 1
        return {code: identifier for code, (_, identifier) in ranked.items()}, codes_by_name


def phonemes(text: str, language: str) -> str:
    """Call `Espeak.phonemes` of the shared copy."""
    return _shared().phonemes(text, language)


def check_language(language: str) -> None:
    """Call `Espeak.check_language` of the shared copy."""
    _shared().check_language(language)


def synthesize(text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[PhonemeEvent]]:
    """Call `Espeak.synthesize` of the shared copy."""
    return _shared().synthesize(text, voice)


@contextmanager
def isolated_copy() -> Iterator[Espeak]:
    """Load a copy of the library with a fresh state, so that equal calls return equal samples."""
    library_path, data_path = _installed_paths()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Espeak(Path(shutil.copy(library_path, folder)), data_path)


_shared_lock = threading.Lock()
_shared_copy: list[Espeak] = []


def _shared() -> Espeak:
    with _shared_lock:
        if not _shared_copy:
            _shared_copy.append(Espeak(*_installed_paths()))
        return _shared_copy[0]


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Defer Ctrl-C until the block ends: ctypes drops exceptions within a callback.

    Only the main thread receives signals.
    """
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
            "phonemes and demo speech need espeak-ng, but the package espeakng-loader is not"
            " installed. Run: pip install espeakng-loader"
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
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    size, unsigned = ctypes.c_size_t, ctypes.c_uint
    library.espeak_Initialize.argtypes = (integer, integer, ctypes.c_char_p, integer)
    library.espeak_SetSynthCallback.argtypes = (_Callback,)
    library.espeak_SetSynthCallback.restype = None
    library.espeak_SetParameter.argtypes = (integer, integer, integer)
    library.espeak_SetVoiceByName.argtypes = (ctypes.c_char_p,)
    library.espeak_GetCurrentVoice.restype = ctypes.POINTER(_VoiceRecord)
    library.espeak_ListVoices.argtypes = (pointer,)
    library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_VoiceRecord))
    library.espeak_TextToPhonemes.argtypes = (ctypes.POINTER(pointer), integer, integer)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_Synth.argtypes = (
        ctypes.c_char_p,
        size,
        unsigned,
        integer,
        unsigned,
        unsigned,
        pointer,
        pointer,
    )
    return library


def _utf8(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a text for espeak-ng must not contain NUL, which ends C strings")
    return _LONG_NUMBER.sub(_without_dots, text).encode()


def _without_dots(number: re.Match) -> str:
    return number[0].replace(".", " ") if number[0].count(".") > 1 else number[0]


def _languages(address: int) -> list[tuple[int, str]]:
    """Return (priority, code) for each language of a voice; lower priorities are better."""
    languages = []
    while priority := ctypes.string_at(address, 1)[0]:
        code = ctypes.string_at(address + 1)
        languages.append((priority, code.decode().lower()))
        address += len(code) + 2
    return languages
