"""A published case in the plane, studied: an accurate integrator beside the published procedure, emulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attractor.experiments.gaussian_cases import Case, case
from attractor.experiments.gaussian_published import Emulated, published_procedure
from attractor.meanfield.limits import Limit
from attractor.meanfield.phase import Phase, disc, phase


@dataclass(frozen=True)
class Study:
    """A case, and for each kernel the phase found and what the emulated procedure says (None if it was not asked)."""

    case: Case
    official_scaling: bool
    found: dict[str, tuple[Phase, dict[str, Any] | None]]

    def summary(self) -> dict[str, Any]:
        kernels = {
            kernel: {"accurate": phase.summary(), "emulated_published_procedure": emulated}
            for kernel, (phase, emulated) in self.found.items()
        }
        head = {"name": self.case.name, "claim": self.case.claim, "draw": self.case.draw}
        return {**head, "official_scaling": self.official_scaling, "kernels": kernels}


def study(
    name: str,
    grid: int = 5,
    *,
    official_scaling: bool = False,
    emulate: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Follow a grid of covariances of trace one under each kernel of a case."""
    chosen, starts = case(name), disc(grid)
    found: dict[str, tuple[Phase, dict[str, Any] | None]] = {}
    for number, kernel in enumerate(chosen.kernels):
        law = chosen.law(kernel, official_scaling)
        done = number * len(starts)

        def show(count: int, _: int, done: int = done) -> None:
            if progress is not None:
                progress(done + count, len(chosen.kernels) * len(starts))

        one = phase(law, starts, progress=show)
        emulated = _compared(one.limits, [published_procedure(law, s, steps=3000) for s in starts]) if emulate else None
        found[kernel] = (one, emulated)
    return Study(chosen, official_scaling, found)


def _compared(ours: tuple[Limit, ...], theirs: list[Emulated]) -> dict[str, Any]:
    """What the procedure says, and where that is not what happens."""
    labels = ["diverged" if one.diverged else f"rank {one.rank}" for one in theirs]
    truth = ["diverged" if one.rank is None else f"rank {one.rank}" for one in ours]
    wrong = Counter(f"{says}, is {is_}" for says, is_ in zip(labels, truth, strict=True) if says != is_)
    words = ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())
    difference = "; ".join(f"{count} of {len(ours)} says {label}" for label, count in wrong.most_common())
    return {"words": words, "agrees": not wrong, "difference": difference}
