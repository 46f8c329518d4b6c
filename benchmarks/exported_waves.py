"""Compare the waves of an exported voice with TensorFlow's, for texts that its run held out:

    python utilities/export_model.py --run runs/human --format onnx --out human_onnx
    python benchmarks/exported_waves.py --run runs/human human_onnx/*.onnx

Each text is spoken with the default noise and with none. The difference is the root mean square of
that of the waves as a fraction of the wave's; waves of other lengths are counted, and not compared.
The last row is TensorFlow's own wave if the scale of the noise grows by NOISE: how sensitive the
voice is.
"""

import argparse
import sys
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors

TEXTS = 20
NO_NOISE = (0.0, 1.0, 0.0)
TOLERANCE = 1e-3
NOISE = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--vocoder", type=Path, help="its run (default: that of --run)")
    parser.add_argument("--language", help="required if the run has several")
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()

    import numpy as np
    import tensorflow as tf

    from myxtts.audio.vocoder import NetworkVocoder
    from myxtts.data.manifest import read_manifest
    from myxtts.errors import ConfigError
    from myxtts.synthesis.player_files import load_litert, load_onnx, speaker_mels, voice_graph
    from myxtts.synthesis.spoken_text import SCALES, voice_inputs
    from myxtts.text.languages import choose_language
    from myxtts.text.symbols import FIRST_SYMBOL_ID
    from myxtts.training.runs import TrainedRun

    run = TrainedRun.open(options.run)
    vocoder = run.select_vocoder(options.vocoder).load("/CPU:0")
    if not isinstance(vocoder, NetworkVocoder):
        raise ConfigError(
            f"The comparison needs the run of a vocoder, but {run.path} would use"
            f" {vocoder.description}. Give the run of a vocoder with --vocoder."
        )
    vocabulary, mels = run.record.vocabulary, speaker_mels(run, {})
    language = choose_language(options.language, vocabulary.languages)
    graph, document = voice_graph(run, vocoder, mels, language, "/CPU:0")

    def ids_of(tokens) -> list[int]:
        """Return the ids of a player for the tokens of a text."""
        ids = []
        for token in tokens.tolist():
            if token < FIRST_SYMBOL_ID:
                ids.append(token)
                continue
            symbol = vocabulary.symbols.symbols[token - FIRST_SYMBOL_ID]
            points = unicodedata.normalize("NFD", symbol)
            ids += [document["phoneme_id_map"][point][0] for point in points]
        return ids

    def by_tensorflow(inputs) -> np.ndarray:
        return graph.traced(*map(tf.constant, inputs.values())).numpy()

    def with_more_noise(inputs) -> np.ndarray:
        return by_tensorflow(inputs | {"scales": inputs["scales"] + np.float32([NOISE, 0.0, 0.0])})

    manifest, _ = read_manifest(run.path / "manifest-validation.npz")
    spoken = []
    for row in range(min(TEXTS, len(manifest))):
        ids = ids_of(manifest.tokens_of(row))
        for scales in (SCALES, NO_NOISE):
            inputs = voice_inputs(ids, len(mels), scales)
            spoken.append((inputs, by_tensorflow(inputs).ravel()))
    print(
        f"| file | same length | median | largest | within {TOLERANCE:g} |\n|---|---|---|---|---|"
    )
    speakers = {
        path.name: (load_onnx if path.suffix == ".onnx" else load_litert)(path)
        for path in options.files
    }
    for name, speak in {**speakers, f"noise + {NOISE:g}": with_more_noise}.items():
        errors = []
        for inputs, expected in spoken:
            wave = speak(inputs).ravel()
            if len(wave) == len(expected):
                power = np.mean(np.square(wave - expected)) / np.mean(np.square(expected))
                errors.append(float(np.sqrt(power)))
        figures = "| |"
        if errors:
            within = np.mean(np.less(errors, TOLERANCE))
            figures = f"{np.median(errors):.2%} | {max(errors):.2%} | {within:.0%}"
        print(f"| {name} | {len(errors)} of {len(spoken)} | {figures} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
