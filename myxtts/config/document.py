"""Write docs/reference/configuration.md from the schema: `python -m myxtts.config.document`."""

from pathlib import Path

from myxtts.config.settings import SECTIONS, SETTINGS, Setting, in_section

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m myxtts.config.document` from myxtts/config/schema.py. Change it there. -->

A run has {count} settings in {sections} sections, each with a default. A YAML file names the settings that differ:

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
python train_main.py --config my_voice.yaml --batch-size 32 --data-gpu 0 --model-gpu 1 --no-use-tf-native-loading
```

A file may build on other files in the same folder. It lists their names as `defaults`, with or without `.yaml`:

```yaml
# my_voice_large.yaml
defaults: [my_voice, dual_gpu_24gb]
model:
  model_size: big
```

A file in the list replaces the values of the files before it, the file itself replaces the values of the list, and
flags replace all of them. Listed files may list further files. Error messages name the file and the line.

- A flag is the name of a setting without its section: `data.batch_size` is `--batch-size` or `--batch_size`.
- A setting with the values *true or false* has two flags: `--resume` and `--no-resume`.
- `null`, where it is allowed, means "not set": `--data-gpu null` cancels the `data_gpu` of a file.
- Memory is in MiB, durations are in seconds, and periods are in steps, with 0 for "never".
- `--print-config` prints all resolved settings and exits. Each run keeps them in `runs/<name>/config.yaml`, which
  `--config` accepts.
- Unknown names, values that are not allowed and broken YAML end the program with exit code 2 and the place of the
  mistake, before it writes anything. For a setting that was renamed, the message has the new name.
- YAML follows version 1.2: `1e-4` is a number, `true` and `false` are the only Boolean values, and text such as `no` or
  `2026-01-31` needs no quotes. Text that looks like a number needs them: `run: "7"`.

Some settings depend on each other (`myxtts/config/checks.py` has all rules): `min_seconds` is below `max_seconds`;
`compile: xla` requires `enable_static_shapes`; `max_steps` and `epochs` are not both 0; jobs that sync have no
`epochs`. No setting may contain a NUL or bytes that are not UTF-8, not even a path.

Some have an effect only with certain values of others, which their meaning lists as "Only with …". Such a setting
ends the program with exit code 2 if it is given without them: as a flag, or in a file with a value that is not the
default. A flag may make settings of a file useless: `--task tts` those of a recogniser, `--batch-seconds 100` the
`batch_size`. They then have their defaults.

`--resume --run NAME` continues a run with the settings of its own `config.yaml`, and flags replace them. Flags that
name GPUs replace all GPUs that the run had. A command with `--train-data`, such as the one that started the run, or
with `--config FILE` has its settings from there alone.

A run ends after `max_steps` steps or after `epochs` passes over the corpus. With both set, the first limit that is
reached ends the run. With `epochs` alone, `max_steps` becomes 0, in the `config.yaml` of the run, too: its default does
not end the run. To train a run further, resume it with a larger limit, such as `--resume --epochs 200`.
"""

_TABLE = ("| Flag | Default | Allowed | Meaning |", "|---|---|---|---|")


def page() -> str:
    """The text of docs/reference/configuration.md."""
    introduction = _INTRODUCTION.format(count=len(SETTINGS), sections=len(SECTIONS))
    return "\n".join(
        [introduction, *(_section(name, meaning) for name, meaning in SECTIONS.items())]
    )


def _section(name: str, meaning: str) -> str:
    rows = [_row(setting) for setting in in_section(name)]
    return "\n".join([f"## {name}", "", meaning, "", *_TABLE, *rows, ""])


def _row(setting: Setting) -> str:
    needs = f" Only {setting.needs.text}." if setting.needs.names else ""
    cells = (
        f"`{setting.flag}`",
        f"`{setting.default_text}`",
        setting.allowed,
        setting.description + needs,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
