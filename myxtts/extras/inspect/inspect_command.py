"""`myxtts inspect`: a corpus → its measures, its faulty clips to hear, and a list to exclude."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import soxr

from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import ConfigError, check_packages
from myxtts.base.files import make_folder, write_whole
from myxtts.config import parser as flags
from myxtts.config.schema import Config
from myxtts.config.settings_parser import add_settings, read_settings
from myxtts.extras.inspect.inspection import EXCLUDED, Inspection, inspect_corpus, read_clip
from myxtts.report.overview import document
from myxtts.report.samples import EMBEDDED_BYTES, sound_url

NAME = "inspect"
HELP = "Find the clips of a corpus that would harm a voice, by their sound and their texts."
OF_CORPUS = "train_data", "val_data", "audio_root", "columns", "language", "text_frontend"
OF_CLIPS = "min_seconds", "max_seconds"
SHOWN_CLIPS, SHOWN_S = 5, 12
# The page does not change, so an open one need not reload itself.
RELOAD_S = 1e9


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = flags.CommandParser(prog, HELP)
    add_settings(parser, (*OF_CORPUS, *OF_CLIPS))
    run = "folder of a voice that was trained on the corpus, which also finds wrong texts"
    flags.add_flag(parser, "--run", run, Path, dest="voice")
    flags.add_checkpoint_flag(parser)
    asr = "recogniser that hears the clips: a run, pocketsphinx or onnx:MODEL of onnx-asr"
    flags.add_flag(parser, "--asr", asr, Path, "RUN")
    out = "folder for inspection.html and excluded.csv (default: inspection)"
    flags.add_flag(parser, "--out", out, Path, default=Path("inspection"))
    config, options = read_settings(parser, argv)
    if config.data.train_data is None:
        raise ConfigError(
            "a corpus is to be inspected, but none was given. Give one with --train-data; `myxtts"
            " corpus` makes one for trials."
        )
    if options.checkpoint is not None and options.voice is None:
        raise ConfigError("--checkpoint was given without --run. Give the run, or leave it out.")
    return config, options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    make_folder(options.out, "--out")
    if options.voice is None:
        inspection = inspect_corpus(config.data)
    else:
        # Imports TensorFlow, which takes seconds.
        from myxtts.extras.inspect.with_run import inspect_with_run

        inspection = inspect_with_run(config.data, options.voice, options.checkpoint)
    if options.asr is not None:
        check_packages("--asr", "jiwer", "tensorflow")
        from myxtts.extras.inspect.heard import hear_clips

        hear_clips(inspection, options.asr)
    report(inspection, str(config.data.train_data), options.out)
    return 0


# The table goes to the console. The page gets the worst clips of each fault with their sound, until
# the room for sound is used up. The list of what to exclude is written last.
def report(inspection: Inspection, corpus: str, folder: Path) -> None:
    """Print what was found, and write a page and a list of the faulty clips into a folder."""
    print(inspection.table())
    faults = {
        fault: [(of.id, of.detail) for of in findings]
        for fault, findings in inspection.of_fault().items()
    }
    if worst := sorted(inspection.evidence.items(), key=lambda item: item[1])[:SHOWN_CLIPS]:
        details = [(id_, f"{value:.2f} explained by the text") for id_, value in worst]
        faults["worst alignments"] = details
    room = EMBEDDED_BYTES
    sections = []
    for fault, found in faults.items():
        shown = []
        for id_, detail in found[:SHOWN_CLIPS]:
            clip = inspection.by_id[id_]
            shown.append({"id": id_, "detail": detail, "text": clip.text})
            if room > 0:
                wave, rate_hz = read_clip(clip.path, clip.start, clip.samples)
                # MP3 has no rates above 48 kHz.
                wave = soxr.resample(wave[: SHOWN_S * rate_hz], rate_hz, sample_rate_hz())
                shown[-1]["src"] = sound_url(wave, sample_rate_hz())
                room -= len(shown[-1]["src"])
        sections.append([fault, len(found), shown])
    page = {"name": f"Corpus {corpus}", "facts": inspection.facts(), "faults": sections}
    page["measures"] = inspection.measures()
    file, excluded = folder / "inspection.html", folder / EXCLUDED
    write_whole(file, document("inspection", page, RELOAD_S))
    count = inspection.write_excluded(excluded)
    print(f"\n{file}: the worst clips to hear")
    if count:
        print(f"{excluded}: {count} clips; --exclude {excluded} trains without them")
    if kept := len({finding.id for finding in inspection.findings}) - count:
        print(
            f"Most clips have faults, so {kept} with the most frequent ones are kept: listen to"
            " them on the page."
        )
