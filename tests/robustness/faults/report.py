"""The report of a chaos test as text. No TensorFlow."""

from collections import Counter

from tests.robustness.faults.case import Result

SLOWEST = 5
MAX_TEXT = 400  # characters of a failure


def failed(result: Result) -> bool:
    return any(case["failures"] for case in result["cases"])


def describe(result: Result) -> str:
    """Return a table of the scenarios, the failures by kind, and the slowest cases."""
    cases = result["cases"]
    minutes = max(result["seconds"], 1e-9) / 60.0
    faults = sum(case["faults"] for case in cases)
    bad = sum(bool(case["failures"]) for case in cases)
    lines = [
        f"seed {result['seed']}: {len(cases)} cases with {faults} faults in"
        f" {sum(case['processes'] for case in cases)} programs, {minutes:.1f} minutes,"
        f" {result['jobs']} at a time: {len(cases) / minutes:.1f} cases and"
        f" {faults / minutes:.1f} faults a minute; {bad} cases failed",
        f"a program hangs after {result['limit_s']:.0f} s;"
        f" undisturbed, it takes {result['undisturbed_s']:.1f} s and"
        f" {result['undisturbed_cpu_s']:.1f} s of processor time",
        f"\n{'scenario':<16}{'cases':>7}{'faults':>8}{'programs':>10}"
        f"{'failed':>8}{'mean s':>8}{'slowest s':>11}",
    ]
    for name in sorted({case["scenario"] for case in cases}):
        chosen = [case for case in cases if case["scenario"] == name]
        faults, programs = (sum(case[key] for case in chosen) for key in ("faults", "processes"))
        seconds = [case["seconds"] for case in chosen]
        bad = sum(bool(case["failures"]) for case in chosen)
        line = f"{name:<16}{len(chosen):>7}{faults:>8}{programs:>10}{bad:>8}"
        lines.append(f"{line}{sum(seconds) / len(seconds):>8.1f}{max(seconds):>11.1f}")
    lines += ["", *_failures(result), ""]
    for case in sorted(cases, key=lambda case: -case["seconds"])[:SLOWEST]:
        place = f"{case['scenario']}, --repeat {case['number']}: {'; '.join(case['steps'])}"
        lines.append(f"slowest: {case['seconds']:.1f} s, {place}")
    return "\n".join(lines)


def _failures(result: Result) -> list[str]:
    found = [(failure, case) for case in result["cases"] for failure in case["failures"]]
    if not found:
        return ["no failures"]
    kinds = Counter(failure["kind"] for failure, _ in found)
    lines = ["failures: " + ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))]
    for failure, case in sorted(found, key=lambda pair: pair[0]["kind"]):
        place = f"{case['scenario']}, --seed {result['seed']} --repeat {case['number']}"
        lines.append(f"  {failure['kind']}: {place}")
        lines.append(f"    {' '.join(failure['text'].split())[:MAX_TEXT]}")
    return [*lines, f"outputs are in {result['folder']}"]
