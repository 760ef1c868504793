"""BibTeX of what a run used."""

from __future__ import annotations

import re
from importlib.resources import files

from attractor.flow.steppers import stepper_named
from attractor.flow.trajectory import Trajectory
from attractor.records import citations
from attractor.states import Gaussian


def entries() -> dict[str, str]:
    """All entries of the one bibliography, by key."""
    text = (files("attractor") / "references.bib").read_text(encoding="utf-8")
    found = {}
    for match in re.finditer(r"^@\w+\s*\{\s*([^,\s]+)\s*,", text, flags=re.MULTILINE):
        depth, end = 0, match.start()
        for end in range(text.index("{", match.start()), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break
        found[match.group(1)] = text[match.start() : end + 1]
    return found


def keys(run: Trajectory) -> list[str]:
    """Citation keys of the toolkit, the law, the space and the method."""
    used = ["attractor", *citations(run.law), *citations(run.space)]
    if run.space.curved:
        used.append("abella2024asymptotic")
    if isinstance(run.initial, Gaussian):
        used.append("castin2025unified")
    if run.stats.method:
        used += stepper_named(run.stats.method).cites
    return list(dict.fromkeys(used))


def bibtex(run: Trajectory) -> str:
    """The entries of what a run used, ready for a .bib file."""
    known = entries()
    return "\n\n".join(known[key] for key in keys(run)) + "\n"
