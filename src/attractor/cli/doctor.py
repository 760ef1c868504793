"""``attractor doctor``: what is here, what works, and how to get the rest."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attractor.cli.ending import FAILED, complain, ending

SCHEMA = "attractor.doctor/1"


def doctor(
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")] = False,
) -> None:
    """Say what is installed, which engines work and why one does not, and run a short self test.

    Exit code 0 if everything that is installed works, 1 if the self test fails.
    """
    with ending("attractor doctor", debug):
        from attractor.cli.printing import print_json

        report = examine()
        if json:
            print_json(report)
        else:
            print_report(report)
        checked = [*report["engines"], report["loop"]]
        failed = [part["name"] for part in checked if part["passed"] is False]
        if failed:
            complain(
                f"the self test fails with engine {', '.join(failed)}: please report this with the output of --json",
                "attractor doctor",
            )
            raise typer.Exit(FAILED)


def examine() -> dict[str, Any]:
    """Everything the doctor looks at."""
    from attractor.cli import installed, selftest

    return {
        "schema": SCHEMA,
        "packages": installed.required(),
        "extras": installed.extras(),
        "machine": installed.machine(),
        "programs": installed.programs(),
        "engines": selftest.engines_checked(),
        "loop": selftest.loop_checked(),
    }


def print_report(report: dict[str, Any]) -> None:
    """The same for people."""
    from attractor.cli.printing import print_rows

    absent = "not installed"
    print_rows("installed", {name: version or absent for name, version in report["packages"].items()})
    for extra, found in report["extras"].items():
        advice = f" (get it with {found['install']})" if None in found["packages"].values() else ""
        print_rows(f"extra {extra}{advice}", {name: version or absent for name, version in found["packages"].items()})
    print_rows("machine", {name: "none" if value is None else str(value) for name, value in report["machine"].items()})
    print_rows("programs", {name: path or "not found" for name, path in report["programs"].items()})
    print_rows("engines", {engine["name"]: engine["message"] for engine in report["engines"]})
    print_rows("loop of small systems", {report["loop"]["name"]: report["loop"]["message"]})
