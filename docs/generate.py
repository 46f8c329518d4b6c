"""Write the pages of the documentation that follow from the sources: `make docs`.

`docs/generated/configuration.md` has every setting with its flag, default, bounds and meaning.
`docs/generated/messages.md` has the texts that the program shows, for a review of them.
Both are in the repository, so that links and the site find them; `tests/test_docs.py` compares them
with the sources.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from myxtts.config import schema
from myxtts.config.flags import SECTIONS, SETTINGS, Setting, in_section, marked
from myxtts.config.schema import Mark

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "generated"

WRITTEN_BY = "<!-- `python -m docs.generate` writes this page. -->\n\n"
CONFIGURATION = """\
# Configuration

A run has {count} settings in {sections} sections, each with a default. A YAML file names the
settings that differ:

```yaml
# my_voice.yaml
placement:
  data_gpu: 0
  model_gpu: 1
data:
  train_data: /corpora/my_voice
  batch_size: 24
training:
  learning_rate: 5e-4
```

A flag replaces the value in the file:

```
python train_main.py --config my_voice.yaml --batch-size 32 --data-gpu 0 --model-gpu 1
```

A file may build on other files in the same folder. It lists their names as `defaults`, with or
without `.yaml`:

```yaml
# my_voice_large.yaml
defaults: [my_voice, dual_gpu_24gb]
model:
  model_size: big
```

A file in the list replaces the values of the files before it, the file itself replaces the values
of the list, and flags replace all of them. Listed files may list further files. Error messages name
the file and the line.

- A flag is the name of a setting without its section: `data.batch_size` is `--batch-size` or
  `--batch_size`.
- A setting with the values *true or false* has two flags: `--resume` and `--no-resume`.
- `null`, where it is allowed, means "not set": `--data-gpu null` cancels the `data_gpu` of a file.
- Memory is in MiB, durations are in seconds, and periods are in steps, with 0 for "never".
- `--print-config` prints all resolved settings and exits. Each run keeps them in
  `runs/<name>/config.yaml`, which `--config` accepts.
- Unknown names, values that are not allowed and broken YAML end the program with exit code 2 and
  the place of the mistake, before it writes anything. For a setting that was renamed or removed,
  the message says what to use instead.
- YAML follows version 1.2: `1e-4` is a number, `true` and `false` are the only Boolean values, and
  text such as `no` or `2026-01-31` needs no quotes. Text that looks like a number needs them:
  `run: "7"`.

Some settings depend on each other (`myxtts/config/checks.py` has all rules): `min_seconds` is below
`max_seconds`; `compile: xla` requires `enable_static_shapes`; `max_steps` and `epochs` are not both
0; jobs that sync have no `epochs`.

Some have an effect only with certain values of others, which their meaning lists as "Only with …".
Such a setting ends the program with exit code 2 if it is given without them: as a flag, or in a
file with a value that is not the default. A flag may make settings of a file useless: `--task tts`
those of a recogniser, `--batch-seconds 100` the `batch_size`. They then have their defaults.

`--resume --run NAME` continues a run with the settings of its own `config.yaml`, and flags replace
them. Flags that name GPUs replace all GPUs that the run had. A command with `--train-data`, such as
the one that started the run, or with `--config FILE` has its settings from there alone.

A run ends after `max_steps` steps or after `epochs` passes over the corpus. With both set, the
first limit that is reached ends the run. With `epochs` alone, `max_steps` becomes 0, also in the
`config.yaml` of the run: its default does not end the run. To train a run further, resume it with a
larger limit, such as `--resume --epochs 200`.
"""

MESSAGES = """\
# Messages

The texts of the program: errors, log lines, results of the preflight and `--help`, by module and
function. Texts with HTML are left out. `{name}` stands for a value.
"""

NAMES = {"prog", "metavar"}
WORD = re.compile(r"(?<![%{\w])[^\W\d_]{2,}(?![^{}]*\})")  # outside of {…}
HTML = re.compile(r"</?[a-z]|\{--")


def configuration() -> str:
    """Return the page of all settings."""
    introduction = WRITTEN_BY + CONFIGURATION.format(count=len(SETTINGS), sections=len(SECTIONS))
    parts = [introduction]
    for section, meaning in SECTIONS.items():
        head = ["| Flag | Default | Allowed | Meaning |", "|---|---|---|---|"]
        rows = [_row(setting) for setting in in_section(section)]
        parts.append("\n".join([f"## {section}", "", meaning, "", *head, *rows, ""]))
    parts.append("## What else holds of a setting\n")
    for mark in dict.fromkeys(value for value in vars(schema).values() if isinstance(value, Mark)):
        flags = ", ".join(f"`{setting.flag}`" for setting in marked(mark))
        parts.append(f"- A setting that {mark.meaning}: {flags}.")
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    cells = f"`{setting.flag}`", f"`{setting.default_text}`", setting.allowed, setting.meaning
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def messages() -> str:
    """Return the page of all texts that the program shows."""
    parts = [WRITTEN_BY + MESSAGES]
    for path in sorted((ROOT / "myxtts").rglob("*.py")):
        lines = []
        for function, text in _sentences(ast.parse(path.read_text(encoding="utf-8"))):
            indented = text.rstrip("\n").replace("\n", "\n    ")
            lines.append(f"{function}: {indented}")
        if lines:
            name = path.relative_to(ROOT).as_posix()
            parts.append("\n".join([f"## {name}\n", "```text", *lines, "```\n"]))
    return "\n".join(parts)


def _sentences(node: ast.AST, function: str = "module") -> Iterator[tuple[str, str]]:
    """Yield (function, text) of each text of several words, but for docstrings and patterns."""
    text = _text(node)
    if text is not None:
        if WORD.search(text) and " " in text.strip() and not HTML.search(text):
            yield function, text
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        is_name = isinstance(child, ast.keyword) and child.arg in NAMES
        if not is_docstring and not is_name:
            yield from _sentences(child, function)


def _text(node: ast.AST | None) -> str | None:
    """Return a string, or an f-string with {expression} for each value; None for another node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        form = "" if node.format_spec is None else f":{_text(node.format_spec)}"
        return f"{{{ast.unparse(node.value)}{form}}}"
    return None


PAGES = {FOLDER / "configuration.md": configuration, FOLDER / "messages.md": messages}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
