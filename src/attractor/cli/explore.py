"""``attractor explore``: the interactive page, served on this machine."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from typing import Annotated

import typer

from attractor.cli.console import print_json, print_rows
from attractor.cli.environment import versions
from attractor.cli.options import CommonOptions, command_line, panel, with_options

SCHEMA = "attractor.explore/1"
option = panel("Server")


@dataclass(frozen=True)
class ExploreOptions:
    """Where the page is served, and what it may open."""

    port: Annotated[int, option("P", "Port on 127.0.0.1.", min=0, max=65535, default="a free one")] = 0
    no_browser: Annotated[bool, option("", "Print the address only; open no browser.", "--no-browser")] = False
    model: Annotated[
        list[str] | None,
        option("NAME", "Also offer this model: a folder, a GGUF file or a name; may be repeated."),
    ] = None


@with_options(ExploreOptions, CommonOptions)
def explore(context: typer.Context, options: ExploreOptions, output: CommonOptions) -> None:
    """Move tokens in the browser: an interactive page with the theory beside it.

    The page computes small systems itself. This command adds what needs Python: more dimensions and tokens, all theorems, and real
    models. It is served to this machine only, at an address that works once, until Ctrl-C. Exit code 0; 2 for a bad
    argument, such as a port that is taken.
    """
    from attractor.explorer import Explorer, build_page

    def announce(address: str) -> None:
        if not output.json:
            print_rows("", {"another page": address}, indent="", wrap=False)
            sys.stdout.flush()

    if options.model:
        from attractor.models import checkpoint

        for name in options.model:  # a wrong name is an error now, not in the page
            checkpoint(name, structural=True)
    server = Explorer(
        build_page(server={}), options.port, models=tuple(options.model or ()), announce=announce, debug=output.debug
    )
    try:
        if output.json:
            print_json(
                {
                    "schema": SCHEMA,
                    "command": command_line(context),
                    "address": server.address,
                    "port": server.port,
                    "models": list(server.models),
                    "versions": versions(),
                }
            )
        else:
            print_rows("", {"explorer": server.address, "to stop": "press Ctrl-C"}, indent="", wrap=False)
            sys.stdout.flush()
        server.warm()
        if not options.no_browser:
            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        server.close()
