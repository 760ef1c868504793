"""Names of data: a path, or what ``attractor fetch`` knows."""

from __future__ import annotations

from pathlib import Path

from attractor.errors import InputError
from attractor.fetching import assets, fetch

LIBRARY = "datasets:"


def paths_of(data: str) -> list[Path]:
    """The paths that ``data`` names: one that exists, or assets joined by "+", which are fetched unless they are here already."""
    if Path(data).exists():
        return [Path(data)]
    known = {asset.name for asset in assets("data")}
    words = data.split("+")
    if not set(words) <= known:
        raise InputError(
            f"the data folder {data} does not exist, nor is it a name (or names joined by +) of what can be fetched: "
            f"{', '.join(sorted(known))}"
        )
    return [fetch(word) for word in words]
