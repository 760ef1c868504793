"""Options that say how the flow is followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from attractor.cli.groups import numbers, panel
from attractor.errors import InputError

UNTIL = 10.0
option = panel("Flow")


@dataclass(frozen=True)
class RunOptions:
    """How the flow is followed."""

    until: Annotated[
        float | None, option("T", "The time to reach.", "--until", "-t", default=f"the last of --save, or {UNTIL:g}")
    ] = None
    save: Annotated[
        str | None,
        option("K|T,T,...", "Keep the ends of K equal intervals, or these times.", default="a grid that suits"),
    ] = None
    method: Annotated[
        str | None, option("NAME", "dop853, dopri5 (adaptive); rk4, euler (with --step); layers.", default="by --rtol")
    ] = None
    rtol: Annotated[float | None, option("X", "Relative error of a step.", default="1e-8; float32 1e-5")] = None
    atol: Annotated[float | None, option("X", "Absolute error of a step.", default="1e-10; float32 1e-7")] = None
    step: Annotated[float | None, option("H", "The step of a fixed method, or the first of an adaptive one.")] = None
    fixed_step: Annotated[bool, option("", "Keep to --step also with an adaptive method.", "--fixed-step")] = False
    merge: Annotated[
        str | None,
        option("TOL|off", "Tokens closer than this become one.", default="a tenth of --rtol where that is exact"),
    ] = None
    stop: Annotated[
        str | None,
        option("RULE,...", "What may end the run early: consensus, collapsed, steady; or none.", default="what suits"),
    ] = None
    max_seconds: Annotated[float | None, option("S", "Stop after this many seconds.", min=0)] = None
    max_evaluations: Annotated[int | None, option("N", "Stop after this many evaluations of the law.", min=1)] = None
    engine: Annotated[
        str | None, option("NAME", "The engine of attention; see attractor doctor.", default="the fastest that fits")
    ] = None


def flow_options(options: RunOptions) -> dict[str, Any]:
    """The keyword arguments of flow."""
    if options.until is not None and options.until <= 0:
        raise InputError(f"--until {options.until:g} is not after the start at t = 0: give a positive time")
    save = _save(options.save)
    # named save times say themselves how far the run goes
    until = UNTIL if options.until is None and not isinstance(save, list) else options.until
    return {
        "until": until,
        "save": save,
        "method": options.method,
        "rtol": options.rtol,
        "atol": options.atol,
        "step": options.step,
        "adaptive": not options.fixed_step,
        "merge": _merge(options.merge),
        "stop": _stop(options.stop),
        "max_seconds": options.max_seconds,
        "max_evaluations": options.max_evaluations,
        "engine": options.engine,
    }


def _save(text: str | None) -> int | list[float] | None:
    if text is None:
        return None
    if text.strip().lstrip("+-").isdigit():
        return int(text)
    times = numbers(text, "--save")
    if not times or "," not in text:
        raise InputError(f"--save must be a whole number of intervals or a list of times such as 0,1,10, got {text!r}")
    return times


def _merge(text: str | None) -> float | bool | None:
    if text is None or text == "auto":
        return None
    if text == "off":
        return False
    try:
        tolerance = float(text)
    except ValueError:
        raise InputError(f"--merge must be a distance such as 1e-3, or off, got {text!r}") from None
    if not 0 < tolerance < float("inf"):
        raise InputError(f"--merge must be a positive distance such as 1e-3, or off, got {text}")
    return tolerance


def _stop(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names in ([], ["none"]) else names
