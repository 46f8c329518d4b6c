"""The report of a chaos test as text. No TensorFlow."""

from collections import Counter

from tests.robustness.faults.case import Result

SLOWEST = 5
MAX_TEXT = 400  # characters of a failure


def failed(result: Result) -> bool:
    return any(case["failures"] for case in result["cases"])


def describe(result: Result) -> str:
    """Return a table of the scenarios, the failures by kind, and the slowest cases."""
    return "\n".join(
        [
            *_head(result),
            "",
            *_table(result["cases"]),
            "",
            *_failures(result),
            "",
            *_slowest(result),
        ]
    )


def _head(result: Result) -> list[str]:
    cases = result["cases"]
    minutes, programs, faults = (
        result["seconds"] / 60.0,
        *(sum(case[name] for case in cases) for name in ("processes", "faults")),
    )
    means = (
        "a preloaded library"
        if result["shim"]
        else "an audit hook of Python, for want of a C compiler"
    )
    failures = sum(bool(case["failures"]) for case in cases)
    rate = (
        f"{len(cases) / minutes:.1f} cases and {faults / minutes:.1f} faults a minute"
        if minutes
        else "no time"
    )
    return [
        f"seed {result['seed']}: {len(cases)} cases with {faults} faults in {programs}"
        f" programs, {minutes:.1f} minutes, {result['jobs']} at a time: {rate}; {failures}"
        " cases failed",
        f"errors come from {means}; a program hangs after {result['limit_s']:.0f} s;"
        f" undisturbed, it takes {result['undisturbed_s']:.1f} s and"
        f" {result['undisturbed_cpu_s']:.1f} s of processor time",
    ]


def _table(cases: list[dict]) -> list[str]:
    lines = [
        f"{'scenario':<16}{'cases':>7}{'faults':>8}{'programs':>10}"
        f"{'failed':>8}{'mean s':>8}{'slowest s':>11}"
    ]
    for name in sorted({case["scenario"] for case in cases}):
        chosen = [case for case in cases if case["scenario"] == name]
        faults, programs = (sum(case[key] for case in chosen) for key in ("faults", "processes"))
        seconds = [case["seconds"] for case in chosen]
        bad = sum(bool(case["failures"]) for case in chosen)
        mean = sum(seconds) / len(seconds)
        lines.append(
            f"{name:<16}{len(chosen):>7}{faults:>8}{programs:>10}{bad:>8}{mean:>8.1f}{max(seconds):>11.1f}"
        )
    return lines


def _failures(result: Result) -> list[str]:
    found = [(failure, case) for case in result["cases"] for failure in case["failures"]]
    if not found:
        return ["no failures"]
    kinds = Counter(failure["kind"] for failure, _ in found)
    lines = ["failures: " + ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))]
    for failure, case in sorted(found, key=lambda pair: pair[0]["kind"]):
        lines.append(
            f"  {failure['kind']}: {case['scenario']}, --seed {result['seed']} --repeat"
            f" {case['number']}"
        )
        lines.append(f"    {' '.join(failure['text'].split())[:MAX_TEXT]}")
    return [*lines, f"outputs are in {result['folder']}"]


def _slowest(result: Result) -> list[str]:
    slowest = sorted(result["cases"], key=lambda case: -case["seconds"])[:SLOWEST]
    return [
        f"slowest: {case['seconds']:.1f} s, {case['scenario']}, --repeat {case['number']}:"
        f" {'; '.join(case['steps'])}"
        for case in slowest
    ]
