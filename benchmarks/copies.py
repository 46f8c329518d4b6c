"""List the copies between host and GPU memory in the producer and the step, with the lines that
cause them.

    python benchmarks/copies.py
    python benchmarks/copies.py --config configs/asr_voice.yaml --encoder gru

Takes the settings of train_main.py, but needs neither a corpus nor a GPU: see
fakes/copies.py. Prints a Markdown table of the numbers, and then the copies to the host,
which wait for the GPU, and those to the GPU.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.config.schema import Config
from myxtts.config.settings_parser import read_settings, settings_parser

TYPICAL = {"batch": 16, "frames": 600, "tokens": 90}  # of a batch


def main(argv: list[str] | None = None) -> int:
    parser = settings_parser("benchmarks/copies.py", "List the copies between host and GPU memory.")
    config, _ = read_settings(parser, sys.argv[1:] if argv is None else argv)
    from fakes.copies import find_copies

    functions = traced_functions(config)
    copies = {name: find_copies(function) for name, function in functions.items()}
    print("| function | to the host | in loops | to the GPU | in loops |\n|---|---|---|---|---|")
    for name, found in copies.items():
        counts = (
            _of(found, to_host, in_loop) for to_host in (True, False) for in_loop in (False, True)
        )
        print(f"| {name} | {' | '.join(str(len(part)) for part in counts)} |")
    for name, found in copies.items():
        for copy in sorted(found, key=lambda copy: (not copy.to_host, copy.source, copy.tensor)):
            direction = ("to host" if copy.to_host else "to GPU") + (
                ", in a loop" if copy.in_loop else ""
            )
            print(
                f"{name}  {direction}  {copy.source or '?'}  {copy.tensor}  {copy.dtype}"
                f" {copy.type} → {copy.consumer}"
            )
    return 0


def _of(copies: list, to_host: bool, in_loop: bool) -> list:
    return [copy for copy in copies if (copy.to_host, copy.in_loop) == (to_host, in_loop)]


def traced_functions(config: Config) -> dict:
    """Return the concrete functions of a run with these settings by name."""
    from myxtts.corpus.manifest import Vocabulary
    from myxtts.devicefeed.producer import trace_produce
    from myxtts.placement.replicas import make_replicas
    from myxtts.run.setup import build_state, configure_devices, make_step
    from myxtts.tasks.contract import empty_batch
    from myxtts.tasks.registry import task_of
    from myxtts.text.symbols import SymbolTable

    replicas = make_replicas(configure_devices(config).routes)
    vocabulary = Vocabulary(
        SymbolTable(tuple("abcdefghijklmnopqrstuvwxyz")), ("speaker",), ("en", "ka")
    )
    extractor = task_of(config).extractor(config, training=True)
    state = build_state(config, vocabulary, replicas)
    task_of(config).tune(config, state.model, state.device, TYPICAL)
    steps = make_step(config, state).functions(
        [empty_batch(extractor.features) for _ in replicas.devices]
    )
    return {"producer": trace_produce(replicas.routes[0].data, extractor)} | {
        name: function for name, function in zip(("step", "last microbatch"), steps, strict=False)
    }


if __name__ == "__main__":
    sys.exit(report_errors(main))
