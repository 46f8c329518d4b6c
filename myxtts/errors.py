"""User-fixable errors (exit code 2).

    UserError               printed as its message alone
    ├── ConfigError         a flag, a YAML file or a combination of settings
    ├── PlacementError      the requested devices, or the workers
    ├── DataError           a corpus, an utterance or a text
    ├── CheckpointError     a run folder or a checkpoint
    └── TrainingError       a run that cannot continue: non-finite loss, out of memory

Each message says what was requested, what was found and what to do. Any other error is a defect: it
keeps its traceback and exits with code 1.
"""


class UserError(Exception):
    """A condition that the user can fix."""


class ConfigError(UserError):
    """Settings are unknown, out of bounds or contradictory."""


class PlacementError(UserError):
    """The requested devices or workers are not available."""


class DataError(UserError):
    """A corpus, an utterance or a text cannot be used."""


class CheckpointError(UserError):
    """A run folder or a checkpoint is missing, damaged or of the wrong kind."""


class TrainingError(UserError):
    """Training cannot continue."""
