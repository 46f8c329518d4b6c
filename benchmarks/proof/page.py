"""The page of the proof in Markdown, made of the results that are there."""

import json
from pathlib import Path
from typing import Any

from benchmarks.proof.section import table
from myxtts.base.files import write_whole

PAGE = "proof.md"


def write_page(out: Path) -> None:
    """Write `proof.md` from all section-N.json of a folder."""
    files = sorted(out.glob("section-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
    outcomes = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    write_whole(out / PAGE, ("\n".join(page_lines(outcomes)) + "\n").encode())


def page_lines(outcomes: list[dict[str, Any]]) -> list[str]:
    """Return the page: each section, and the table of all claims at the end."""
    lines = ["# GPU proof", ""]
    lines += setting_lines(outcomes[0]["run"]) if outcomes else ["No section has run yet."]
    for outcome in outcomes:
        lines += ["", f"## {outcome['section']}. {outcome['title']}", ""]
        lines += [
            f"{outcome['run']['time']}, {outcome['seconds']:.0f} s of at most"
            f" {outcome['limit_s']:.0f} s.",
            "",
        ]
        if outcome["status"] != "complete":
            lines += [f"**{outcome['status']}**: {outcome['error']}. What it found before:", ""]
        lines += outcome["lines"]
    figures = [
        (outcome["section"], figure) for outcome in outcomes for figure in outcome["figures"]
    ]
    columns = ("claim", "here", "expected", "verdict")
    rows = [(number, *(figure[name] for name in columns)) for number, figure in figures]
    verdicts = [figure["verdict"] for _, figure in figures]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("met", "not met", "not shown"))
    lines += ["", "## Claims", "", f"{len(figures)} claims: {counts}."]
    return [*lines, *table(("section", *columns), rows)]


def setting_lines(run: dict[str, Any]) -> list[str]:
    kind = "simulated " if run["simulated"] else "virtual " if run.get("virtual") else ""
    devices = f"{run['gpus']} {kind}GPUs"
    if run["gpus"] == 1:
        devices = devices.removesuffix("s")
    lines = [f"On {devices}."]
    if run["simulated"]:
        lines = [
            f"On {devices}, which are logical devices of the CPU: nothing here was measured on a"
            " GPU, and every claim about one is not shown."
        ]
    if run.get("virtual"):
        lines = [
            f"On {devices}: TensorFlow's own GPU runtime, whose kernels are computed by the CPU."
            " Times, XLA, cuDNN, NCCL and memory limits are not shown."
        ]
    if run["small"]:
        lines.append("The smallest settings were used, which test the proof itself.")
    return lines
