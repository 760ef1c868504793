"""``attractor doctor``: environment and self-test."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from attractor.cli.console import FAILED, complain, ending
from attractor.cli.environment import extras, machine, programs, required_packages

ANGLE, UNTIL, TOLERANCE = 2.5, 3.0, 1e-7


def engines_checked() -> list[dict[str, Any]]:
    """Every engine: whether it works, whether it agrees with what is known, and a sentence."""
    from attractor import engines

    return [_checked(engine.name, engine.reason, engine.name) for engine in engines.available()]


def loop_checked() -> dict[str, Any]:
    """The same for the native loop, which small systems take unless an engine is named."""
    from attractor.engines import native

    return _checked("native", native.reason, None)


def _checked(name: str, reason: str, engine: str | None) -> dict[str, Any]:
    from attractor.errors import AttractorError, UnsupportedError

    words: dict[str, Any] = {"name": name, "works": not reason, "passed": None, "error": None}
    if reason:
        return words | {"message": f"does not work here: {reason}"}
    try:
        error = closed_form_error(engine) if engine is None else max(closed_form_error(engine), attention_error(engine))
    except UnsupportedError as refusal:
        return words | {"message": f"works; no self test: {refusal}"}
    except AttractorError as trouble:
        return words | {"works": False, "message": f"does not work here: {trouble}"}
    passed = error < TOLERANCE
    what = "a flow differs" if engine is None else "a flow and an evaluation differ"
    message = f"{'works' if passed else 'FAILS'}; {what} from what should be by {error:.1e}"
    return words | {"passed": passed, "error": error if math.isfinite(error) else None, "message": message}


def closed_form_error(engine: str | None) -> float:
    """How far the angle of two tokens is from the closed form, by an engine or, if none is named, by the native loop."""
    import torch

    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    tokens = Tokens(
        torch.tensor([[1.0, 0.0], [math.cos(ANGLE), math.sin(ANGLE)]], dtype=torch.float64).to(_device(engine))
    )
    run = flow(
        Attention.isotropic(2, 0.0), tokens, space=Sphere(), until=UNTIL, save=[UNTIL], merge=False, engine=engine
    )
    if engine is None and run.stats.engine != "native":
        return math.inf
    angle = float(Sphere().distance(*run.points[-1].unbind(-2)))
    return abs(angle - 2.0 * math.atan(math.tan(ANGLE / 2.0) * math.exp(-UNTIL)))


def _device(engine: str | None) -> str:
    """Where an engine wants its tensors; one for GPUs works only where there is one."""
    import torch

    return "cuda" if engine == "triton" and torch.cuda.is_available() else "cpu"  # without one, Triton interprets


def attention_error(engine: str) -> float:
    """How far attention at beta = 9 on the sphere is from the reference."""
    from attractor import engines
    from attractor.states import Tokens

    x = Tokens.uniform(100, 3, seed=0).points.to(_device(engine))
    exact, _ = engines.attend(9.0 * x, x, x, engine="reference")
    found, _ = engines.attend(9.0 * x, x, x, engine=engine)
    assert exact is not None
    assert found is not None
    return float((found - exact).abs().max())


SCHEMA = "attractor.doctor/1"


def doctor(
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")] = False,
) -> None:
    """Say what is installed, which engines work and why one does not, and run a short self test.

    Exit code 0 if everything that is installed works, 1 if the self test fails.
    """
    with ending("attractor doctor", debug):
        from attractor.cli.console import print_json

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

    return {
        "schema": SCHEMA,
        "packages": required_packages(),
        "extras": extras(),
        "machine": machine(),
        "programs": programs(),
        "engines": engines_checked(),
        "loop": loop_checked(),
    }


def print_report(report: dict[str, Any]) -> None:
    """The same for people."""
    from attractor.cli.console import print_rows

    absent = "not installed"
    print_rows("installed", {name: version or absent for name, version in report["packages"].items()})
    for extra, found in report["extras"].items():
        advice = f" (get it with {found['install']})" if None in found["packages"].values() else ""
        print_rows(f"extra {extra}{advice}", {name: version or absent for name, version in found["packages"].items()})
    print_rows("machine", {name: "none" if value is None else str(value) for name, value in report["machine"].items()})
    print_rows("programs", {name: path or "not found" for name, path in report["programs"].items()})
    print_rows("engines", {engine["name"]: engine["message"] for engine in report["engines"]})
    print_rows("loop of small systems", {report["loop"]["name"]: report["loop"]["message"]})
