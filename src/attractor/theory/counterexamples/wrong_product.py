"""Definiteness imposed on Wq Wk' is not that of the scores."""

import torch

from attractor.plotting import Curve, Panel
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.sampling import Rng


def run() -> Evidence:
    rng, dim = Rng.from_seed(0), 32
    definite_form = rng.definite(dim) + rng.skew(dim, 3.0 / dim**0.5)
    start, noise = rng.orthogonal(dim), torch.from_numpy(rng.standard_normal((dim, dim)))
    sizes, negatives = (0.0, 0.1, 0.3, 1.0), []
    for size in sizes:
        query = start + size * noise / dim**0.5
        key = torch.linalg.solve(query, definite_form).mT  # Wq Wk' = M, as the released code does it
        scores = query.mT @ key
        negatives.append(int((torch.linalg.eigvalsh((scores + scores.mT) / 2) < 0).sum()))
    facts = {
        f"negative_eigenvalues_after_a_move_of_{size:g}": count for size, count in zip(sizes, negatives, strict=True)
    }
    sentence = (
        f"with sym(Wq Wk') positive definite throughout, the scores' sym(Wq'Wk) has {', '.join(map(str, negatives))} negative "
        f"eigenvalues of {dim} as Wq leaves the orthogonal matrices by {', '.join(f'{size:g}' for size in sizes)}"
    )
    panel = Panel(
        (Curve(list(sizes), negatives, dots=True),),
        "distance of Wq from orthogonal",
        "negative eigenvalues",
        f"d = {dim}",
    )
    return Evidence(facts, negatives[0] == 0 and negatives[-1] > 0, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.transposed-product",
    title="Definiteness of the wrong product",
    claim="Making Wq Wk' positive definite makes the score form x'(Wq'Wk)x positive definite.",
    source="pham2025dynamical",
    place="its released code",
    basis="code",
    verdict="false",
    truth="The two share eigenvalues but not the inertia of their symmetric parts, except while Wq is orthogonal; "
    "impose it on Wq'Wk.",
    run=run,
)
