"""The contract of Piper's voices, which Piper, sherpa-onnx and Home Assistant speak.

A player makes phonemes of a text by espeak-ng, in Unicode NFD, one id for each code point, with an
id of padding between them. The graph takes the ids, and finds the symbols of the voice in them.
docs/guides/export.md describes inputs and files.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, sample_rate_hz
from myxtts.config.synthesis import BOUNDS, SynthesisOptions
from myxtts.speak.chunks import FADE_S, FRONTEND, SCALES
from myxtts.tasks.tts import alignment
from myxtts.tasks.tts.network import REDUCTION_FACTOR, TEMPERATURE, XTTS, SpeakerCondition
from myxtts.text.frontend import SPELLINGS, TextFrontend
from myxtts.text.readers import PLAYED
from myxtts.text.symbols import BEGIN_ID, END_ID, FIRST_SYMBOL_ID, PADDING_ID

NOISE_SCALE, LENGTH_SCALE, NOISE_W = SCALES
SPECIAL = {"_": PADDING_ID, "^": BEGIN_ID, "$": END_ID}
# Players take the second output of a graph, whatever its name, and libpiper reads it as float32.
DURATIONS = "durations"
_, MIN_SPEED, MAX_SPEED = BOUNDS["speed"]


class PlayerIds(NamedTuple):
    """The ids of a player, and how they become symbols of a voice.

    Attributes:
        of_point: the id of each code point. A code point that is a symbol has its id.
        symbol: int32 [states], the symbol of a state, or 0. States begin with the ids.
        joined: int32 [states, ids], the state of a state followed by a mark; itself if none is.
        is_mark: bool [ids], code points that only follow others in a symbol.
        marks: the most marks of a symbol.
    """

    of_point: dict[str, int]
    symbol: np.ndarray
    joined: np.ndarray
    is_mark: np.ndarray
    marks: int


# A player sends one id for each code point, but a symbol of the voice may have several: a letter
# and its marks. So a small automaton is built. States are the beginnings of symbols; `joined` leads
# from a state and the next mark to a longer beginning, and `symbol` says which states are whole
# symbols. The graph walks it with plain gathers, see `tokens_of`.
def player_ids(symbols: Sequence[str]) -> PlayerIds:
    """Return the ids of the code points of a voice's symbols, in the order of its table."""
    points = [unicodedata.normalize("NFD", symbol) for symbol in symbols]
    symbol_of = {text: row for row, text in enumerate(points, FIRST_SYMBOL_ID)}
    of_point = {text: row for text, row in symbol_of.items() if len(text) == 1} | SPECIAL
    free = FIRST_SYMBOL_ID + len(symbols)
    for point in sorted(set("".join(points)) - of_point.keys()):
        of_point[point] = free
        free += 1
    # Every beginning of a symbol is a state; those of one code point are its id.
    state_of = {point: row for point, row in of_point.items()}
    for text in points:
        for end in range(2, len(text) + 1):
            state_of.setdefault(text[:end], free + len(state_of) - len(of_point))
    states = free + len(state_of) - len(of_point)
    joined = np.tile(np.arange(states, dtype=np.int32)[:, None], [1, free])
    symbol = np.zeros(states, np.int32)
    symbol[[BEGIN_ID, END_ID]] = BEGIN_ID, END_ID
    for text, state in state_of.items():
        if text not in SPECIAL:
            symbol[state] = symbol_of.get(text, 0)
        if len(text) > 1:
            joined[state_of[text[:-1]], of_point[text[-1]]] = state
    is_mark = np.zeros(free, bool)
    is_mark[[of_point[point] for point in "".join(text[1:] for text in points)]] = True
    is_mark[[of_point[text[0]] for text in points]] = False
    return PlayerIds(of_point, symbol, joined, is_mark, max(map(len, points), default=1) - 1)


# All positions are walked at once: each id takes the marks behind it one by one, as far as there
# are marks. Positions that are marks themselves begin no symbol, and are then dropped with the
# padding.
def tokens_of(ids, table: PlayerIds):
    """Return the tokens of the ids of a player: int64 [N] -> int32 [1, M], without padding; and
    the place of the first id of each, int64 [M, 1].

    A mark that no symbol has there is left out.
    """
    places = tf.where(ids != PADDING_ID)
    state = found = tf.gather(tf.cast(ids, tf.int32), places[:, 0])
    begins = tf.ones_like(found, tf.bool)
    if table.marks:
        follows = begins
        begins = ~tf.gather(table.is_mark, found)
        for distance in range(1, table.marks + 1):
            following = tf.concat([found[distance:], tf.zeros_like(found[:distance])], axis=0)
            follows &= tf.gather(table.is_mark, following)
            joined = tf.gather_nd(table.joined, tf.stack([state, following], axis=1))
            state = tf.where(follows, joined, state)
    tokens = tf.where(begins, tf.gather(table.symbol, state), PADDING_ID)
    is_token = tokens != PADDING_ID
    return tf.boolean_mask(tokens, is_token)[None], tf.boolean_mask(places, is_token)


