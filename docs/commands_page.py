"""Generate the page of the command line from the commands and their options."""

from __future__ import annotations

import re
from typing import Any

HEAD = """# The command line

`attractor COMMAND --help` prints the same in the terminal. Common to all commands: results go to stdout, progress and errors to
stderr; `--json` prints one object with a `schema` (see [JSON output](../json.md)), the `command` that repeats the run, and under
`outputs` the files that were written; `--quiet` prints nothing but errors and that object; `--debug` prints the traceback of an
error. `--seed` is 0 by default, `--resume PATH` continues the run in that place, and times (`--max-seconds`) are in seconds. The
exit code is 0, 1 for a failed run, 2 for a bad argument (one line names it, and nothing is written), 130 if the command was
interrupted.
"""


def page() -> str:
    """Return the page in Markdown."""
    from typer.main import get_command

    from attractor.cli.main import COMMANDS, app

    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    parts = [HEAD]
    for heading, functions in COMMANDS.items():
        parts.append(f"## {heading}\n")
        parts += [section(function.__name__, commands[function.__name__]) for function in functions]
        if heading == "Simulate":
            parts += [section(f"sweep {name}", command) for name, command in commands["sweep"].commands.items()]
        if heading == "Training":
            parts += [section(f"study {name}", command) for name, command in commands["study"].commands.items()]
    return "\n".join(parts)


def section(name: str, command: Any) -> str:
    """Return the section of one command: its help, and a table of its options."""
    arguments = [part for part in command.params if part.param_type_name == "argument"]
    options = [part for part in command.params if part.param_type_name == "option" and not part.hidden]
    usage = " ".join(["attractor", name, *(part.metavar for part in arguments), "[OPTIONS]"])
    rows = [
        f"| {format_names(part)} | {escape(part.help or '')} | {format_default(part)} |"
        for part in (*arguments, *options)
    ]
    table = ["| | | default |", "|---|---|---|", *rows]
    return "\n".join([f"### {name}", "", f"`{usage}`", "", escape(command.help or ""), "", *table, ""])


def format_names(part: Any) -> str:
    if part.param_type_name == "argument":
        return f"`{part.metavar}`"
    names = ", ".join(f"`{name}`" for name in (*part.opts, *part.secondary_opts))
    return f"{names} `{part.metavar}`".replace("|", r"\|") if part.metavar else names


def format_default(part: Any) -> str:
    """Return the default as the help shows it: a text, or a value that is neither empty nor a flag."""
    if isinstance(part.show_default, str):
        return escape(part.show_default)
    value = getattr(part.default, "value", part.default)
    hidden = value is None or isinstance(value, bool) or value in ("", [])
    shown = part.param_type_name == "option" and part.show_default and not hidden
    return f"`{value:g}`" if shown and isinstance(value, float) else f"`{value}`" if shown else ""


def escape(text: str) -> str:
    """Return help text as Markdown, where only code in double backquotes is markup."""
    text = re.sub(r"(?<![\w`-])--[a-z][a-z0-9-]*", r"`\g<0>`", text.replace("``", "`"))
    outside = text.split("`")
    for sign in "\\*_<>[]$|{}":
        outside[::2] = [part.replace(sign, "\\" + sign) for part in outside[::2]]
    return "`".join(outside)
