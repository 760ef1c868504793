"""Times beyond floating point, given by their logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attractor.errors import InputError
from attractor.serialization import Record

LARGEST = math.log(1e300)  # logarithm of the longest run in floating-point time


@dataclass(frozen=True, order=True)
class LogTime(Record):
    """The time :math:`e^{log}`: the end of a run, or a time to save, that may be beyond floating point."""

    log: float

    def __post_init__(self) -> None:
        try:
            log = float(self.log)
        except (TypeError, ValueError):
            raise InputError(f"exp needs the logarithm of a time, a number, got {self.log!r}") from None
        if not math.isfinite(log):
            raise InputError(f"the logarithm of a time must be finite, got {log:g}")
        object.__setattr__(self, "log", log)

    def __float__(self) -> float:
        return exponential(self.log)

    def __str__(self) -> str:
        return format_log_time(self.log)

    def __repr__(self) -> str:
        return f"exp({self.log:.12g})"


def exp(log: float) -> LogTime:
    """Return the time :math:`e^{log}`, for ``flow(..., until=exp(1000))``, however large it is."""
    return LogTime(log)


def log_of(time: Any) -> float:
    """Return the logarithm of a time, a number or a LogTime."""
    if isinstance(time, LogTime):
        return time.log
    if not time >= 0:
        raise InputError(f"a time of a run in logarithmic time is a number of at least 0, or exp(x), got {time}")
    return math.log(time) if time > 0 else -math.inf


def exponential(log: float) -> float:
    """Return e^log, infinite beyond floating point."""
    return math.exp(log) if log < 709.0 else math.inf


def format_log_time(log: float) -> str:
    """Return e^log as a number, or as a power of e where it is huge."""
    return f"{math.exp(log):.6g}" if log < 200.0 else f"e^{log:.10g}"
