"""Compare an exported voice with TensorFlow, for texts that its run held out:

    python -m myxtts export --run runs/human --format onnx --out human_onnx
    taskset -c 0 python benchmarks/exported_waves.py --run runs/human human_onnx/*.onnx

Each text, and one of 1 and of 400 symbols, is spoken with the default noise and with none. The
difference is the root mean square of that of the waves as a fraction of the wave's; waves of other
lengths are counted, and not compared. The last row is TensorFlow's own wave if the scale of the
noise grows by NOISE: how sensitive the voice is. With --p808, `speechmos` rates the held-out texts
with the default noise.
"""

import argparse
import sys
import time
from itertools import chain, cycle, islice
from pathlib import Path

from myxtts.tasks import loading

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors

TEXTS = 20
NO_NOISE = (0.0, 1.0, 0.0)
TOLERANCE = 1e-3
NOISE = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--vocoder", type=Path, help="its run (default: that of --run)")
    parser.add_argument("--language", help="required if its corpus has several")
    parser.add_argument("--p808", action="store_true", help="rate the waves by DNSMOS P.808")
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()

    import numpy as np
    import tensorflow as tf

    from myxtts.audio.format import sample_rate_hz
    from myxtts.audio.vocoder import NetworkVocoder
    from myxtts.base.errors import ConfigError
    from myxtts.checkpoints.trained_run import TrainedRun
    from myxtts.extras.export.player_files import (
        held_out_texts,
        load_litert,
        load_onnx,
        speaker_mels,
        voice_graph,
    )
    from myxtts.speak.chunks import SCALES, player_ids_of, voice_inputs
    from myxtts.tasks.evaluation.metrics import dnsmos

    run = TrainedRun.open_for_use(options.run)
    vocoder = loading.load_vocoder(run.select_vocoder(options.vocoder), "/CPU:0")
    if not isinstance(vocoder, NetworkVocoder):
        raise ConfigError(
            f"The comparison needs the run of a vocoder, but {run.path} would use"
            f" {vocoder.description}. Give the run of a vocoder with --vocoder."
        )
    mels = speaker_mels(run, {})
    language = run.record.choose_language(options.language)
    texts = held_out_texts(run)
    graph, document = voice_graph(run, vocoder, mels, texts[0], language, "/CPU:0")

    def by_tensorflow(inputs) -> np.ndarray:
        return graph.traced(*map(tf.constant, inputs.values()))[0].numpy()

    def waves_of(path: Path):
        speak = (load_onnx if path.suffix == ".onnx" else load_litert)(path)
        return lambda inputs: speak(inputs)[0]

    def with_more_noise(inputs) -> np.ndarray:
        return by_tensorflow(inputs | {"scales": inputs["scales"] + np.float32([NOISE, 0.0, 0.0])})

    joined = [*chain(*texts)]
    texts = texts[:TEXTS]
    others = [joined[:1], [*islice(cycle(joined), 400)]]
    spoken = [
        voice_inputs(player_ids_of(text, document["phoneme_id_map"]), len(mels), scales)
        for scales in (SCALES, NO_NOISE)
        for text in texts + others
    ]
    speakers = {"TensorFlow": (by_tensorflow, "")} | {
        path.name: (waves_of(path), f"{path.stat().st_size / 1e6:.1f}") for path in options.files
    }
    head = f"| | MB | real-time factor | same length | median | largest | within {TOLERANCE:g} |"
    print(f"{head} P.808 |\n|---|{'---:|' * 7}")
    expected: list[np.ndarray] = []
    for name, (speak, size) in (speakers | {f"noise + {NOISE:g}": (with_more_noise, "")}).items():
        speak(spoken[0])
        started_s = time.perf_counter()
        waves = [speak(inputs).ravel() for inputs in spoken]
        factor = (time.perf_counter() - started_s) * sample_rate_hz() / sum(map(len, waves))
        expected = expected or waves
        errors = [
            float(np.sqrt(np.mean(np.square(wave - true)) / np.mean(np.square(true))))
            for wave, true in zip(waves, expected, strict=True)
            if len(wave) == len(true)
        ]
        figures = "| |"
        if errors:
            within = np.mean(np.less(errors, TOLERANCE))
            figures = f"{np.median(errors):.2%} | {max(errors):.2%} | {within:.0%}"
        p808 = ""
        if options.p808:
            rated = waves[: len(texts)]
            p808 = f"{np.mean([dnsmos(wave)['dnsmos_p808'] for wave in rated]):.2f}"
        lengths = f"{len(errors)} of {len(spoken)}"
        print(f"| {name} | {size} | {factor:.3f} | {lengths} | {figures} | {p808} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
