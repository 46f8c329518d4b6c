"""Count what the tree of the package is held to: sizes, rows, circles, files on a way, comments.

python -m tests.house                # lines, rows, circles, ways, density of comments
python -m tests.house --install      # also the size of a fresh installation without extras
"""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.test_layers import BUDGETS, ROWS

ROOT = Path(__file__).resolve().parents[1]

PACKAGE = ROOT / "myxtts"
# Files that a batch passes, a checkpoint out and back, and what the settings of a run touch.
WAYS = {
    "a batch, from the plan to the gradient": """
        batches/plan batches/reading devicefeed/upload devicefeed/producer devicefeed/feed
        tasks/tts/features devicefeed/handover run/loop run/step tasks/tts/network""",
    "a checkpoint, out and back": """
        run/loop run/saving run/state checkpoints/files run/start checkpoints/trained_run
        checkpoints/variables run/setup""",
    "a task": "tasks/registry config/schema tasks/NAME tests",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="install the base into a new venv")
    options = parser.parse_args()
    modules = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    imports = {name: set(imported(path, modules)) for name, path in modules.items()}
    print("| what | lines | budget |\n|---|---:|---:|")
    for folder, budget in BUDGETS.items():
        print(f"| {folder} | {lines_of(PACKAGE / folder)} | {budget} |")
    extras, whole = lines_of(PACKAGE / "extras"), lines_of(PACKAGE)
    print(f"| main house | {whole - extras} | 29,000 |\n| extras | {extras} | 6,900 |")
    for folder in ("tests", "benchmarks"):
        print(f"| {folder} | {lines_of(ROOT / folder)} | |")
    print(f"\nlayer rows: {len(ROWS)}; circles of files: {[*circles(imports)]}")
    loaded = "import sys, myxtts.devicefeed as d; [getattr(d, name) for name in d._MODULES]"
    loaded += "; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('myxtts')))"
    files = [Path(file) for file in python("-c", loaded).split()]
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in files)
    print(
        f"import of all of myxtts.devicefeed: {lines} lines of this package in {len(files)} files"
    )
    code = "import sys, time; began_s = time.process_time(); import myxtts.speak.player"
    code += "; print(f'{time.process_time() - began_s:.2f} s,', 'tensorflow' in sys.modules)"
    print(
        f"import of myxtts.speak, and whether it imports TensorFlow: {python('-c', code).strip()}"
    )
    for way, names in WAYS.items():
        files = [PACKAGE / f"{name}.py" for name in names.split() if "/" in name]
        missing = [str(file) for file in files if not file.exists() and "NAME" not in str(file)]
        print(f"{way}: {len(names.split())} places{f', missing {missing}' if missing else ''}")
    handed_on, functions = handed_on_settings(PACKAGE / "run")
    print(f"the whole settings in run: handed on {handed_on} times, to {functions} functions")
    text = [path.read_text("utf-8") for path in modules.values()]
    print_densities(text)
    if options.install:
        print(f"installed without extras: {installed_mb():.0f} MB, without pip and setuptools")
    return 0


def lines_of(folder: Path) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, modules: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = name_of(path).split(".")[: -node.level] if node.level else []
            base = ".".join(filter(None, (*above, node.module)))
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else base for name in names if base in modules)


def circles(imports: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the modules that import each other on some way, by what each of them reaches."""
    reached = {name: set(targets) for name, targets in imports.items()}
    grown = True
    while grown:
        grown = False
        for targets in reached.values():
            more = set().union(*(reached[target] for target in targets)) - targets
            targets |= more
            grown |= bool(more)
    within = [name for name, targets in reached.items() if name in targets]
    if within:
        yield sorted(within)


def handed_on_settings(folder: Path) -> tuple[int, int]:
    """Return how many calls in a folder have `config` or `X.config` as an argument, of how many
    functions by name.
    """
    functions = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                names = {ast.unparse(argument).rpartition(".")[2] for argument in arguments}
                if "config" in names:
                    functions.append(ast.unparse(node.func).rpartition(".")[2])
    return len(functions), len(set(functions))


def print_densities(texts: Iterable[str]) -> None:
    """Print full-line comments, starred calls and conditional expressions per 1,000 lines."""
    lines = comments = genitives = starred = conditional = 0
    for text in texts:
        lines += len(text.splitlines())
        comments += len(re.findall(r"(?m)^ *#", text))
        genitives += len(re.findall(r"# Of ", text))
        for node in ast.walk(ast.parse(text)):
            starred += isinstance(node, ast.Call) and any(
                isinstance(argument, ast.Starred) for argument in node.args
            )
            conditional += isinstance(node, ast.IfExp)
    figures = (comments, "comments"), (starred, "starred calls"), (conditional, "conditional")
    shares = ", ".join(f"{1e3 * count / lines:.1f} {name}" for count, name in figures)
    print(f"per 1,000 lines: {shares}; comments that begin with 'Of': {genitives}")


def python(*arguments: str, program: str = sys.executable) -> str:
    command = [program, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def installed_mb() -> float:
    """Install the package without extras into a new environment; return its megabytes."""
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        program = f"{name}/bin/python"
        python("-m", "pip", "install", "--quiet", ".", program=program)
        tools = ("pip", "setuptools", "pkg_resources")
        files = (file for file in Path(name, "lib").rglob("*") if file.is_file())
        return sum(f.stat().st_size for f in files if not {*tools} & {*f.parts}) / 1e6


if __name__ == "__main__":
    sys.exit(main())
