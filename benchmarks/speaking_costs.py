"""Show where an exported voice's time goes, and compare files: processor time on one thread.

    python benchmarks/speaking_costs.py --texts data/en/judging.txt old.onnx new.onnx

The files speak each text in turn, in both orders, without the text front end. A row has the least
time for a second of speech, its ratio to the first file's, and that time as a part for each
sentence and a part for each second. Then come the operations of the last file by kind, with the
speed of its products beside that of one large product.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnxruntime

from myxtts.audio.format import sample_rate_hz
from myxtts.base.console import report_errors
from myxtts.speak.chunks import encode_text, player_ids_of, voice_inputs
from myxtts.speak.player import ExportedSpeaker

ROUNDS, KINDS, SIZE = 5, 20, 1024
PRODUCTS = "MatMul", "Gemm", "FusedMatMul"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=Path, required=True, help="a sentence in each line")
    parser.add_argument("--count", type=int, default=20, help="of texts")
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    texts = options.texts.read_text("utf-8").splitlines()[: options.count]
    speakers = [ExportedSpeaker(path) for path in options.files]
    inputs = [[*spoken_inputs(speaker, texts)] for speaker in speakers]
    least_s = np.full([len(speakers), len(inputs[0])], np.inf)
    seconds = np.zeros_like(least_s)
    for turn in range(ROUNDS):
        for text in range(len(inputs[0])):
            for row in range(len(speakers))[:: -1 if turn % 2 else 1]:
                began_s = time.process_time()
                wave = speakers[row]._run(inputs[row][text])[0]
                least_s[row, text] = min(least_s[row, text], time.process_time() - began_s)
                seconds[row, text] = wave.size / sample_rate_hz()
    costs = least_s.sum(axis=1) / seconds.sum(axis=1)
    print("| file | core s a second | ratio | ms a sentence | ms a second |\n|---|---|---|---|---|")
    for path, cost, length, spent in zip(options.files, costs, seconds, least_s, strict=True):
        slope, fixed = 1e3 * np.polyfit(length, spent, 1)
        print(f"| {path} | {cost:.4f} | {cost / costs[0]:.3f} | {fixed:.1f} | {slope:.1f} |")
    show_operations(options.files[-1], inputs[-1], seconds[-1].sum())
    return 0


def spoken_inputs(speaker: ExportedSpeaker, texts: list[str]):
    """Yield the inputs of the graph for each sentence of some texts."""
    for text in texts:
        for chunk in encode_text(text, speaker.language, speaker._frontend, speaker._symbols):
            ids = player_ids_of(chunk.symbols, speaker._id_map)
            yield voice_inputs(ids, len(speaker.speakers), speaker._scales)


def show_operations(path: Path, inputs: list[dict], seconds: float) -> None:
    """Print the operations of a graph by kind, for a second of speech."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # As `load_onnx` has them.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for given in inputs:
            session.run(None, given)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    times_s: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    products = 0.0
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            about = event["args"]
            kind = about["op_name"]
            times_s[kind] += event["dur"] / 1e6
            counts[kind] += 1
            if kind in PRODUCTS:
                (left, *_), (out,) = (
                    [shape for entry in about[side] for shape in entry.values()]
                    for side in ("input_type_shape", "output_type_shape")
                )
                products += 2.0 * np.prod(out) * left[-1]
    rate = products / sum(times_s[kind] for kind in PRODUCTS)
    print(f"\nproducts: {products / seconds / 1e9:.2f} GFLOP a second of speech,", end=" ")
    print(
        f"at {rate / 1e9:.0f} GFLOP/s of {peak() / 1e9:.0f}\n\n| operation | ms a second | share |"
    )
    print("|---|---|---|")
    for kind, spent_s in times_s.most_common(KINDS):
        figures = f"{1e3 * spent_s / seconds:.2f} | {spent_s / times_s.total():.1%}"
        print(f"| {kind}, {counts[kind] / len(inputs):.0f} | {figures} |")


def peak() -> float:
    """Return the operations in a second of one large product of NumPy."""
    a = np.ones([SIZE, SIZE], np.float32)
    spent_s = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        a @ a
        spent_s.append(time.process_time() - began_s)
    return 2.0 * SIZE**3 / min(spent_s)


if __name__ == "__main__":
    sys.exit(report_errors(main))
