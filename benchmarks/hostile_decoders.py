"""Counts mutated audio files at which libsndfile crashes or hangs, by the first use that ends the
process.

    python benchmarks/hostile_decoders.py --files 500

The files are those of the kind `audio` of hostile_input.py, without files of other formats. They
are read in forks of this process, which has imported no TensorFlow. A use that takes more than 60 s
hangs.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import soundfile

from benchmarks.hostile.audio import FORMATS, MUTATIONS, sound_of
from benchmarks.hostile.bytes_and_files import mutate_bytes

HANG_S = 60
MAX_SAMPLES = 100_000_000
USES: dict[str, Callable[[soundfile.SoundFile], object]] = {
    "first sample": lambda sound: sound.read(1),
    "all samples": lambda sound: sound.read(sound.frames, dtype="float32"),
    "seek": lambda sound: (sound.seek(max(sound.frames - 1, 0)), sound.read(1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=500, help="of each format (default 500)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| file | " + " | ".join(USES) + " |\n|---|" + "---:|" * len(USES))
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            died: Counter[str] = Counter()
            for number in range(options.files):
                path = Path(folder, name)
                path.write_bytes(mutated(name, number, options.seed))
                died.update(fatal_use(path))
            print(f"| {name} | " + " | ".join(str(died[use]) for use in USES) + " |", flush=True)


def mutated(name: str, number: int, seed: int) -> bytes:
    draw = random.Random(f"{seed}:{name}:{number}")
    return draw.choice((*MUTATIONS[name.rpartition(".")[2]], mutate_bytes, mutate_bytes))(
        draw, sound_of(name)
    )


def fatal_use(path: Path) -> list[str]:
    """Return the use at which a process ended by a signal, if it did."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for use in USES.values():
            signal.alarm(HANG_S)
            with contextlib.suppress(Exception), soundfile.SoundFile(str(path)) as sound:
                if sound.frames <= MAX_SAMPLES:
                    use(sound)
            os.write(writing, b"1")
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as done:
        survived = len(done.read())
    os.waitpid(process, 0)
    return list(USES)[survived : survived + 1]


if __name__ == "__main__":
    main()
