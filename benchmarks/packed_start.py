"""Start of a worker on a large packed corpus, and how fast its utterances are read.

python benchmarks/packed_start.py --make corpora/short --utterances 200000
python benchmarks/packed_start.py corpora/short
python benchmarks/packed_start.py s3://bucket/short

The corpus has 2,000 utterances of 0.4 s, which each of its shards repeats. Its texts have 60
symbols. Processor time and memory are those after the imports, in a process of their own.
"""

import argparse
import io
import os
import sys
import tarfile
import tempfile
import time
from itertools import chain, cycle
from pathlib import Path

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import WHOLE, read_pcm
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.members import member_of, read_member, read_members, store_of
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest, frontend_of
from myxtts.corpus.layouts import hold_out, read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.extras.store.packed import INDEX, reading_of
from myxtts.extras.store.packing import index_of, write_index

SHARD_UTTERANCES = 2_000
SYMBOLS = 60
DATA = DataConfig(text_frontend="characters")
BATCH, BATCHES = 16, 100


def make(out: Path, count: int) -> None:
    random = np.random.default_rng(0)
    shards = out / "shards"
    shards.mkdir(parents=True)
    places = []
    first = shards / "recording.00000000.tar"
    with tarfile.TarFile(first, "w") as tar:
        for number in range(SHARD_UTTERANCES):
            wave = random.normal(0.0, 0.01, 4 * SAMPLE_RATE_HZ // 10)
            file = io.BytesIO()
            soundfile.write(file, wave, SAMPLE_RATE_HZ, "PCM_16", format="FLAC")
            header = tarfile.TarInfo(f"{number}.flac")
            header.size = len(file.getvalue())
            places.append((tar.offset + tarfile.BLOCKSIZE, header.size))
            file.seek(0)
            tar.addfile(header, file)
    names = [first.name]
    for number in range(1, -(-count // SHARD_UTTERANCES)):
        names.append(f"recording.{number:08d}.tar")
        os.link(first, shards / names[-1])
    letters = [chr(ord("a") + number) for number in random.integers(0, 26, SYMBOLS * len(places))]
    texts = ["".join(letters[first : first + SYMBOLS]) for first in range(0, len(letters), SYMBOLS)]
    utterances = zip(cycle(zip(texts, places, strict=True)), range(count), strict=False)
    rows = (
        (
            *(f"speaker/{number // 100:06d}/{number:08d}.wav", text, ["<begin>", *text, "<end>"]),
            *(f"shards/{names[number // SHARD_UTTERANCES]}", *place, WHOLE),
            *(4 * SAMPLE_RATE_HZ // 10, f"s{number // 1000:06d}", "en"),
        )
        for (text, place), number in utterances
    )
    reading = {**reading_of(DATA, frontend_of(DATA), True), "espeakng_loader": ""}
    write_index(store_of(str(out)), INDEX, index_of(rows), reading)


def private_mib() -> float:
    """Return the memory that no file backs, which this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) / 1024


def measure(corpus: str) -> None:
    import pyarrow.ipc  # noqa: F401  its import is not of the manifest

    cpu_s, mib = time.process_time(), private_mib()
    # A text of 62 symbols needs more frames than 0.4 s have.
    rule = LengthRule(subsampling=0)
    halves = hold_out(read_corpus(corpus, "en"), 0.05, 0)
    train, vocabulary, _ = build_manifest(halves[0], DATA, rule)
    held_out, _, _ = build_manifest(halves[1], DATA, rule, vocabulary)
    fingerprint = train.fingerprint
    cpu_s, mib = time.process_time() - cpu_s, private_mib() - mib
    print(f"{len(train)} + {len(held_out)} utterances, fingerprint {fingerprint[:8]}")
    print(f"start: {cpu_s:.2f} s of processor time, {mib:.0f} MiB of its own")
    random = np.random.default_rng(1)
    batches = [
        [train.paths[row] for row in random.integers(0, len(train), BATCH)] for _ in range(BATCHES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        # The same utterances as files of their own.
        files = [[f"{folder}/{row}-{i}.flac" for i in range(BATCH)] for row in range(BATCHES)]
        for path, file in zip(chain(*batches), chain(*files), strict=True):
            Path(file).write_bytes(read_member(member_of(path)))
        for _ in range(3):
            for name, paths in (("packed", batches), ("files", files)):
                cpu_s, began_s = time.process_time(), time.perf_counter()
                for batch in paths:
                    read_batch(batch)
                wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
                count = BATCH * BATCHES
                print(f"{name:8} {count / wall_s:,.0f} utterances/s, {1e6 * cpu_s / count:.0f} µs")


def read_batch(paths: list[str]) -> None:
    contents: list[bytes | None] = [None] * len(paths)
    if member_of(paths[0]):
        contents = [*read_members([member_of(path) for path in paths])]
    for path, content in zip(paths, contents, strict=True):
        read_pcm(path, 4 * SAMPLE_RATE_HZ // 10, content=content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="?", help="packed corpus to measure")
    parser.add_argument("--make", type=Path, help="write such a corpus instead")
    parser.add_argument("--utterances", type=int, default=200_000)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.utterances)
    else:
        measure(options.corpus)


if __name__ == "__main__":
    main()
