"""Exceptions of attractor. Messages state what was given, what was expected and what to do."""

from __future__ import annotations


class AttractorError(Exception):
    """Base class of all errors that attractor raises."""


class InputError(AttractorError, ValueError):
    """An argument has a wrong shape, value or name."""


class UnsupportedError(AttractorError):
    """A valid request that this law, state or space does not support; the message gives the reason."""


class StoreError(AttractorError, OSError):
    """A store cannot be read, written or resumed."""


class CheckpointError(AttractorError, OSError):
    """A checkpoint cannot be opened, or its files are damaged or contradict each other."""


class FetchError(AttractorError, OSError):
    """An asset could not be downloaded, verified, unpacked or stored."""


class MemoryShortageError(AttractorError, MemoryError):
    """A computation needs more memory than is free; the message gives the number of tokens that would fit."""


class RankError(AttractorError, RuntimeError):
    """A run on several processes lost one of them; ``reported`` is True if that process reported its error."""

    def __init__(self, message: str, reported: bool = False) -> None:
        super().__init__(message)
        self.reported = reported


class MissingExtraError(AttractorError, ImportError):
    """An optional dependency is not installed."""


def missing(package: str, extra: str) -> MissingExtraError:
    """Return the error for an optional ``package`` of ``attractor[extra]``."""
    return MissingExtraError(f"this needs {package}, which is not installed: pip install 'attractor[{extra}]'")
