"""The errors that a user can mend, as one tree.

    UserError               shown as its message alone; exit code 2
    ├── ConfigError         a flag, a YAML file or a combination of settings
    ├── PlacementError      devices asked for against devices found
    ├── DataError           a corpus, an utterance, a text
    ├── CheckpointError     a run folder or a checkpoint
    └── TrainingError       a run that cannot go on: non-finite loss, out of memory

Each message says what was asked, what was found and what to do. Everything else is a
defect: it keeps its traceback and exits with 1.
"""


class UserError(Exception):
    """A condition that the user can mend."""


class ConfigError(UserError):
    """Settings that are unknown, out of bounds or contradict each other."""


class PlacementError(UserError):
    """Devices that were asked for cannot be had."""


class DataError(UserError):
    """A corpus, an utterance or a text cannot be used."""


class CheckpointError(UserError):
    """A run folder or a checkpoint is missing, damaged or of another kind."""


class TrainingError(UserError):
    """Training cannot go on."""
