"""Run one section: `python -m benchmarks.proof.run_section MODULE SCOPE`, with the scope as
JSON.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.proof.section import RESULT_FILE, Scope, SectionResult, write_json
from myxtts.base.console import log_to_console, set_environment
from myxtts.devicefeed.errors import UserError


def run_section(module: str, scope: Scope) -> int:
    """Run a section and write its result, or its error, into its folder; return the exit code."""
    try:
        result: SectionResult = importlib.import_module(module).run(scope)
    except Exception as error:  # a section that fails is a result, too
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0]
        message = (
            first_line if isinstance(error, UserError) else f"{type(error).__name__}: {first_line}"
        )
        file = scope.out / RESULT_FILE
        so_far = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        write_json(file, so_far | {"complete": False, "error": message})
        return 1
    scope.record(result, complete=True)
    return 0


def main(argv: Sequence[str]) -> int:
    module, settings = argv[0], json.loads(argv[1])
    folders = {name: Path(settings.pop(name)) for name in ("out", "corpus")}
    scope = Scope(**settings, **folders)
    log_to_console()
    set_environment()
    return run_section(module, scope)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
