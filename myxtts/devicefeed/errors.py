"""Errors that a user can fix: each is printed as its message alone."""


class UserError(Exception):
    """A condition that the user can fix."""

    exit_code = 2


class PlacementError(UserError):
    """The requested devices or workers are not available."""
