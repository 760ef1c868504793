"""No head of a real model is definite: the signs of Q'K are decided by its shape."""

import numpy as np
import torch

from attractor.plotting import Curve, Panel
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    rng, dim = np.random.default_rng(0), 64
    counts: list[tuple[int, int, int]] = []
    widths = (4, 8, 16, 32)
    for width in widths:
        query, key = (torch.from_numpy(rng.standard_normal((width, dim))) for _ in range(2))
        # a head trained to be as definite as its shape allows: the key follows the query
        interaction = query.mT @ (key + 3 * query)
        values = torch.linalg.eigvalsh((interaction + interaction.mT) / 2)
        bound = 1e-10 * float(values.abs().max())
        counts.append((int((values > bound).sum()), int((values < -bound).sum()), int((values.abs() <= bound).sum())))
    wanted = [(width, width, dim - 2 * width) for width in widths]
    facts = {f"signs_for_head_dimension_{width}": str(count) for width, count in zip(widths, counts, strict=True)}
    sentence = (
        f"in dimension {dim} heads of width 4, 8, 16, 32 have {', '.join(str(count) for count in counts)} positive, negative and "
        "zero eigenvalues of sym W, although K leans towards Q"
    )
    panel = Panel(
        tuple(
            Curve(list(widths), [count[k] for count in counts], name, dots=k == 1)
            for k, name in enumerate(("positive", "negative", "zero"))
        ),
        "head dimension",
        "eigenvalues of sym W",
        f"d = {dim}",
    )
    return Evidence(facts, counts == wanted, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.definite-heads",
    title="Definiteness of single heads",
    claim="The regime of a head of a trained model is read from the signs of the eigenvalues of its d x d interaction.",
    source="pham2025dynamical",
    place="the conditions on W_sym and A_sym, applied head by head",
    basis="reading",
    verdict="false",
    truth="With k < d/2 the inertia is (k, k, d - 2k) whatever the training; use the reduced k x k system or the "
    "definiteness index.",
    run=run,
)
