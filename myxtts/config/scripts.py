"""How to type a command of MyXTTS: its script in a checkout, or the console script of an installed
package.
"""

from pathlib import Path

SCRIPTS = {
    "train": "train_main.py",
    "preflight": "validate_dual_gpu_pipeline.py",
    "profile": "utilities/dual_gpu_bottleneck_profiler.py",
    "plan": "utilities/plan_placement.py",
    "synthesize": "utilities/synthesize.py",
    "evaluate": "utilities/evaluate.py",
    "transcribe": "utilities/transcribe.py",
    "export": "utilities/export_model.py",
    "launch": "utilities/launch_workers.py",
    "jobs": "utilities/train_independent.py",
    "merge": "utilities/merge_checkpoints.py",
    "shard": "utilities/split_dataset.py",
    "corpus": "utilities/make_demo_corpus.py",
    "serve-data": "utilities/data_service.py",
    "check-distributed": "utilities/check_distributed.py",
}
"""Scripts of a checkout, by the name of their command."""


def command_line(command: str) -> str:
    """Return what a user types to run a command, such as `python utilities/launch_workers.py` or
    `myxtts launch`.
    """
    script = SCRIPTS[command]
    return (
        f"python {script}"
        if (Path(__file__).parents[2] / script).is_file()
        else f"myxtts {command}"
    )
