"""Train a toy with the flags of `train`: a test of what starts workers waits for little else."""

import sys

from fakes.toy_models import toy_models
from myxtts.base.console import filter_stderr, report_errors, set_environment
from myxtts.commands import train

if __name__ == "__main__":
    set_environment()
    filter_stderr()
    with toy_models():
        sys.exit(report_errors(lambda: train.main(sys.argv[1:])))
