"""Errors of starting or updating the service; each message is one sentence for the user."""

from __future__ import annotations


class LaunchError(Exception):
    """The service could not be started or updated. `code` is the exit status."""

    code = 1


class PreconditionError(LaunchError):
    """A precondition is not met; nothing was started or changed."""

    code = 2
