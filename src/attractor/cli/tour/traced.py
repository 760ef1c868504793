"""A trace of a real model: where the tokens of a sentence go along depth."""

from __future__ import annotations

import shlex
from typing import Any

from attractor.cli.tour.model import TEXT, name_of, opened
from attractor.cli.tour.stop import Say, Settings, Skipped
from attractor.errors import CheckpointError
from attractor.report import Section

CURVES = {"cosine": "mean cosine of two tokens", "effective_rank": "effective rank", "token_norm": "mean norm"}


def traced(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """The residual stream block by block, as a trajectory like any other."""
    from attractor.checkpoints import trace
    from attractor.cli.tracepage import add_heads
    from attractor.flow.drawing import scene

    found, text = opened(settings.model), settings.text or TEXT
    say(f"{name_of(found)} reads a sentence")
    try:
        run = trace(found, text)
    except CheckpointError as error:
        if "tokenizer" in str(error):
            raise Skipped(str(error)) from None
        raise
    measured = run.measurements
    assert measured is not None
    section.command = shlex.join(["attractor", "trace", found.name, "--text", text])
    section.text(
        f"{name_of(found)} reads a sentence. A trace is a trajectory like any other, with the blocks as times, so every "
        "observable and every picture works on it."
    )
    section.card({"the text": text, "its tokens": "  ·  ".join(run.words)})
    section.film(scene(run, curves=tuple(CURVES), title=f"{len(run.words)} tokens of {name_of(found)} along depth"))
    cosine, rank = measured.curves["cosine"], measured.curves["effective_rank"]
    section.card(
        {"before the first block": float(cosine[0]), "after the last": float(cosine[-1])}, "Mean cosine of two tokens"
    )
    section.card({"before the first block": float(rank[0]), "after the last": float(rank[-1])}, "Effective rank")
    if measured.heads:
        heads = {name: values.tolist() for name, values in measured.heads.items()}
        add_heads(section, {"heads": heads, "reads": "texts"})
    way = "closer together" if cosine[-1] > cosine[0] else "further apart"
    words = f"{len(run.words)} tokens of {name_of(found)} move {way}: mean cosine {float(cosine[0]):.3f} to {float(cosine[-1]):.3f}"
    return words, {"tokens": len(run.words), "cosine": cosine.tolist(), "effective_rank": rank.tolist()}
