"""Mutation testing: plant small defects in the package, one at a time, and see whether a test
fails.

    python tests/robustness/mutants.py --count 60 --seed 0 --out mutants.json
    python tests/robustness/mutants.py --show devicefeed/feed.py  # prints mutants, runs nothing
    python tests/robustness/mutants.py --only devicefeed/feed.py:42:compare:0

A mutant is a copy of the checkout in which one expression or statement of one module is replaced,
so that processes which tests start have the defect, too. The tests of that module run in a fork of
this process, which has imported TensorFlow, but started no device. A mutant is killed if a test
fails that passes without the defect, or if the tests exceed their time limit.
"""

import argparse
import ast
import copy
import difflib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("myxtts", "tests", "fakes", "benchmarks", "utilities", "configs", "docs")
COPIED = (*FOLDERS, "*.py", "*.md", "*.toml", "*.txt")
SLOW_LIBRARIES = ("librosa", "soundfile", "matplotlib.pyplot", "tensorboard", "yaml", "pydantic")
SLOW_IMPORTS = ("tensorflow", "keras", *SLOW_LIBRARIES)
# The time limit of tests is LIMIT_S + LIMIT_FACTOR * their seconds in tests/times.json.
LIMIT_S = 120.0
LIMIT_FACTOR = 10.0

PIPELINE, DAMAGED = "test_intelligent_gpu_pipeline", "test_damaged_corpus"
PIPELINE_TEST, REFERENCE_TEST = f"{PIPELINE}.PipelineTest", f"{PIPELINE}.ReferenceTest"
RESUME, MINIMAL_RUN = "test_resume.ToyRuns", "test_run.MinimalRun"
DEVICES, REPLICAS = "test_dual_gpu_device_placement", "test_replicas"
REST_OF_EPOCH = f"{REPLICAS}.RestOfEpochTest"
# Module -> test modules or classes that test it, quick ones first.
TESTS = {
    "placement/settings.py": ("test_routes", DEVICES),
    "placement/replicas.py": ("test_worker_group", REPLICAS, "test_check_distributed"),
    "trial/preflight/kernels.py": ("test_audit", DEVICES),
    "batches/plan.py": (
        *("test_batch_plan", REST_OF_EPOCH, "test_readers", PIPELINE_TEST, REFERENCE_TEST),
    ),
    "tasks/features.py": (PIPELINE_TEST, "test_spec_augment", "test_asr"),
    "devicefeed/feed.py": ("devicefeed.test_feed", PIPELINE),
    "batches/pipeline.py": (PIPELINE, DAMAGED, DEVICES, MINIMAL_RUN, "test_replicas.RunTest"),
    "devicefeed/contract.py": ("devicefeed.test_contract", "devicefeed.test_device_feed"),
    "devicefeed/device_feed.py": ("devicefeed.test_device_feed",),
    "devicefeed/producer.py": (
        *("devicefeed.test_producer", PIPELINE, DAMAGED, DEVICES, MINIMAL_RUN),
        "test_replicas.RunTest",
    ),
    "devicefeed/handover.py": ("devicefeed.test_handover", "test_step", REPLICAS, MINIMAL_RUN),
    "devicefeed/upload.py": ("devicefeed.test_upload", "test_readers", PIPELINE, DAMAGED),
    "devicefeed/audit.py": ("devicefeed.test_audit", DEVICES),
    "batches/reading.py": ("test_readers", PIPELINE, DAMAGED),
    "batches/pcm_cache.py": ("test_readers", PIPELINE_TEST),
    "run/loop.py": ("test_loop", MINIMAL_RUN, "test_run.Stopped", RESUME),
    "run/step.py": ("test_step", "test_audit", RESUME, REPLICAS),
    "run/state.py": ("test_step", "test_checkpoint", RESUME, DEVICES, REPLICAS),
    "run/schedule.py": ("test_schedule",),
    "run/observation.py": ("test_step", "test_run.CompleteRun", RESUME),
    "run/saving.py": ("test_checkpoint", "test_sync", RESUME),
    "tasks/tts/alignment.py": ("test_alignment", "test_model"),
    "tasks/asr/ctc.py": ("test_ctc", "test_transcribe", "test_asr"),
    "tasks/layers.py": ("test_model", "test_flow"),
    "extras/jobs/merge.py": ("test_merge", "test_sync"),
    "extras/jobs/sync.py": ("test_sync", "test_jobs"),
}

