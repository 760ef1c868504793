"""A configuration from a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.experiments.training.config import Config

SHIPPED = Path(__file__).parent.parent / "configs"


def read_config(given: str | Path, **changes: Any) -> Config:
    """The configuration in a TOML file, or in one that comes with attractor by its name; ``changes`` replace entries.

    A relative path of data or of a tokenizer is meant from the folder of the file, unless there is nothing: then it is a name.
    """
    path = Path(given)
    if not path.is_file() and (SHIPPED / f"{given}.toml").is_file():
        path = SHIPPED / f"{given}.toml"
    if not path.is_file():
        names = ", ".join(configurations())
        raise InputError(f"{given} is neither a file nor the name of a configuration; attractor has {names}")
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name in ("data", "tokenizer"):
        if name in entries and (path.parent / str(entries[name])).exists():
            entries[name] = str(path.parent / str(entries[name]))
    entries |= {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(Config)}
    for name in entries:
        if name not in known:
            raise InputError(
                f"{path} has an entry {name!r} that a run does not know; it knows {', '.join(sorted(known))}"
            )
    if "data" not in entries:
        raise InputError(
            f"{path} does not say what to read: give data = 'a folder or a file' there, or --data README.md, say"
        )
    return Config(**entries)


def configurations() -> list[str]:
    """Names of the configurations that come with attractor."""
    return sorted(found.stem for found in SHIPPED.glob("*.toml"))
