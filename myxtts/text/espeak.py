"""espeak-ng through ctypes: phonemes of a text, and speech with the time of each phoneme.

The library and its data come with the package `espeakng_loader`. espeak-ng is licensed under
GPL-3, so it is loaded on first use and never at import.
The interface is that of `speak_lib.h`, API revision 12 (espeak-ng 1.49 to 1.52).
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

SAMPLE_RATE_HZ = 22_050  # of every formant voice
PAUSE = ""  # symbol of an event at which silence begins
WORD_GAP = " "  # symbol of an event at which another word begins

_SYNCHRONOUS = 2  # espeak_Synth returns after the last callback, and no audio device is opened
_PHONEME_EVENTS, _IPA_EVENTS, _NO_EXIT = 1, 2, 0x8000
_UTF8 = 1
_IPA = 2
_RATE, _VOLUME, _PITCH = 1, 2, 3
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7
_BUFFER_MS = 10_000  # one callback for most sentences
_VOLUME_PERCENT = 60  # at 100 some vowels reach full scale and start the library's gain control
_HOME_PATH_CHARACTERS = 159  # espeak-ng's buffer for the path of its data
_LANGUAGE_SWITCH = re.compile(r"\([a-z][a-z0-9-]*\)")
_DEFAULT_DIALECT = {"en": "en-us"}


@dataclass(frozen=True)
class EspeakVoice:
    """An espeak-ng voice: language code, variant ("f2", "m3", …, "" is the plain one), pitch
    (0 to 99, 50 is the variant's own) and rate in words a minute (80 to 450)."""

    language: str
    variant: str = ""
    pitch: int = 50
    rate_wpm: int = 175


class PhonemeEvent(NamedTuple):
    """`symbol` begins at `start_s`: an IPA phoneme with its stress and length, PAUSE or WORD_GAP."""

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
        ("languages", ctypes.c_void_p),  # (priority byte, code, NUL)… NUL
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Espeak:
    """One loaded copy of the library. Its state is global to the copy, so calls take turns.

    Phonemes depend on the text and the language alone. Speech depends also on what this copy said
    before (flutter and wave phase run on): the same calls in the same order give the same samples, but for variants
    with `breath` (f2, f3, f5, …), which read uninitialised memory.
    Raises DataError where the library or its data cannot be loaded.
    """

    def __init__(self, library_path: Path, data_path: Path):
        self._lock = threading.Lock()
        self._library = _load(library_path)
        self._callback = _Callback(self._receive)  # the library keeps only the address
        self._samples: list[bytes] = []
        self._events: list[PhonemeEvent] = []
        self._voice_name = ""
        options = _PHONEME_EVENTS | _IPA_EVENTS | _NO_EXIT
        # The path compiled into the wheel is that of its build machine.
        rate_hz = self._library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, str(data_path).encode(), options)
        if rate_hz != SAMPLE_RATE_HZ:
            raise DataError(
                f"espeak-ng was to start with its data in {data_path}, but found none it can read there "
                f"(the path has {len(str(data_path).encode())} bytes, it takes {_HOME_PATH_CHARACTERS}). "
                "Reinstall espeakng-loader, or use an environment with a shorter path."
            )
        self._library.espeak_SetSynthCallback(self._callback)
        self._voices, self._codes_by_name = self._list_voices()

    def phonemes(self, text: str, language: str) -> str:
        """IPA of `text` with stress marks, words parted by one space. Raises DataError on an unknown language."""
        with self._lock:
            self._select(language, variant="")
            ipa = " ".join(self._clauses(text))
        return " ".join(_LANGUAGE_SWITCH.sub("", ipa).split())

    def synthesize(self, text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[PhonemeEvent]]:
        """Samples (int16, mono, 22,050 Hz, shape [samples]) and the beginnings of phonemes, pauses and words in order.

        Raises DataError on an unknown language, ValueError on an unknown variant.
        """
        encoded = _utf8(text)
        with self._lock:
            self._select(voice.language, voice.variant)
            for parameter, value in ((_RATE, voice.rate_wpm), (_VOLUME, _VOLUME_PERCENT), (_PITCH, voice.pitch)):
                self._library.espeak_SetParameter(parameter, value, 0)
            self._samples, self._events = [], []
            with _interrupt_deferred():
                status = self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None)
            samples, events = self._samples, self._events
        if status != 0:
            raise RuntimeError(f"espeak_Synth returned {status} for {text!r}")
        return np.frombuffer(b"".join(samples), dtype=np.int16), events

    def _receive(self, wave, samples: int, events) -> int:
        """Collects what espeak_Synth made; 0 lets it go on."""
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
            symbol = event.id.string.decode(errors="ignore")  # cut at 8 bytes, perhaps inside a character
            if not _LANGUAGE_SWITCH.match(symbol):
                self._events.append(PhonemeEvent(start_s, symbol))

    def _clauses(self, text: str) -> Iterator[str]:
        buffer = ctypes.create_string_buffer(_utf8(text))
        position = ctypes.c_void_p(ctypes.addressof(buffer))
        while position.value:  # each call reads one clause, and the last one sets NULL
            yield self._library.espeak_TextToPhonemes(ctypes.byref(position), _UTF8, _IPA).decode()

    def _select(self, language: str, variant: str) -> None:
        code = language.lower()
        identifier = self._voices.get(_DEFAULT_DIALECT.get(code, code))
        if identifier is None:
            raise self._unknown(language)
        name = f"{identifier}+{variant}" if variant else identifier
        if name == self._voice_name:
            return
        self._voice_name = ""
        if self._library.espeak_SetVoiceByName(name.encode()) != 0 or not "".join(self._clauses("a")):
            raise self._unknown(language)  # a voice whose dictionary is not in the wheel is mute (fo, kaa, xex)
        found = self._library.espeak_GetCurrentVoice().contents.identifier.decode()
        if found != name:
            raise ValueError(f"espeak-ng has no voice variant {variant!r}")
        self._voice_name = name

    def _unknown(self, language: str) -> DataError:
        named = difflib.get_close_matches(language.lower(), [*self._voices, *self._codes_by_name], n=5, cutoff=0.6)
        nearest = list(dict.fromkeys(self._codes_by_name.get(name, name) for name in named if name != language))
        hint = f"The nearest are: {', '.join(nearest)}. " if nearest else ""
        return DataError(
            f"Language {language!r} was asked for, but the installed espeak-ng does not speak it. {hint}"
            "Use a code such as en, de, ka or fa, or the text front end 'characters', which needs none."
        )

    def _list_voices(self) -> tuple[dict[str, str], dict[str, str]]:
        """Voice identifier by language code (the voice of best priority), and language code by English name."""
        records = self._library.espeak_ListVoices(None)
        ranked: dict[str, tuple[int, str]] = {}
        codes_by_name: dict[str, str] = {}
        index = 0
        while records[index]:
            record = records[index].contents
            identifier = record.identifier.decode()
            languages = _languages(record.languages)
            codes_by_name.setdefault(record.name.decode().lower().split(" (")[0], languages[0][1])
            for priority, code in languages:
                ranked[code] = min(ranked.get(code, (priority, identifier)), (priority, identifier))
            index += 1
        return {code: identifier for code, (_, identifier) in ranked.items()}, codes_by_name


