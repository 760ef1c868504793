"""``attractor doctor``: environment and self-test."""

from __future__ import annotations

import math
from typing import Any

import typer

from attractor.cli.console import FAILED, print_error, print_json, print_rows
from attractor.cli.environment import extras, machine, programs, required_packages, versions
from attractor.cli.options import CommonOptions, with_options

ANGLE, UNTIL, TOLERANCE = 2.5, 3.0, 1e-7
LOOPS = ("native", "device")  # used where no engine is named


def check_engines() -> list[dict[str, Any]]:
    """Test every engine: whether it works, and its error against known results."""
    from attractor import engines

    return [_self_test(engine.name, engine.reason) for engine in engines.available()]


def check_native_loop() -> dict[str, Any]:
    """Test the native loop, which integrates small systems unless an engine is named."""
    from attractor.engines import native

    return _self_test("native", native.reason)


def check_device_loop() -> dict[str, Any]:
    """Test the device loop, which integrates ensembles of small systems on a GPU unless an engine is named."""
    from attractor.solvers import device_loop_reason

    return _self_test("device", device_loop_reason())


def _self_test(name: str, reason: str) -> dict[str, Any]:
    from attractor.errors import AttractorError, UnsupportedError

    row: dict[str, Any] = {"name": name, "works": not reason, "passed": None, "error": None}
    if reason:
        return row | {"message": f"does not work here: {reason}"}
    try:
        error = closed_form_error(name) if name in LOOPS else max(closed_form_error(name), attention_error(name))
    except UnsupportedError as error:
        return row | {"message": f"works; no self-test: {error}"}
    except AttractorError as error:
        return row | {"works": False, "message": f"does not work here: {error}"}
    passed = error < TOLERANCE
    what = "a flow differs" if name in LOOPS else "a flow and an evaluation differ"
    message = f"{'works' if passed else 'FAILS'}; {what} from the exact result by {error:.1e}"
    return row | {"passed": passed, "error": error if math.isfinite(error) else None, "message": message}


def closed_form_error(name: str) -> float:
    """Return the error of the angle of two tokens against the closed form, by an engine or a loop."""
    import torch

    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    points = torch.tensor([[1.0, 0.0], [math.cos(ANGLE), math.sin(ANGLE)]], dtype=torch.float64)
    tokens, engine = Tokens(points.to(_device(name))), None if name in LOOPS else name
    law = Attention.isotropic(2, 0.0)
    run = flow(law, tokens, space=Sphere(), until=UNTIL, save=[UNTIL], merge=False, engine=engine)
    if engine is None and run.stats.engine != name:
        return math.inf
    angle = float(Sphere().distance(*run.points[-1].unbind(-2)))
    return abs(angle - 2.0 * math.atan(math.tan(ANGLE / 2.0) * math.exp(-UNTIL)))


def _device(name: str) -> str:
    """Return the device of an engine or a loop."""
    import torch

    # without a GPU, Triton interprets
    return "cuda" if name in ("triton", "device") and torch.cuda.is_available() else "cpu"


def attention_error(engine: str) -> float:
    """Return the error of attention at beta = 9 on the sphere against the reference engine."""
    from attractor import engines
    from attractor.states import Tokens

    x = Tokens.uniform(100, 3, seed=0).points.to(_device(engine))
    exact, _ = engines.attend(9.0 * x, x, x, engine="reference")
    found, _ = engines.attend(9.0 * x, x, x, engine=engine)
    assert exact is not None
    assert found is not None
    return float((found - exact).abs().max())


SCHEMA = "attractor.doctor/2"


@with_options(CommonOptions)
def doctor(context: typer.Context, options: CommonOptions) -> None:
    """Report what is installed and which engines work, and run a short self-test.

    Exit code 0 if everything that is installed works, 1 if the self-test fails.
    """
    report = examine()
    if options.json:
        print_json(report)
    else:
        print_report(report)
    failed = [
        part["name"]
        for part in (*report["engines"], report["native_loop"], report["device_loop"])
        if part["passed"] is False
    ]
    if failed:
        print_error(
            f"the self-test fails with engine {', '.join(failed)}: please report this with the output of --json",
            "attractor doctor",
        )
        raise typer.Exit(FAILED)


def examine() -> dict[str, Any]:
    """Return installed packages, the machine, external programs and self-tests, for JSON."""
    return {
        "schema": SCHEMA,
        "packages": required_packages(),
        "extras": extras(),
        "machine": machine(),
        "programs": programs(),
        "engines": check_engines(),
        "native_loop": check_native_loop(),
        "device_loop": check_device_loop(),
        "versions": versions(),
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the report as tables."""
    absent = "not installed"
    print_rows("installed", {name: version or absent for name, version in report["packages"].items()})
    for extra, found in report["extras"].items():
        advice = f" (install it with {found['install']})" if None in found["packages"].values() else ""
        print_rows(f"extra {extra}{advice}", {name: version or absent for name, version in found["packages"].items()})
    print_rows("machine", {name: "none" if value is None else str(value) for name, value in report["machine"].items()})
    print_rows("programs", {name: path or "not found" for name, path in report["programs"].items()})
    print_rows("engines", {engine["name"]: engine["message"] for engine in report["engines"]})
    loops = (report["native_loop"], report["device_loop"])
    print_rows("loops, for small systems on a CPU and on a GPU", {loop["name"]: loop["message"] for loop in loops})
