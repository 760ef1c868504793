"""The page of the command line: every command with its options, read from the program itself."""

from __future__ import annotations

import re
from typing import Any

HEAD = """# The command line

`attractor COMMAND --help` says the same in the terminal. What is common to all: results go to stdout, progress and errors to stderr;
`--json` prints one object with a `schema`, the `command` that makes it again, and under `written` what was written where; `--debug`
shows the traceback of an error; `--quiet` prints nothing but errors and that object. `--seed` is 0 unless it is named, `--resume PLACE`
goes on with the run in that place as it began, and times (`--max-seconds`) are in seconds. The exit code is 0, 1 for a failed run, 2 for
a bad argument (one line says what was wrong, and nothing is written), 130 if it was interrupted.
"""


def page() -> str:
    from typer.main import get_command

    from attractor.cli.main import COMMANDS, app

    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    parts = [HEAD]
    for heading, functions in COMMANDS.items():
        parts.append(f"## {heading}\n")
        parts += [section(name, commands[name]) for name in (one.__name__.replace("_", "-") for one in functions)]
    return "\n".join(parts)


def section(name: str, command: Any) -> str:
    """One command: what it says of itself, and a table of its options in the order of its help."""
    arguments = [part for part in command.params if part.param_type_name == "argument"]
    options = [part for part in command.params if part.param_type_name == "option" and not part.hidden]
    usage = " ".join(["attractor", name, *(part.metavar for part in arguments), "[OPTIONS]"])
    rows = [f"| {spelled(part)} | {escaped(part.help or '')} | {default(part)} |" for part in (*arguments, *options)]
    table = ["| | | default |", "|---|---|---|", *rows]
    return "\n".join([f"### {name}", "", f"`{usage}`", "", escaped(command.help or ""), "", *table, ""])


def spelled(part: Any) -> str:
    if part.param_type_name == "argument":
        return f"`{part.metavar}`"
    names = ", ".join(f"`{name}`" for name in (*part.opts, *part.secondary_opts))
    return f"{names} `{part.metavar}`".replace("|", r"\|") if part.metavar else names


def default(part: Any) -> str:
    """What the help says of a default: words, or the value where there is one worth telling."""
    if isinstance(part.show_default, str):
        return escaped(part.show_default)
    value = getattr(part.default, "value", part.default)
    silent = value is None or isinstance(value, bool) or value in ("", [])
    told = part.param_type_name == "option" and part.show_default and not silent
    return f"`{value:g}`" if told and isinstance(value, float) else f"`{value}`" if told else ""


def escaped(text: str) -> str:
    """Words of the help as Markdown: nothing in them is markup but code between double backquotes."""
    text = re.sub(r"(?<![\w`-])--[a-z][a-z0-9-]*", r"`\g<0>`", text.replace("``", "`"))
    outside = text.split("`")
    for sign in "\\*_<>[]$|{}":
        outside[::2] = [part.replace(sign, "\\" + sign) for part in outside[::2]]
    return "`".join(outside)
