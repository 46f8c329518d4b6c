"""`myxtts serve`: a voice, and a recogniser, over HTTP and Wyoming."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.errors import check_packages
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag, bounded

NAME = "serve"
HELP = "Speak and transcribe for other programs: OpenAI's interface, Wyoming and a page."
PACKAGES = ("starlette", "uvicorn", "multipart", "wyoming")


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP, epilog="Stop it with Ctrl-C or SIGTERM.")
    flags.add_voice_flag(parser, required=True)
    about = "How a run speaks. While it trains, each new checkpoint is taken."
    group = parser.add_argument_group("run", about)
    flags.add_checkpoint_flag(group, "the newest")
    add_flag(group, "--language", "language of texts; required if its corpus has several")
    flags.add_vocoder_flag(group)
    flags.add_references_flag(group, "a speaker and a recording of half a second or longer")
    recogniser = "folder of the run of a recogniser, for transcriptions"
    add_flag(parser, "--recogniser", recogniser, Path, "RUN")
    host = "address to listen on (default 127.0.0.1: programs of this machine alone)"
    add_flag(parser, "--host", host, default="127.0.0.1")
    port = bounded(int, 0, 65535)
    add_flag(parser, "--port", "port for HTTP; 0 is a free one (default 8080)", port, default=8080)
    wyoming = "port for Wyoming (default 10200); 0 turns it off"
    add_flag(parser, "--wyoming-port", wyoming, port, default=10200)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    check_packages(prog, *PACKAGES)
    from myxtts.extras.serve.desk import Desk
    from myxtts.extras.serve.server import serve
    from myxtts.tasks.tts.speakers import open_speaker

    speaker = open_speaker(
        options.voice,
        language=options.language,
        references=options.references,
        vocoder=options.vocoder,
        checkpoint=options.checkpoint,
    )
    transcribe = None
    if options.recogniser:
        # Imports TensorFlow, which takes seconds.
        from myxtts.tasks.asr.transcriber import Transcriber

        transcriber = Transcriber(options.recogniser)

        def transcribe(wave):
            return next(transcriber.transcribe([wave]))

    desk = Desk(speaker, transcribe)
    asyncio.run(serve(desk, options.host, options.port, options.wyoming_port))
    return 0
