"""Time to read a batch from WAV and FLAC files, with and without --deterministic.

    python benchmarks/reading.py --corpus data/demo
    python benchmarks/reading.py --corpus data/demo --latency-ms 20 --formats flac --batches 12

Each measurement is a process of its own, because determinism cannot be turned off; they take turns
(A B A B). With `--latency-ms` each FLAC file takes that much longer, as on a network file system:
then the time shows how many batches are read at a time, also on a busy machine. A batch of a voice
has 32 files, an utterance and a reference for each row.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import soundfile

from myxtts.audio.audio_file import read_pcm
from myxtts.config.load import load
from myxtts.config.parser import bounded

FORMATS = ("wav", "flac")
REFERENCE_SAMPLES = 66_150  # 3 s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, default=Path("data/demo"), help="LJSpeech folder of 16-bit WAV files"
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--batches", type=bounded(int, 4), default=40)
    parser.add_argument("--latency-ms", type=bounded(float, 0.0), default=0.0)
    parser.add_argument("--num-workers", type=bounded(int, 1), default=2)
    parser.add_argument("--repeats", type=bounded(int, 1), default=3)
    parser.add_argument("--measure", metavar="MODE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(*measure(arguments.corpus, arguments, arguments.measure == "deterministic"))
        return
    for file_format in arguments.formats:
        with tempfile.TemporaryDirectory() as folder:
            compare(convert(arguments.corpus, Path(folder), file_format), file_format, arguments)


def convert(corpus: Path, folder: Path, file_format: str) -> Path:
    """Write a copy of a corpus with all audio in one format."""
    (folder / "wavs").mkdir()
    shutil.copy(corpus / "metadata.csv", folder)
    for source in sorted((corpus / "wavs").glob("*.wav")):
        wave, rate_hz = soundfile.read(source, dtype="int16")
        soundfile.write(folder / "wavs" / f"{source.stem}.{file_format}", wave, rate_hz)
    return folder


def compare(corpus: Path, file_format: str, arguments: argparse.Namespace) -> None:
    """Print the median times of both modes, and whether their batches are equal."""
    modes: dict[str, list[list[str]]] = {"default": [], "deterministic": []}
    for _ in range(arguments.repeats):
        for mode, outputs in modes.items():
            command = [sys.executable, __file__, "--measure", mode, "--corpus", str(corpus)]
            for name in ("batches", "latency_ms", "num_workers"):
                command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr}")
            outputs.append(done.stdout.split())
    for mode, outputs in modes.items():
        times_ms = [float(output[0]) for output in outputs]
        spread = f"({min(times_ms):.1f} to {max(times_ms):.1f})"
        print(f"{file_format:<5} {mode:<14} {median(times_ms):7.1f} ms a batch {spread}")
    equal = len({output[1] for outputs in modes.values() for output in outputs}) == 1
    print(f"{file_format:<5} batches {'are equal, bit for bit' if equal else 'DIFFER'}", flush=True)


def measure(corpus: Path, arguments: argparse.Namespace, deterministic: bool) -> tuple[float, str]:
    """Return milliseconds per batch and the digest of all batches."""
    import tensorflow as tf

    from myxtts.batches import reading
    from myxtts.batches.contract import TTS_INPUTS
    from myxtts.batches.corpora import load_corpora
    from myxtts.batches.plan import Pass, planned_batches
    from myxtts.batches.reading import Reader
    from myxtts.tasks.registry import length_rule_of

    if deterministic:
        tf.config.experimental.enable_op_determinism()
    reading.read_pcm = partial(read_slowly, arguments.latency_ms / 1000)
    settings = {
        "train_data": str(corpus),
        "text_frontend": "characters",
        "validation_fraction": 0.0,
    }
    config = load(None, settings | {"num_workers": arguments.num_workers})
    manifest, plan = (
        (loaded := load_corpora(config, corpus, length_rule_of(config))[0]).manifest,
        loaded.plan,
    )
    planned = planned_batches(plan, manifest, Pass(), seed=1, reference_samples=REFERENCE_SAMPLES)
    reader = Reader(
        manifest,
        TTS_INPUTS,
        REFERENCE_SAMPLES,
        config.data,
        reading.rows_from_files(manifest, True),
    )
    batches, digest = reader.read(planned, "/CPU:0"), hashlib.sha256()
    next(batches)
    started_s = time.perf_counter()
    for _, (_, waves) in zip(range(arguments.batches), batches, strict=False):
        for name in ("pcm", "reference_pcm"):
            digest.update(waves[name].numpy().tobytes())
    elapsed_s = time.perf_counter() - started_s
    batches.close()
    return 1000 * elapsed_s / arguments.batches, digest.hexdigest()


def read_slowly(latency_s: float, path: str, samples: int, start: int):
    time.sleep(latency_s)
    return read_pcm(path, samples, start=start)


if __name__ == "__main__":
    main()
