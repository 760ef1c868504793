"""A short theorem bench: statements that can be measured, on random systems."""

from __future__ import annotations

from typing import Any

from attractor.cli.theorypage import add_check, add_sharpness, add_statement
from attractor.cli.tour.stop import Say, Settings
from attractor.report import Section
from attractor.theory import check, theorem

KEYS = ("consensus.T1", "consensus.T2", "consensus.T3", "meanfield.T3", "meanfield.T5", "regimes.T0", "regimes.T2")


def bench(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """Random systems that satisfy the hypotheses, and random ones that violate one."""
    keys, instances, violated = (KEYS[-2:-1], 2, 1) if settings.small else (KEYS, 10, 5)
    options = f"--instances {instances} --violated {violated} --seed {settings.seed}"
    section.text(
        "A theorem here is a file: hypotheses that a computer can decide, and a conclusion that can be measured. "
        "Random systems that satisfy the "
        "hypotheses are integrated and the conclusion is measured on each; then one hypothesis at a time is violated, "
        "to see what it is worth."
    )
    say(f"{len(keys)} theorems on {instances} random systems each")
    found = check(
        keys,
        instances=instances,
        violated=violated,
        seed=settings.seed,
        progress=lambda key, done, all_: say(f"{key} ({done} of {all_})"),
    )
    section.command = f"attractor check {' '.join(f'--theorem {key}' for key in keys)} {options}"
    add_check(section, found)
    add_sharpness(section, found)
    statements = section.fold("The statements")
    for key in keys:
        entry = theorem(key)
        add_statement(statements.fold(f"{key}: {entry.title}"), entry)
    count = sum(entry.instances for entry in found.theorems)
    words = f"{len(keys)} theorems hold on {count} random systems: {found.violations} violations"
    return words, {"theorems": list(keys), "instances": count, "violations": found.violations}
