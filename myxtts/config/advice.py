"""What a user meant by a name that MyXTTS does not have: of a flag, a setting, a file, a command.

other_names.yaml has the names of other trainers and of earlier versions.
"""

import os
import re
from collections.abc import Collection, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from myxtts.base import plugins
from myxtts.base.files import table_beside
from myxtts.config.flags import SCRIPTS, SETTINGS, command_line
from myxtts.config.schema import flag_of

CONFIGS = Path(__file__).parents[2] / "configs"  # of a checkout
# A flag, and a value whose letters are not all small: 0 1, runs/NAME, mixed_float16.
FLAG = re.compile(r"(--[a-z][a-z0-9-]*)((?: (?=[^\s,]*[A-Z0-9_])[^\s,]*[^\s,.])*)")


@cache
def other_names() -> dict[str, dict[str, Any]]:
    """Return the tables of other_names.yaml; `instead` has texts by name and by the commands."""
    tables = table_beside(__file__, "other_names.yaml")
    by_name: dict[str, dict[str, str]] = {}
    for commands, texts in tables["instead"].items():
        for text, names in texts.items():
            for name in names.split():
                by_name.setdefault(name, {})[commands] = text
    return tables | {"instead": by_name}


# A wrong guess is worse than none, so both names are compared word by word. Plurals and hyphens do
# not matter. A word that other trainers or settings use is not taken for a misspelling.
def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name among `names` that a misspelt name means, or None.

    Each word has at most one edit in four letters: --eval-data is not --val-data.
    """
    from rapidfuzz.distance import OSA

    known_words = {*"_".join([*SETTINGS, *other_names()["instead"]]).split("_")}

    def is_meant(other: str) -> bool:
        words, others = (re.split("[-_]", each.lower()) for each in (name, other))
        if len(words) != len(others):
            return "".join(words) == "".join(others)
        return all(
            a.rstrip("s") == b.rstrip("s")
            or (a not in known_words and OSA.normalized_distance(a, b) <= 0.25)
            for a, b in zip(words, others, strict=True)
        )

    return min(filter(is_meant, names), key=partial(OSA.distance, name), default=None)


def command_of(program: str) -> str | None:
    """Return the command by its name, or by its script here or in another project."""
    scripts = {Path(script).stem: name for name, script in SCRIPTS.items()}
    commands = {name: name for name in plugins.GROUPS["commands"]}
    names = other_names()["scripts"] | scripts | commands
    return names.get(Path(program).stem)


def advice_on_file(path: Path) -> str:
    """Return what follows "there is no file …" of settings: the one that may be meant."""
    for folder in (path.parent, CONFIGS):
        files = {file.stem: file for file in sorted(folder.glob("*.y*ml"))}
        name = other_names()["configs"].get(path.stem, "")
        if near := files.get(name) or files.get(nearest(path.stem, files) or ""):
            return f" Did you mean {near}?"
    return ""


def advice_on_run(path: Path) -> str:
    """Return the command that trains a missing run, if a file of configs/ does."""
    for file in CONFIGS.glob("*.yaml"):
        is_trained = f"\n  run: {path.name}\n" in file.read_text(encoding="utf-8")
        if is_trained and path.parent.name == "runs":
            return f" `{command_line('train')} --config {os.path.relpath(file)}` trains it."
    return ""


def advice_on_flag(flag: str, command: str, flags: Collection[str]) -> str:
    """Return what follows "… is not a flag" of a command, which has these flags."""
    # Coqui, Piper and Hydra put a section before the name: --coqpit.lr, trainer.max_epochs.
    word = flag.lstrip("-").rpartition(".")[2]
    advice = _advice(word.removeprefix("no-").replace("-", "_"), command, flags)
    if advice is None and (near := nearest(word, [known[2:] for known in flags])):
        return f". Did you mean --{near}?"
    return advice or ". --help lists the flags."


def advice_on_key(name: str) -> str | None:
    """Return what follows "… is unknown" for a name of a YAML file; None if nothing is known."""
    by_flag = {setting.flag: setting for setting in SETTINGS.values()}

    def key(flag: re.Match[str]) -> str:
        setting, value = by_flag.get(flag[1]), flag[2]
        if setting is None:
            return flag[0]
        if value:
            value = f": [{value[1:].replace(' ', ', ')}]" if setting.many else f":{value}"
        return f"'{setting.name}{value}' under '{setting.section}:'"

    advice = _advice(name, "train", by_flag)
    return advice and FLAG.sub(key, advice)


# A renamed setting comes first. Then the texts of other_names.yaml are tried: those for this
# command, then for `train`. A text fits if the command has all flags that it names. At last another
# command is named that has something like it.
def _advice(name: str, command: str, flags: Collection[str]) -> str | None:
    """Return what to use instead of a name with _ for -; None for a name in none of the tables."""
    renamed = flag_of(other_names()["renamed"].get(name, ""))
    if renamed in flags:
        return f": it was renamed to {renamed}."
    texts = dict(other_names()["instead"].get(name, {}))
    if name in SETTINGS:
        texts = {"train": flag_of(name)} | texts
    for owners, text in sorted(texts.items(), key=lambda item: command not in item[0].split()):
        # A setting means the same in each command, but another flag may differ between commands.
        may_fit = command in owners.split() or owners == "train"
        if may_fit and {flag for flag, _ in FLAG.findall(text)} <= {*flags}:
            return f". Use {text}." if text.startswith("--") else f": {text}."
    for owners, text in texts.items():
        return f". Use `{command_line(owners.split()[0])}` with {text}."
    return None
