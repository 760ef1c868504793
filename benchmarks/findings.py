"""How often findings of traces occur in real models and in the same models with random weights.

Run with ``python benchmarks/findings.py [MODEL ...] [--seeds N] [--first SEED] [--out FILE]``. Models are those of ``attractor fetch``
with a licence that permits it; each reads four texts of its own kind. For every kind of finding and every model the program prints the
most extreme value in the real model and in N models with random weights, and the shares of places beyond the threshold. Thresholds were
chosen on MiniLM and SmolLM2 with seeds from 0; the other models, and seeds from 100, were not looked at before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import attractor as at
from attractor.models import initialize, list_kinds
from attractor.models.tracing import Session

ENGLISH = (
    "The old lighthouse keeper walked down to the harbour every morning, counted the boats, and wrote their names into a small grey book.",
    "Water expands when it freezes, which is why a bottle that was left in the cold breaks, and why ice floats on a lake in winter.",
    "Once upon a time there was a little girl who found a red ball in the garden and wanted to show it to all of her friends.",
    "The committee met on Tuesday to discuss the budget, but after three hours of debate nobody could agree on a single number.",
)
PROTEINS = (
    "E V Q L V E S G G G L V Q P G G S L R L S C A A S G F T F S S Y A M S W V R Q A P G K G L E W V S A I S G S G G S T Y Y A D S V K G",
    "Q V Q L Q Q S G A E L A R P G A S V K M S C K A S G Y T F T R Y T M H W V K Q R P G Q G L E W I G Y I N P S R G Y T N Y N Q K F K D",
    "D I Q M T Q S P S S L S A S V G D R V T I T C R A S Q D V N T A V A W Y Q Q K P G K A P K L L I Y S A S F L Y S G V P S R F S G S R",
    "E I V L T Q S P G T L S L S P G E R A T L S C R A S Q S V S S S Y L A W Y Q Q K P G Q A P R L L I Y G A S S R A T G I P D R F S G S",
)
REACTIONS = (
    "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1",
    "O=C(O)c1ccccc1.CCO>>CCOC(=O)c1ccccc1",
    "Brc1ccc(C)cc1.OB(O)c1ccccc1>>Cc1ccc(-c2ccccc2)cc1",
    "CC(C)(C)OC(=O)NCc1ccccc1.Cl>>NCc1ccccc1",
)
TEXTS = {
    "minilm": ENGLISH,
    "smollm2": ENGLISH,
    "stories15M": ENGLISH,
    "antiberty": PROTEINS,
    "rxnfp": REACTIONS,
    "rxnmapper": REACTIONS,
}


def main() -> None:
    """Measure every model."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("models", nargs="*", default=list(TEXTS), metavar="MODEL", help=", ".join(TEXTS))
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in chosen.models:
        rows += measure(name, range(chosen.first, chosen.first + chosen.seeds))
    if chosen.out is not None:
        document = {"command": " ".join(("python", *sys.argv)), "rows": rows}
        chosen.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measure(name: str, seeds: range) -> list[dict[str, Any]]:
    """Print and return one row for each kind of finding: the real model against those with random weights."""
    session = Session.open(at.checkpoint(name, structural=True), None, (), None)
    inputs = [session.inputs(text)[0] for text in TEXTS[name]]
    real = [session.run(one, True) for one in inputs]
    random = []
    for seed in seeds:
        other = Session.open(initialize(session.checkpoint.config, seed, dtype=torch.float32), None, (), None)
        random.append([other.run(one, True) for one in inputs])
    tokens = [part.tokens for part in real]
    print(f"{name}: texts of {min(tokens)} to {max(tokens)} tokens, random seeds {seeds.start} to {seeds.stop - 1}")
    rows = []
    for kind in list_kinds():
        own = kind.measure(real, kind.threshold)
        others = [found for parts in random if (found := kind.measure(parts, kind.threshold)) is not None]
        if own is None or not others:
            continue
        values, holds = (torch.cat([one[part].flatten() for one in others]) for part in (0, 1))
        row = {
            "model": name,
            "finding": kind.name,
            "threshold": kind.threshold,
            "value": extreme(own[0].flatten(), kind.largest),
            "places": int(own[1].sum()),
            "total": int((~own[0].isnan()).sum()),
            "random_value": extreme(values, kind.largest),
            "random_places": int(holds.sum()),
            "random_total": int((~values.isnan()).sum()),
        }
        rows.append(row)
        print(
            f"  {kind.name:<19}{kind.quantity:<17} threshold {kind.threshold:<6g} real {row['value']:<10.4g}{row['places']:>4} of "
            f"{row['total']:<5} random {row['random_value']:<10.4g}{row['random_places']:>5} of {row['random_total']}",
            flush=True,
        )
    return rows


def extreme(values: torch.Tensor, largest: bool) -> float:
    """The most extreme value."""
    known = values[~values.isnan()]
    return float(known.max() if largest else known.min()) if len(known) else float("nan")


if __name__ == "__main__":
    main()