OPPOSITES = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot}
OPPOSITES |= {ast.In: ast.NotIn}
COMPARISONS = OPPOSITES | {there: here for here, there in OPPOSITES.items()}
ARITHMETIC = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Pow: ast.Mult},
    **{ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
# Calls that their first argument can replace. Other calls without effect fail at once.
SAME_TYPE_NAMES = """
max min sorted reversed abs int float list tuple round copy resolve maximum minimum cast where
exp log log1p cos cumsum transpose identity clip ensure_shape zeros_like ravel unique softmax
norm dropout isfinite stateless_dropout
"""
SAME_TYPE = set(SAME_TYPE_NAMES.split())
UNMUTATED_FIELDS = ("annotation", "returns", "decorator_list", "type_params")
MESSAGES = ("log.", "logging.", "print(", "raise ", "assert ", "warnings.")


class Mutant(NamedTuple):
    """One replacement in the text of one module."""

    module: str  # path under myxtts/
    line: int
    operator: str
    number: int  # among those of this operator in this line
    begin: int  # offset of the replaced text in UTF-8
    end: int
    replacement: str

    @property
    def id(self) -> str:
        return f"{self.module}:{self.line}:{self.operator}:{self.number}"

    def source(self) -> str:
        original = path_of(self.module).read_bytes()
        return (original[: self.begin] + self.replacement.encode() + original[self.end :]).decode()

    def diff(self) -> str:
        original = path_of(self.module).read_text(encoding="utf-8").splitlines()
        lines = list(difflib.unified_diff(original, self.source().splitlines(), lineterm="", n=0))
        return "\n".join(line for line in lines[2:] if line[0] in "+-")


class Outcome(NamedTuple):
    """What tests found: `killed`, `timeout` or `survived`, by the test that failed, or its class or
    module, with the last line of its error.
    """

    verdict: str
    by: str = ""
    reason: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--count", type=int, default=60, help="number of mutants (default 60)")
    add("--seed", type=int, default=0, help="of the choice of mutants (default 0)")
    add("--only", nargs="+", metavar="ID", help="these mutants instead")
    add("--tests", nargs="+", metavar="TEST", help="these tests, such as test_step.Gradient")
    add("--show", metavar="PREFIX", help="print the mutants whose ids begin so, and end")
    add("--out", type=Path, help="JSON file of the outcomes; mutants that it has are not run again")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count is {options.count}, but must be 1 or more")
    # The package is not imported here: a fork imports its copy, with the defect.
    mutants = {mutant.id: mutant for module in TESTS for mutant in mutants_of(module)}
    if unknown := [id_ for id_ in options.only or () if id_ not in mutants]:
        parser.error(f"--only {unknown[0]} is no mutant; --show lists them")
    if options.show is not None:
        for id_, mutant in mutants.items():
            if id_.startswith(options.show):
                print(f"{id_}\n{mutant.diff()}")
        return 0
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    outcomes = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    passed = {outcome["by"] for outcome in outcomes.values()}
    for id_ in options.only or sample(mutants.values(), options.count, options.seed):
        if id_ not in outcomes:
            tests = options.tests or TESTS[mutants[id_].module]
            outcomes[id_] = verdict_on(mutants[id_], tests, passed)
            if options.out:
                options.out.write_text(json.dumps(outcomes, indent=1))
    print(table(outcomes))
    return 0


def table(outcomes: dict[str, dict]) -> str:
    """Return the number of mutants and of killed ones of each package, as Markdown."""
    planted, killed = Counter(), Counter()
    for id_, outcome in outcomes.items():
        for row in (id_.split("/")[0], "all"):
            planted[row] += 1
            killed[row] += outcome["verdict"] != "survived"
    lines = ["| package | mutants | killed |", "|---|---:|---:|"]
    for row in sorted(planted, key=lambda row: (row == "all", row)):
        lines.append(f"| {row} | {planted[row]} | {killed[row]} |")
    return "\n".join(lines)


def sample(mutants: Iterable[Mutant], number: int, seed: int) -> list[str]:
    """Choose ids in turn of each module and, within a module, of each operator."""
    draw, tree = random.Random(seed), {}
    for mutant in mutants:
        tree.setdefault(mutant.module, {}).setdefault(mutant.operator, []).append(mutant.id)
    modules = []
    for operators in tree.values():
        modules.append(in_turn([shuffled(ids, draw) for ids in shuffled(operators.values(), draw)]))
    return in_turn(shuffled(modules, draw))[:number]


def shuffled(values: Iterable, draw: random.Random) -> list:
    return draw.sample(values := list(values), len(values))


def in_turn(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the first element of each list, then the second of each, and so on."""
    return [value for values in zip_longest(*lists) for value in values if value is not None]


def path_of(module: str) -> Path:
    return ROOT / "myxtts" / module


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yield all mutants of a module in the order of its text."""
    source = path_of(module).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    numbers = Counter()
    for node in mutated_nodes(ast.parse(source)):
        for operator, target, replacement in replacements(node):
            begin = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            place = target.lineno, operator
            yield Mutant(module, *place, numbers[place], begin, end, replacement)
            numbers[place] += 1


def mutated_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one, except types, decorators, messages and f-strings."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if name in UNMUTATED_FIELDS or not isinstance(child, ast.AST):
                continue
            is_message = isinstance(child, ast.stmt) and ast.unparse(child).startswith(MESSAGES)
            value = getattr(child, "value", None)
            is_type = isinstance(node, ast.Module) and isinstance(value, ast.Subscript)
            if not (is_message or is_type or isinstance(child, ast.JoinedStr)):
                yield child
                yield from mutated_nodes(child)


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield (operator, node to replace, its new text)."""
    match node:
        case ast.Compare(ops=[operator]):
            yield "compare", node, text(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not has_string(node):
            yield "arithmetic", node, text(node, op=ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "boolean", node, text(node, op=other)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield "unary", node, text(operand)
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, str(value + 1)
            if value:
                less = f"({value - 1})" if isinstance(value, int) else f"{value / 2}"
                yield "constant", node, less
        case ast.Call(args=args) if not any(isinstance(arg, ast.Starred) for arg in args):
            yield from replaced_calls(node)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue():
            yield "statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", node, "pass"
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "condition", test, f"(not {text(test)})"
        case ast.comprehension(ifs=[test]):
            yield "condition", test, f"(not {text(test)})"


def replaced_calls(call: ast.Call) -> Iterator[tuple[str, ast.expr, str]]:
    args, keywords = call.args, call.keywords
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    kept = args[0] if args else getattr(call.func, "value", None)
    if name in SAME_TYPE and kept is not None:
        yield "call", call, text(kept)
    if len(args) > 1 and all(isinstance(arg, ast.Name | ast.Attribute) for arg in args[:2]):
        yield "swap", call, text(call, args=[args[1], args[0], *args[2:]])
    for keyword in keywords:
        if keyword.arg not in (None, "strict"):
            others = [other for other in keywords if other is not keyword]
            yield "keyword", call, text(call, keywords=others)


def text(node: ast.AST, **changes) -> str:
    """Return the text of a node with some fields changed, in parentheses."""
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


def has_string(node: ast.AST) -> bool:
    return any(isinstance(getattr(child, "value", None), str) for child in ast.walk(node))


def verdict_on(mutant: Mutant, tests: Sequence[str], passed: set[str]) -> dict[str, str]:
    """Run the tests of a mutant, one module or class after another, until one fails. That one must
    pass without the defect, or it says nothing about it.

    Args:
        passed: tests that are known to pass without a defect; it is completed.
    """
    outcome = Outcome("survived")
    for name in tests:
        outcome = run(name, mutant)
        if outcome.verdict != "survived":
            break
    if outcome.by and outcome.by not in passed:
        unchanged = run(outcome.by)
        if unchanged.verdict != "survived":
            sys.exit(f"{outcome.by} fails without a defect, too: {unchanged.verdict}")
        passed.add(outcome.by)
    print(f"{mutant.id}\n{mutant.diff()}\n{outcome.verdict} {outcome.by}\n", flush=True)
    return {"diff": mutant.diff(), "verdict": outcome.verdict, "by": outcome.by}


def run(test: str, mutant: Mutant | None = None, limit_s: float | None = None) -> Outcome:
    """Run a module, class or test in a fork of this process, in a copy of the checkout."""
    if limit_s is None:
        times_s = json.loads((ROOT / "tests/times.json").read_text())
        limit_s = LIMIT_S + LIMIT_FACTOR * times_s[module_and_case(test)[0]]
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        copy_checkout(folder)
        if mutant is not None:
            path = folder / "myxtts" / mutant.module
            path.write_text(mutant.source(), encoding="utf-8")
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
        process = os.fork()
        if not process:
            run_in_fork(folder, test)
        verdict = wait(process, limit_s)
        failed = folder / "failed.txt"
        if verdict == "survived":
            return Outcome(verdict)
        by = failed.read_text(encoding="utf-8") if failed.exists() else test
        lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return Outcome(verdict, by, errors[-1] if errors else "")


def copy_checkout(folder: Path) -> None:
    """Copy what tests need into a folder, with compiled modules."""
    for path in (path for pattern in COPIED for path in ROOT.glob(pattern)):
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / path.name)
    (folder / "tmp").mkdir()


def module_and_case(test: str) -> tuple[str, str]:
    """Return a test module, such as test_feed or devicefeed.test_feed, and the class or ""."""
    words = test.split(".")
    end = 1 + next(at for at, word in enumerate(words) if word.startswith("test_"))
    return ".".join(words[:end]), ".".join(words[end:])


def run_in_fork(folder: Path, test: str) -> None:
    """Run tests until one fails; then end the process with code 0 if none does."""
    os.setsid()
    os.nice(5)
    os.chdir(folder)
    with open("output.txt", "w") as output, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # The checkout's own modules are in the parent's path, and some are loaded.
    sys.path[0] = str(folder)
    for name in list(sys.modules):
        if name.partition(".")[0] in FOLDERS:
            del sys.modules[name]
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    code = 1
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.{test}")
        result = unittest.TextTestRunner(failfast=True).run(suite)
        code = 0 if result.wasSuccessful() else 1
        for case, _ in (result.errors + result.failures)[:1]:
            # Such as "tests.test_a.Case.test_b (subtest)", "setUpClass (tests.test_a.Case)", or a
            # failed import.
            if name := re.search(r"tests\.([\w.]+)", case.id()):
                Path(folder, "failed.txt").write_text(name[1], encoding="utf-8")
    finally:
        os._exit(code)  # no cleanup: the folder is removed by the parent


def wait(process: int, limit_s: float) -> str:
    """Wait for a fork, and end it and the processes of its tests; return the verdict."""
    until_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < until_s:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return "survived" if status == 0 else "killed"
            time.sleep(0.1)
        return "timeout"
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


if __name__ == "__main__":
    sys.exit(main())
