"""A checkpoint larger than what is held: one layer at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

DIM, LAYERS, INNER, GROUPS = 1024, 12, 4096, 4
READ = """
import json, resource, sys
import torch
import attractor as at
torch.set_num_threads(1)
opened = at.checkpoint(sys.argv[1])
opened.layers[0].head(0)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
after_one = peak()
for layer in opened.layers:
    for index in range(layer.heads):
        layer.head(index, fold=True)
print(json.dumps([after_one, peak()]))
"""


def _layer(index: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(index)
    shapes = {
        "self_attn.q_proj": (DIM, DIM),
        "self_attn.k_proj": (DIM // GROUPS, DIM),
        "self_attn.v_proj": (DIM // GROUPS, DIM),
        "self_attn.o_proj": (DIM, DIM),
        "mlp.gate_proj": (INNER, DIM),
        "mlp.up_proj": (INNER, DIM),
        "mlp.down_proj": (DIM, INNER),
        "input_layernorm": (DIM,),
    }
    rows = {name: torch.randn(shape, generator=draw).bfloat16() for name, shape in shapes.items()}
    return {f"model.layers.{index}.{name}.weight": value for name, value in rows.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="resource reports other units elsewhere")
def test_no_more_than_one_layer_is_held(tmp_path: Path) -> None:
    """360 MB of files; reading the layers one after the other takes no more memory than the first did, but for noise."""
    weight_map: dict[str, str] = {}
    for index in range(LAYERS):
        tensors, file = _layer(index), f"model-{index + 1:05d}-of-{LAYERS:05d}.safetensors"
        save_file(tensors, tmp_path / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "model_type": "llama",
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 16 // GROUPS,
        "intermediate_size": INNER,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    layer = size / LAYERS
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True)
    after_one, at_most = json.loads(done.stdout)
    assert at_most - after_one < layer
    assert size > 10 * layer