def phonemes(text: str, language: str) -> str:
    """`Espeak.phonemes` of the process's common copy."""
    return _common().phonemes(text, language)


def synthesize(text: str, voice: EspeakVoice) -> tuple[np.ndarray, list[PhonemeEvent]]:
    """`Espeak.synthesize` of the process's common copy."""
    return _common().synthesize(text, voice)


@contextmanager
def isolated_copy() -> Iterator[Espeak]:
    """A copy of the library whose state starts anew: equal calls give equal samples, whatever was said before."""
    library_path, data_path = _installed()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Espeak(Path(shutil.copy(library_path, folder)), data_path)


_common_lock = threading.Lock()
_common_copy: list[Espeak] = []


def _common() -> Espeak:
    with _common_lock:
        if not _common_copy:
            _common_copy.append(Espeak(*_installed()))
        return _common_copy[0]


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Delivers a Ctrl-C at the end: ctypes prints and drops an exception that is raised in a callback.

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


def _installed() -> tuple[Path, Path]:
    try:
        import espeakng_loader
    except ModuleNotFoundError as error:
        raise DataError(
            "Phonemes and demo speech need espeak-ng, but the package espeakng-loader is not installed. "
            "Run: pip install espeakng-loader"
        ) from error
    return Path(espeakng_loader.get_library_path()), Path(espeakng_loader.get_data_path())


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DataError(
            f"espeak-ng was to be loaded from {path}, but the system refused: {error}. Reinstall espeakng-loader; "
            "where temporary folders forbid programs, name another one in TMPDIR."
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
    library.espeak_Synth.argtypes = (ctypes.c_char_p, size, unsigned, integer, unsigned, unsigned, pointer, pointer)
    return library


def _utf8(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a text for espeak-ng may not hold NUL, at which C strings end")
    return text.encode()


def _languages(address: int) -> list[tuple[int, str]]:
    """(priority, code) for each language of a voice; a lower priority is better."""
    languages = []
    while priority := ctypes.string_at(address, 1)[0]:
        code = ctypes.string_at(address + 1)
        languages.append((priority, code.decode().lower()))
        address += len(code) + 2
    return languages
