"""Names that a user types: the nearest one, what replaces an unknown one, and scripts of commands.

The names that are unknown but have an answer are in two tables next to this module.
`former_names.yaml` has each setting, flag, section and value that was renamed or removed, so that
an old command line says what to change. `foreign_names.yaml` has the flags and settings of other
trainers that docs/guides/coming_from.md translates. Both are read only for a message.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from myxtts.config.flags import SETTINGS, Setting
from myxtts.config.needs import flag_of

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

# In texts of the tables; a flag has no uppercase letter.
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")


def command_line(command: str) -> str:
    """Return what a user types to run a command: its script in a checkout, else `myxtts NAME`."""
    script = SCRIPTS[command]
    has_script = (Path(__file__).parents[2] / script).is_file()
    return f"python {script}" if has_script else f"myxtts {command}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word of `words` that is closest to `word`, or None if none is close."""
    return next(iter(difflib.get_close_matches(word.lower(), words, n=1)), None)


def join_names(names: Sequence[str], limit: int = 16) -> str:
    """Return the first names for a message, with a mark if there are more."""
    ellipsis = ["…"] if len(names) > limit else []
    return ", ".join([*names[:limit], *ellipsis])


@cache
def former_names() -> dict[str, Any]:
    """Return the tables `renamed`, `removed`, `sections` and `values` of former_names.yaml."""
    return _table("former_names.yaml")


@cache
def foreign_names() -> dict[str, str]:
    """Return what to use instead of each flag or setting of another trainer."""
    texts: dict[str, str] = {}
    for text, names in _table("foreign_names.yaml").items():
        texts |= dict.fromkeys(names.split(), text)
    return texts


def _table(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def advice_on_flag(flag: str, flags: Collection[str]) -> str:
    """Return what follows "… is not a flag"; `flags` are all that the command has."""
    # Coqui and Piper put a section before the name: --coqpit.lr, --data.batch_size.
    word = flag.lstrip("-").rpartition(".")[2]
    advice = _advice(word.removeprefix("no-").replace("-", "_"), flags)
    if advice is not None:
        return advice
    near = nearest(word, [known[2:] for known in flags])
    return f". Did you mean --{near}?" if near else ". --help lists the flags."


def _advice(name: str, flags: Collection[str]) -> str | None:
    """Return what to use instead of a name with _ for -; None for a name in none of the tables."""
    former = former_names()
    new = flag_of(former["renamed"].get(name, ""))
    if new in flags:
        return f": it was renamed to {new}."
    if name in former["removed"]:
        return f": it was removed. {former['removed'][name]}"
    text = foreign_names().get(name)
    if text is None:
        return None
    # Most texts name settings, which only the commands that train have.
    if {setting.flag for setting in SETTINGS.values()}.intersection(_FLAG.findall(text)) - {*flags}:
        return None
    return f". Use {text}." if text.startswith("--") else f": {text}."


def advice_on_key(name: str) -> str | None:
    """Return what follows "… is unknown" for a name of a YAML file; None if nothing is known."""
    by_flag = {setting.flag: setting for setting in SETTINGS.values()}

    def key(flag: re.Match[str]) -> str:
        setting = by_flag.get(flag[0])
        return f"'{setting.name}' under '{setting.section}:'" if setting else flag[0]

    advice = _advice(name, by_flag)
    return advice and _FLAG.sub(key, advice)


def advice_on_value(setting: Setting, value: Any) -> str | None:
    """Return what to use instead of a value that a setting had; None for any other value."""
    texts = former_names()["values"].get(setting.name, {})
    return texts.get(value) if isinstance(value, str) else None
