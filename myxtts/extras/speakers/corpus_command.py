"""`myxtts corpus`: make the demo corpus by espeak-ng, or a corpus that other voices speak."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from myxtts.base.errors import ConfigError
from myxtts.config.parser import CommandParser, add_flag, add_switch, bounded
from myxtts.corpus.demo_corpus import DEMO_TEXTS, MAX_SPEAKERS, grammar_languages, make_demo_corpus

NAME = "corpus"
HELP = "Make a speech corpus: with espeak-ng, for trials and tests, or by another voice."
DEMO: dict[str, Any] = {"utterances": DEMO_TEXTS, "languages": ["en"], "speakers": 1, "seed": 0}
DEMO["first_speaker"] = 0


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    """Return the flags that are given; raises ConfigError if they are of both kinds of corpora."""
    parser = CommandParser(prog, HELP, argument_default=argparse.SUPPRESS)
    add_flag(parser, "--out", "folder to create (default: data/demo)", Path)
    count = f"number of utterances (default: {DEMO['utterances']}, or all texts)"
    add_flag(parser, "--utterances", count, bounded(int, 1))
    demo = parser.add_argument_group("the demo corpus, by espeak-ng")
    known = ", ".join(grammar_languages())
    add_flag(demo, "--languages", f"any of {known} (default: en)", nargs="+")
    speakers = "number of speakers; each speaks all languages (default: 1)"
    add_flag(demo, "--speakers", speakers, bounded(int, 1, MAX_SPEAKERS))
    first = "first speaker; another one makes other speakers (default: 0)"
    add_flag(demo, "--first-speaker", first, bounded(int, 0, MAX_SPEAKERS - 1))
    add_flag(demo, "--seed", "seed for the choice and order of the sentences (default: 0)", int)
    spoken = parser.add_argument_group("a corpus by another voice; the same command goes on")
    speaker = "hibari, kokoro-js-VERSION.tgz, a voice of `say --voice`, or http://…/v1; with #VOICE"
    speaker += " behind and NAME= before it, if wanted; several take the texts in turn"
    add_flag(spoken, "--speaker", speaker, action="append", dest="voices")
    texts = "UTF-8 file with a text in each line (default: the sentences of the demo corpus)"
    add_flag(spoken, "--texts", texts, Path, "FILE")
    add_switch(spoken, "--each", "each speaker speaks all texts")
    add_flag(spoken, "--language", "language of the texts (default: as the speaker says)")
    frontend = "what reads the texts in training, as for `train` (default: phonemes)"
    add_flag(spoken, "--text-frontend", frontend, metavar="NAME")
    threads = "texts that are spoken at the same time (default: 1)"
    add_flag(spoken, "--threads", threads, bounded(int, 1))
    add_flag(spoken, "--texts-from", "where the texts are from, and their licence")
    add_flag(spoken, "--licence", "licence of the speakers that do not say theirs")
    recogniser = "run of a recogniser, or pocketsphinx, that leaves out what it hears otherwise"
    add_flag(spoken, "--recogniser", recogniser, Path, "RUN")
    rate = "largest character error rate of a clip by --recogniser (default: 0.5)"
    add_flag(spoken, "--max-error-rate", rate, bounded(float, 0.0))
    options = parser.parse(argv)
    given = {*vars(options)} - {"out", "utterances"}
    if given - {*DEMO} and not (given.isdisjoint(DEMO) and "voices" in given):
        raise ConfigError(
            "a corpus by another voice has --speaker, and nothing of the demo corpus by espeak-ng."
            " Give it, or leave out the flags of one kind; --help lists them."
        )
    return options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    values = vars(parse(argv, prog))
    out = values.pop("out", Path("data/demo"))
    if "voices" in values:
        from myxtts.extras.speakers.spoken import SpokenOptions, make_spoken_corpus

        made = make_spoken_corpus(out, SpokenOptions(**values))
        left = ", ".join(f"{count} {reason}" for reason, count in made["excluded"].items())
        print(f"{out}: {made['clips']} clips, {made['hours']:.2f} h; left out: {left or 'none'}.")
        return 0
    values = DEMO | values
    with tqdm(total=values["utterances"], unit=" utterances", disable=None) as bar:
        is_new = make_demo_corpus(out, **values, progress=bar.update)
    state = "made" if is_new else "already complete,"
    print(f"{out}: {state} {values['utterances']} utterances.")
    return 0
