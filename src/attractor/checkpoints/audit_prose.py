"""What the numbers of an audit mean and how they were computed, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attractor.checkpoints.audit_words import short_name
from attractor.report import Badge, Code, Report
from attractor.theory.weights.labels import LABELS
from attractor.theory.weights.quantities import QUANTITIES

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit

HALVES = {"scores": "query and key", "moves": "value and output", "both": "all four"}


def add_meanings(report: Report) -> None:
    part = report.section("What each number means")
    part.text(
        r"A head scores tokens by \(s_{ij} = x_i^\top W x_j\), \(W = \mathrm{scale}\,Q^\top K\), and moves them by "
        r"\(\dot x_i = \sum_j w_{ij} V x_j\) with the value map \(V = O V'\). Alone it is a dynamical system on the range of \(O\); "
        r"the metric \(A = W V^{-1}\) there makes \(A\dot x_i\) a gradient. \(V^\top W\) is congruent to \(A\) and needs no inverse."
    )
    part.table(
        [
            {"number": quantity.title, "meaning": quantity.meaning, "made of": HALVES[quantity.half], "depends on": Badge("weights alone")}
            for quantity in QUANTITIES
        ]
    )  # fmt: skip
    part.text(
        "A label, and the theorem that certifies it, speak of the head by itself: tokens that move by this head's attention alone, along "
        "continuous time, without norms, feed-forward and other heads. They are no statement about what the model does to a text."
    )
    part.fold("Labels").table([{"label": name, "meaning": meaning} for name, meaning in LABELS.items()])


def add_method(report: Report, audits: Sequence[Audit]) -> None:
    part = report.section("How it was computed")
    for audit in audits:
        card, checked = audit.card, audit.card.get("verified")
        proof = "not compared with the model's own code"
        if checked:
            proof = (
                f"not possible: {checked['reason']}"
                if checked["error"] is None
                else f"our attention equals the model's own to {checked['error']:.1g} (layers {', '.join(map(str, checked['layers']))})"
            )
        part.card(
            {
                "model": Code(audit.model),
                "source": Code(str(card.get("source", ""))),
                "family": card.get("title"),
                "type": card.get("model_type"),
                "layers, heads, groups, width": f"{card.get('layers')}, {card.get('heads')}, {card.get('groups')}, {card.get('dim')}",
                "verified": proof,
                **({"remark": card["remark"]} if card.get("remark") else {}),
                "settings": ", ".join(f"{name} {value}" for name, value in card.get("settings", {}).items()),
            },
            title=short_name(audit.model),
        )
    part.text(
        r"Nothing of the size of the tokens' space is diagonalised for a head: with the Gram matrix of the rows of \(Q\) and \(K\) and "
        r"its Cholesky factor \([R_1\,R_2]\), \(W\) has the eigenvalues of \(R_1 R_2^\top\), of twice the size of a head, and zeros. "
        r"Everything is computed in float64, but for wide models whose weights are stored with 16 bits: their products are formed, "
        r"and the eigenvalues of W and V'W found, in float32. Folding takes the norm's gain \(\Gamma\) and centring \(\Pi\) into the "
        r"weights, \(Q \leftarrow Q\Gamma\Pi\); in post-norm models attention adds to the very tokens that it reads, and unless --fold is "
        r"given the numbers are those of the weights as they are stored."
    )
    part.text(
        "Random heads have independent normal entries, rescaled to the Frobenius norms of the head's own W and V; only inner products "
        "matter, so they are drawn as Wishart matrices of the size of a head. Mismatched heads join the queries and keys of one head "
        "with the values and outputs of another of its layer, both ways."
    )
    if any(row.get("errors") for audit in audits for row in audit.heads):
        part.text(
            "Error bars of quantised weights: every weight was moved by an independent uniform error of its block's step and all "
            "numbers were measured again; the bar is the root mean square change. The rounding of the scales of blocks themselves "
            "is left out.",
            "warn",
        )
