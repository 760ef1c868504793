"""``--quiet`` of every command: nothing but errors, and the object of ``--json``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated, Any, get_type_hints

import typer

HELP = "Print nothing but errors (and the object of --json)."
OPTION = typer.Option("--quiet", "-q", metavar="", help=HELP, rich_help_panel="Results", show_default=False)


def quietable(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``--quiet``, unless it has one of its own: results go nowhere, and no progress is shown that was not asked for."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    if "quiet" in signature.parameters:
        return command
    panels = [getattr(getattr(hint, "__metadata__", [None])[0], "rich_help_panel", None) for hint in hints.values()]
    option = OPTION if any(panels) else typer.Option("--quiet", "-q", metavar="", help=HELP, show_default=False)

    @functools.wraps(command)
    def parsed(*, quiet: bool = False, **values: Any) -> None:
        if not quiet:
            return command(**values)
        if "progress" in values and values["progress"] is None:
            values["progress"] = False
        if values.get("json"):
            return command(**values)
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            return command(**values)

    added = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )
    del parsed.__wrapped__  # type: ignore[attr-defined]
    named = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[part.name])
        for part in signature.parameters.values()
    ]
    parsed.__signature__ = signature.replace(parameters=[*named, added])  # type: ignore[attr-defined]
    parsed.__annotations__ = {**hints, "quiet": added.annotation}
    return parsed
