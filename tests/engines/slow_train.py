"""Train a toy whose steps take STEP_S seconds longer, until a stop is requested or Slurm restarts
the job.
"""

import os
import sys
import time

from fakes.toy_models import toy_models
from myxtts.base.console import filter_stderr, report_errors, set_environment
from myxtts.commands.train import parse
from myxtts.trial.auto import train_placed


class Sleep:
    pause_kind = "sleep"

    def is_due(self, end) -> bool:
        return "SLURM_RESTART_COUNT" not in os.environ and not end.stop.requested

    def __call__(self, end) -> None:
        time.sleep(float(os.environ.get("STEP_S", "0")))


def main() -> int:
    config, _ = parse(sys.argv[1:])
    return train_placed(config, more=[Sleep()])


if __name__ == "__main__":
    set_environment()
    filter_stderr()
    with toy_models():
        sys.exit(report_errors(main))