def voice_signature(speakers: int) -> list[tf.TensorSpec]:
    """Return the inputs of a voice; players give `sid` to voices of several speakers only."""
    specs = [
        tf.TensorSpec([1, None], tf.int64, "input"),
        tf.TensorSpec([1], tf.int64, "input_lengths"),
        tf.TensorSpec([3], tf.float32, "scales"),
    ]
    if speakers > 1:
        specs.append(tf.TensorSpec([1], tf.int64, "sid"))
    return specs


def mel_function(
    network: XTTS, speakers: SpeakerCondition, table: PlayerIds, options: SynthesisOptions
):
    """Return a function of `voice_signature` that returns the log-mel, float32 [1, T, 80], and the
    frames of each id, float32 [1, 1, N]: those of a symbol are those of its first id.
    """

    def mel_of(ids, lengths, scales, sid=None):
        ids = ids[0, : lengths[0]]
        tokens, places = tokens_of(ids, table)
        row = tf.zeros([1], tf.int64) if sid is None else sid
        texts = {"tokens": tokens, "token_count": tf.shape(tokens)[1:]}
        mel, _, path = network.mel_of_texts(
            SpeakerCondition._make(tf.gather(part, row) for part in speakers),
            texts,
            options.speed / tf.clip_by_value(scales[1], 1 / MAX_SPEED, 1 / MIN_SPEED),
            options.pitch_semitones,
            options.energy_db,
            options.variety * scales[2] / NOISE_W,
            options.ode_steps,
            options.guidance,
            tf.constant([options.seed, 0]),
            TEMPERATURE * scales[0] / NOISE_SCALE,
            lambda frames: -frames % REDUCTION_FACTOR,
        )
        durations = alignment.durations_of_path(path, tf.shape(tokens)[1])[0]
        return mel, tf.scatter_nd(places, durations, tf.shape(ids, tf.int64))[None, None]

    return mel_of


def faded(wave):
    """Fade the ends of a wave, float32 [1, S], as `Synthesizer` does: [1, 1, S]."""
    count = tf.shape(wave)[1]
    edge = tf.minimum(tf.range(count), count - 1 - tf.range(count))
    fade = round(FADE_S * sample_rate_hz())
    edge = tf.cast(tf.minimum(edge, fade), tf.float32)
    return (wave * (0.5 - 0.5 * tf.cos(np.pi / fade * edge)))[:, None]


def voice_document(
    table: PlayerIds,
    language: str,
    espeak_voice: str,
    speakers: Sequence[str],
    frontend: TextFrontend,
    symbols: Sequence[str],
) -> dict[str, Any]:
    """Return the JSON that players read beside the graph; `serving` also reads FRONTEND of it."""
    is_text = frontend.kind == "characters"
    ids = {point: [number] for point, number in table.of_point.items()}
    if is_text:  # a player changes neither capitals nor quotes, dashes and marks
        others = {point.upper(): number for point, number in ids.items()}
        spellings = {chr(row): ids.get(mark.strip()) for row, mark in SPELLINGS.items()}
        others |= {point: number for point, number in spellings.items() if number}
        ids = {point: number for point, number in others.items() if len(point) == 1} | ids
    return {
        "audio": {"sample_rate": sample_rate_hz(), "quality": "medium"},
        "espeak": {"voice": espeak_voice},
        "language": {"code": language},
        "inference": {"noise_scale": NOISE_SCALE, "length_scale": LENGTH_SCALE, "noise_w": NOISE_W},
        # Players refuse a type that they do not know; else they would read such a voice wrongly.
        "phoneme_type": PLAYED.get(frontend.kind, frontend.kind),
        "phoneme_map": {},
        "phoneme_id_map": ids,
        "num_symbols": len(table.is_mark),
        "num_speakers": len(speakers),
        "speaker_id_map": {name: row for row, name in enumerate(speakers)},
        "hop_length": HOP_SAMPLES,
        "piper_version": "1.0.0",
        FRONTEND: asdict(frontend) | {"symbols": list(symbols)},
    }


def sherpa_metadata(
    language: str, espeak_voice: str, speakers: int, frontend: str
) -> dict[str, str]:
    """Return the metadata of the graph that sherpa-onnx reads."""
    return {
        "model_type": "vits",
        "comment": "piper",
        "language": language,
        "voice": espeak_voice,
        "version": "1",
        "has_espeak": str(int(frontend == "phonemes")),
        "n_speakers": str(speakers),
        "sample_rate": str(sample_rate_hz()),
    }
