"""`myxtts text`: a text → its normalised form, its words in the lexicon, and its phonemes."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from myxtts.base.errors import DataError
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands.synthesize import read_text
from myxtts.config import parser as flags
from myxtts.config.flags import SETTINGS
from myxtts.config.parser import add_flag
from myxtts.text.frontend import Stages, TextFrontend, read_lexicon
from myxtts.text.normalisers import description
from myxtts.text.sentences import empty_text_message, split_text

NAME = "text"
HELP = "Print how a text is read: normalised, by the lexicon, as phonemes."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    add_flag(parser, "text", "the text; by default stdin", str, "TEXT", nargs="?")
    language = "language of the text; with a run of one language, that one, else en"
    add_flag(parser, "--language", language)
    front_end = "front end of a new run: a name of docs/guides/text.md"
    either = parser.add_mutually_exclusive_group()
    add_flag(either, "--text-frontend", front_end, default="phonemes")
    run = "folder of a run whose front end is used; by default that of a new run"
    add_flag(either, "--run", run, Path)
    flags.add_checkpoint_flag(parser)
    flags.add_lexicon_flag(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    words = read_lexicon(options.lexicon)
    text = read_text(options.text, None)
    frontend = TextFrontend(options.text_frontend, SETTINGS["text_normaliser"].default)
    language = options.language or "en"
    symbols = None
    if options.run is not None:
        record = TrainedRun.open(options.run, options.checkpoint).record
        frontend, symbols = record.frontend, record.vocabulary.symbols
        language = record.choose_language(options.language)
    frontend = frontend.with_words(words)
    chunks = [chunk for chunk, _ in split_text(text, language)]
    if not chunks:
        raise DataError(empty_text_message(text))
    for chunk in chunks:
        stages = frontend.stages(chunk, language)
        for name, value in lines(stages, frontend, language):
            print(f"{name:<11} {value}".rstrip())
        if symbols and (unknown := symbols.unknown(stages.symbols)):
            print(f"{'unknown':<11} {' '.join(unknown)} (the run has no such symbols)")
        print()
    return 0


def lines(stages: Stages, frontend: TextFrontend, language: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each stage, and the words that are left to espeak-ng."""
    yield "text", stages.text
    reader = frontend.reader
    if reader.has_phonemes:
        by = f"{frontend.kind} alone"
        if reader.normalises:
            by = "espeak-ng alone" if frontend.normaliser == "none" else description(language)
        yield "normalised", f"{stages.normalised} ({by})"
        yield "lexicon", f"{stages.lexicon} ({len(frontend.lexicon)} words)"
    yield frontend.kind, "".join(stages.symbols)
    if left := stages.left + stages.named:
        advice = "in a way of its own; write as it is spoken if this is wrong"
        yield "left", f"{' '.join(left)} ({advice})"
