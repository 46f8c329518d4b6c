"""`myxtts inspect`: a corpus → its measures, its faulty clips to hear, and a list to exclude."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from myxtts.commands import parser as flags
from myxtts.config.flags import SETTINGS
from myxtts.config.schema import Config, Needs
from myxtts.data.inspection import EXCLUDED, Inspection, inspect_corpus, read_clip
from myxtts.errors import ConfigError
from myxtts.files import make_folder
from myxtts.report.inspection import SHOWN_CLIPS, FaultyClip, write_page

NAME = "inspect"
HELP = "Find the clips of a corpus that would harm a voice, by their sound and their texts."
OF_CORPUS = "train_data", "val_data", "audio_root", "columns", "language", "text_frontend"
OF_CLIPS = "min_seconds", "max_seconds"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = flags.CommandParser(prog, HELP)
    settings = [replace(SETTINGS[name], needs=Needs()) for name in (*OF_CORPUS, *OF_CLIPS)]
    flags.add_setting_flags(parser, settings)
    run = "folder of a voice that was trained on the corpus, which also finds wrong texts"
    flags.add_flag(parser, "--run", run, Path, dest="voice")
    flags.add_checkpoint_flag(parser)
    out = "folder for inspection.html and excluded.csv (default: inspection)"
    flags.add_flag(parser, "--out", out, Path, default=Path("inspection"))
    config, options = flags.read_settings(parser, argv)
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
        from myxtts.evaluation.inspection import inspect_with_run

        inspection = inspect_with_run(config.data, options.voice, options.checkpoint)
    report(inspection, str(config.data.train_data), options.out)
    return 0


def report(inspection: Inspection, corpus: str, folder: Path) -> None:
    """Print what was found, and write the page and the list of faulty clips into a folder."""
    print(inspection.table())
    clips = inspection.by_id
    faults = {
        fault: [FaultyClip(of.id, of.detail, clips[of.id].text) for of in findings]
        for fault, findings in inspection.of_fault().items()
    }

    worst = sorted(inspection.evidence.items(), key=lambda item: item[1])[:SHOWN_CLIPS]
    if worst:
        details = [(id_, f"{value:.2f} explained by the text") for id_, value in worst]
        faults["worst alignments"] = [FaultyClip(*of, clips[of[0]].text) for of in details]

    def read(id_: str):
        return read_clip(clips[id_].path, clips[id_].start, clips[id_].samples)

    page, excluded = folder / "inspection.html", folder / EXCLUDED
    measures = inspection.measures()
    write_page(page, f"Corpus {corpus}", inspection.facts(), measures, faults, read)
    count = inspection.write_excluded(excluded)
    print(f"\n{page}: the worst clips to hear")
    if count:
        print(f"{excluded}: {count} clips; --exclude {excluded} trains without them")
