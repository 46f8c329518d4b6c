"""Hostile configurations: YAML that is broken, huge, nested, tagged, or of other programs."""

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from benchmarks.hostile.bytes_and_files import encoded, mutate_bytes, write_odd_file
from benchmarks.hostile.case import Call, Place
from myxtts.config.load import dump, load
from myxtts.config.schema import Config
from myxtts.config.settings import SETTINGS

VALUES = (
    *(
        "",
        "~",
        "null",
        "true",
        "yes",
        "0",
        "-1",
        "1",
        "1e400",
        "-1e400",
        "1e-400",
        ".inf",
        "-.inf",
        ".nan",
        "NaN",
        "0x7f",
    ),
    *(
        "9" * 50,
        "9" * 5000,
        "1_000",
        "1:30:30",
        "2026-01-31",
        "1.",
        ".5",
        "-0.0",
        "2147483648",
        "9223372036854775808",
    ),
    *(
        "''",
        '"\\uD800"',
        '"\\U00110000"',
        '"\\UFFFFFFFF"',
        '"\\x00"',
        '"\\x1b[2J"',
        '"\\u202e"',
        '"\\q"',
        "'unclosed",
    ),
    *(
        "[]",
        "[[]]",
        "[1, 2]",
        "{}",
        "{a: b}",
        "[a, [b, [c]]]",
        "[" * 500,
        "{" * 500,
        "- " * 500,
        "? " * 500,
        ": " * 500,
    ),
    *(
        "&a x",
        "*a",
        "*missing",
        "&a [*a, *a]",
        "&a {b: *a}",
        "<<: *a",
        "!!str",
        "!!int x",
        "!!bool maybe",
        "!!null x",
    ),
    *(
        "!!python/object/apply:os.system [touch pwned]",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/none",
    ),
    *(
        "!!python/object/new:os.system [id]",
        "!!python/tuple [1]",
        "!!binary aGVsbG8=",
        "!!set {a}",
        "!!timestamp 2026",
    ),
    *(
        "!!float inf",
        "!!int 0x10",
        "!!int 1_0",
        "!!float 1_0.5",
        "!!float nan",
        "!!omap [a: 1]",
        "!<%ff> x",
        "!<> x",
    ),
    *(
        "|\n      text\n      more",
        ">+99\n    x",
        "|-3\n  x",
        "a" * 60_000,
        "[" + "a, " * 20_000 + "]",
        "@x",
        "`x",
        "%x",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "/dev/zero",
        "~",
        "a/b",
        "..",
        ".",
        "con",
        "x\\y",
        "tts",
        "xtts",
        "large",
        "fp16",
    ),
    *(
        "[8192, 8192]",
        "[none, none]",
        "[-1]",
        "[0, 0]",
        "auto",
        "mixed_float16",
        "bf16",
        "grpc://x:99999",
        "grpc://[::",
    ),
    *(
        "☃",
        "\u202e\u2066x",
        "\u2028",
        "\x85",
        "\t",
        "# comment",
        "a: b: c",
        "- a",
        "key: [1, 2",
        "!",
        "&",
        "*",
        "|",
        ">",
    ),
)
KEYS = (
    "",
    "<<",
    "?",
    "- x",
    "!!str run",
    "&a run",
    "*a",
    "[1]",
    "{a: 1}",
    "null",
    "true",
    "1",
    "a" * 2000,
    "'\\'",
    '"\\0"',
)
TOP = (
    *(
        "%YAML 1.1\n---\n",
        "%YAML 9.9\n---\n",
        "%TAG ! tag:x,2000:\n---\n",
        "%YAML " + "9" * 400 + ".1\n---\n",
        "%\n",
        "---\n",
    ),
    *(
        "---\n---\n",
        "...\n",
        "--- !!python/object:x\n",
        "!!map\n",
        "[\n",
        "{\n",
        "\ufeff",
        "\ufeff\ufeff",
        "\t",
        "\0",
        "\x85",
    ),
    *(
        "# " + "x" * 50_000 + "\n",
        "&a\n",
        "- ",
        "? ",
        "a\n",
        "'",
        '"',
        "|\n",
        ">\n",
        "...\n---\n",
        "\u2028",
        "!!set\n",
        "*a\n",
    ),
)
MAX_BYTES = 64 * 1024


@cache
def _complete() -> str:
    return dump(Config())


def _settings(draw: random.Random) -> str:
    """Some settings, with odd values."""
    lines: dict[str, list[str]] = {}
    for name in draw.sample(tuple(SETTINGS), draw.choice((1, 2, 5, 20))):
        key = draw.choice(KEYS) if draw.random() < 0.05 else name
        lines.setdefault(SETTINGS[name].section, []).append(f"  {key}: {draw.choice(VALUES)}")
    sections = [f"{draw.choice(KEYS) if draw.random() < 0.03 else section}:" for section in lines]
    return (
        "\n".join(
            line
            for head, body in zip(sections, lines.values(), strict=True)
            for line in (head, *body)
        )
        + "\n"
    )


def _complete_with_odd_lines(draw: random.Random) -> str:
    lines = _complete().splitlines()
    for _ in range(draw.choice((1, 1, 3, 10))):
        at = draw.randrange(len(lines))
        key, separator, _ = lines[at].partition(":")
        choice = draw.randrange(5)
        if choice == 0:
            lines.insert(at, lines[draw.randrange(len(lines))])
        elif choice == 1:
            lines[at] = draw.choice((" ", "\t", "")) * draw.randrange(4) + lines[at].strip()
        elif choice == 2:
            del lines[at : at + draw.randrange(5)]
        else:
            lines[at] = f"{key}{separator} {draw.choice(VALUES)}"
        lines = lines or [""]
    return "\n".join(lines) + "\n"


