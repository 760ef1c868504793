r"""A second's worth of proof that flows are right here.

Two tokens on the circle that see each other equally (beta = 0, V = I) approach at the rate :math:`\dot\theta = -\sin\theta`
of the angle between them, so :math:`\tan(\theta/2)` falls as :math:`e^{-t}`. At beta = 0 an engine has little to do: so each also
evaluates the attention of some tokens on the sphere, against the reference.
"""

from __future__ import annotations

import math
from typing import Any

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

    from attractor.attention import Attention
    from attractor.flow import flow
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
