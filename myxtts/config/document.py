"""Writes docs/reference/configuration.md from the schema: `python -m myxtts.config.document`."""

from pathlib import Path

from myxtts.config.settings import SECTIONS, SETTINGS, Setting, in_section

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m myxtts.config.document` from myxtts/config/schema.py. Change it there. -->

A run has {count} settings in {sections} sections, and a default for each. A YAML file names those that differ:

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

and a flag replaces the value of the file:

```
python train_main.py --config my_voice.yaml --batch-size 32 --data-gpu 0 --model-gpu 1 --no-use-tf-native-loading
```

A file may build on others. Beside its sections it lists them as `defaults`, by name and in the same folder, with or
without `.yaml`:

```yaml
# my_voice_large.yaml
defaults: [my_voice, dual_gpu_24gb]
model:
  model_size: big
```

Later files of the list replace values of earlier ones, the file itself replaces those of all of them, and flags come
last. Each listed file counts with those that it lists itself. A message names the file and line that a value stands in.

- A flag is the name of a setting without its section: `data.batch_size` is `--batch-size`, or `--batch_size`.
- A setting of the kind *true or false* has two flags: `--resume` and `--no-resume`.
- `null` means "not given" where it is allowed: `--data-gpu null` takes back the `data_gpu` of a file.
- Units stand in the tables; memory is in MiB, duration in seconds, and a period is in steps, with 0 for "never".
- `--print-config` prints all settings as they result, and stops. Each run keeps them in `runs/<name>/config.yaml`,
  which `--config` reads again.
- Names that are not known, values that are not allowed and broken YAML end the program with exit code 2
  and the place of the mistake, before anything is made.
- YAML is read as version 1.2: `1e-4` is a number, `true` and `false` are the only truth values, and text such as
  `no` or `2026-01-31` needs no quotes. Text that looks like a number does: `run: "7"`.

Some settings depend on each other: `min_seconds` is below `max_seconds`; `max_steps` and `epochs` are not both 0
(with both given, the first to be reached ends the run); `compile: xla` needs `enable_static_shapes`.
"""

_TABLE = ("| Flag | Default | Allowed | Meaning |", "|---|---|---|---|")


def page() -> str:
    """The text of docs/reference/configuration.md."""
    introduction = _INTRODUCTION.format(count=len(SETTINGS), sections=len(SECTIONS))
    return "\n".join([introduction, *(_section(name, meaning) for name, meaning in SECTIONS.items())])


def _section(name: str, meaning: str) -> str:
    rows = [_row(setting) for setting in in_section(name)]
    return "\n".join([f"## {name}", "", meaning, "", *_TABLE, *rows, ""])


def _row(setting: Setting) -> str:
    cells = (f"`{setting.flag}`", f"`{setting.default_text}`", setting.allowed, setting.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