def _laughs(draw: random.Random) -> str:
    """Aliases of aliases: 10 to the power of the levels, if they were built."""
    levels, width = draw.choice((3, 9, 30)), draw.choice((2, 10, 100))
    lines = ["a0: &a0 [lol, lol]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)
    ]
    end = draw.choice(
        (
            f"run: *a{levels - 1}",
            f"run:\n  run: *a{levels - 1}",
            f"run:\n  <<: *a{levels - 1}",
            f"defaults: *a{levels - 1}",
        )
    )
    return "\n".join([*lines, end] if draw.random() < 0.5 else [end, *lines]) + "\n"


def _aliased_lists(draw: random.Random) -> str:
    """One long list as the value of each setting."""
    values = ", ".join(["0"] * draw.choice((10, 5_000, 15_000)))
    names = [name for name in SETTINGS if SETTINGS[name].section == "placement"]
    return (
        "placement:\n  model_gpus: &a ["
        + values
        + "]\n"
        + "".join(f"  {name}: *a\n" for name in names if name != "model_gpus")
    )


def _filled(draw: random.Random) -> str:
    """Up to the largest size, of what a parser may take long for."""
    units = (
        *(
            "[",
            "{",
            "- ",
            "? ",
            "[a, ",
            "{a: ",
            "- - ",
            "a: ",
            "&a ",
            "*a ",
            "!!str ",
            "'",
            '"',
            '"\\',
            "''",
            "# ",
            "\n",
        ),
        *(
            "a\n",
            " a\n",
            "a:\n",
            "a: b\n",
            "- a\n",
            "&a b\n",
            "!<x> ",
            "[]",
            "{}",
            "[[],",
            "{a},",
            "a,",
            "\t",
            "\\x",
            "%",
            "--- a\n",
        ),
        *(
            "'a\n\n",
            '"\\u0041',
            "|\n ",
            ">\n a\n",
            "a: [",
            "? a\n: b\n",
            "x" * 100 + ": 1\n",
            "☃",
            "\x85",
            "[a]: b\n",
            "...\n",
        ),
    )
    unit = "".join(draw.choices(units, k=draw.choice((1, 1, 2))))
    size = draw.choice((1_000, MAX_BYTES - 100, MAX_BYTES + 1))
    return (
        draw.choice(("", "[", "{", "run:\n  run: ", '"', "'", "|\n "))
        + (unit * (size // len(unit) + 1))[:size]
    )


def _unknown_names(draw: random.Random) -> str:
    words = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz_", k=draw.choice((1, 8, 40))))
        for _ in range(draw.choice((3, 50, 900)))
    ]
    return (
        draw.choice(("", "run:\n  ", "training:\n  "))
        + draw.choice(("\n", "\n  ")).join(f"{word}: 1" for word in words)
        + "\n"
    )


def _with_odd_top(draw: random.Random) -> str:
    return "".join(draw.choices(TOP, k=draw.randint(1, 3))) + draw.choice(
        (_complete(), _settings(draw), "")
    )


TEXTS: tuple[Callable[[random.Random], str], ...] = (
    *(
        _settings,
        _settings,
        _settings,
        _complete_with_odd_lines,
        _complete_with_odd_lines,
        _laughs,
        _aliased_lists,
    ),
    *(_filled, _unknown_names, _with_odd_top),
)


def prepare(draw: random.Random, place: Place) -> Call:
    text = draw.choice(TEXTS)(draw)
    path = place.runs / draw.choice(
        ("config.yaml", "config.yaml", "config.json", "x.yml", "con\x1bfig.yaml")
    )
    data = (
        encoded(draw, text)
        if draw.random() < 0.7
        else mutate_bytes(draw, text.encode("utf-8", "surrogatepass"))
    )
    if draw.random() < 0.1:
        write_odd_file(draw, path, place, data, named=True)
        return partial(_load, path)
    path.write_bytes(data)
    return partial(_load, _listed(draw, place, path) if draw.random() < 0.2 else path)


def _listed(draw: random.Random, place: Place, path: Path) -> Path:
    """A configuration that lists others: the hostile one, chains and cycles of it, and odd
    files.
    """
    main = path.with_name("main.yaml")
    names = [path.name]
    for number in range(draw.choice((0, 1, 15, 40))):
        other = path.with_name(f"b{number}.yaml")
        listed = f"defaults: [b{number + 1}]\n" if draw.random() < 0.5 else ""
        other.write_bytes(
            listed.encode() + path.read_bytes()[: draw.choice((0, 1000, MAX_BYTES - 50))]
        )
        names.append(other.name)
    odd = path.with_name("odd.yaml")
    if draw.random() < 0.5:
        write_odd_file(draw, odd, place, path.read_bytes())
        names.append(draw.choice(("odd", "odd.yaml")))
    extra = draw.choice(
        ("main", "../outside/secret", "/etc/passwd", ".hidden", "a" * 300, "x\0y", "..", "*", "")
    )
    names.insert(draw.randrange(len(names) + 1), extra if draw.random() < 0.4 else names[0])
    main.write_text(f"defaults: [{', '.join(names)}]\n", encoding="utf-8", errors="surrogatepass")
    return main


def _load(path: Path) -> None:
    """As `--config`; what loads must also load again from the file of a run."""
    config = load(path)
    again = path.with_name("again.yaml")
    again.write_bytes(dump(config).encode())
    if load(again) != config:
        raise AssertionError("the configuration is another one after it was saved")
