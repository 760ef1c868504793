"""One family of errors: each says what was given, what was expected and what to do."""

from __future__ import annotations


class AttractorError(Exception):
    """Any error that attractor raises on purpose."""


class InputError(AttractorError, ValueError):
    """An argument is wrong: a shape, a value, a name."""


class UnsupportedError(AttractorError):
    """A sound request that this law, state or space cannot serve; the message says why."""


class StoreError(AttractorError, OSError):
    """A store cannot be read, written or resumed."""


class CheckpointError(AttractorError, OSError):
    """A checkpoint cannot be opened, or its files are damaged or contradict each other."""


class FetchError(AttractorError, OSError):
    """Something could not be downloaded, verified, unpacked or kept."""


class MemoryShortageError(AttractorError, MemoryError):
    """What was asked for needs more memory than there is; the message says how many tokens would fit."""


class RankError(AttractorError, RuntimeError):
    """A run on several processes lost one of them; ``told`` if that one said itself what was wrong."""

    def __init__(self, message: str, told: bool = False) -> None:
        super().__init__(message)
        self.told = told


class MissingExtraError(AttractorError, ImportError):
    """An optional dependency is not installed."""


def missing(package: str, extra: str) -> MissingExtraError:
    """The error for an optional ``package`` that comes with ``attractor[extra]``."""
    return MissingExtraError(f"this needs {package}, which is not installed: pip install 'attractor[{extra}]'")
