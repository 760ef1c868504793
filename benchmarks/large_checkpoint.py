"""Audit a checkpoint that is larger than memory should be: how much memory and time it takes.

    python benchmarks/large_checkpoint.py [--folder /tmp/large] [--gigabytes 20] [--rounds 3] [--keep] [--layers 4] [--sparse]

Writes a sharded safetensors checkpoint of the shape of Llama 3 8B (d 4096, 32 heads of 128, 8 of keys, bfloat16) with as many layers as
make 20 GB, tensor by tensor, so that writing needs little memory (about two minutes on a slow disk), and audits it in a process of
its own, as ``attractor audit`` does. Prints one JSON object:

- ``peak``: the largest resident memory of the whole process, beside what it holds before it reads a weight (``before``) and the size
  of the attention tensors of one layer in the files; the target is that layer + 1 GiB;
- ``reading``: seconds for reading the attention tensors alone, from the disk (the files are first dropped from the page cache) and
  from the page cache; ``audit``: seconds of the audit under the same two conditions, interleaved; their ratio should be at most 3.
  ``processor`` has the processor time of both, which a busy machine does not stretch.

``--sparse`` leaves what no audit reads (feed-forward parts, embeddings) as holes in the files: they have the same sizes and offsets, and
take a fifth of the disk.

The folder is deleted at the end unless ``--keep`` is given; a folder that is there already is used as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

DIM, HEADS, GROUPS, HEAD_DIM, INNER, VOCABULARY = 4096, 32, 8, 128, 14336, 128256
SHARD = 5e9
TARGETS = {"ratio": 3.0, "extra_memory": 2**30}

AUDIT = """
import json, sys, time
from pathlib import Path
import transformers
import attractor as at
from attractor.models.checkpoints import silence_transformers
# not ru_maxrss, which a process inherits from the one that started it
peak = lambda: 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
folder, options = sys.argv[1], json.loads(sys.argv[2])
with silence_transformers():
    opened = at.checkpoint(folder)
    before, start, used = peak(), time.perf_counter(), time.process_time()
    found = at.audit(opened, **options)
seconds, used = time.perf_counter() - start, time.process_time() - used
print(json.dumps({"seconds": seconds, "processor": used, "before": before, "peak": peak(), "heads": len(found.heads)}))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/large"))
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint where it is")
    parser.add_argument("--sparse", action="store_true", help="write holes for what no audit reads")
    parser.add_argument("--layers", type=int, help="audit and read the first layers alone")
    return parser.parse_args()


def shapes(layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer."""
    parts = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, DIM),
        "self_attn.k_proj": (GROUPS * HEAD_DIM, DIM),
        "self_attn.v_proj": (GROUPS * HEAD_DIM, DIM),
        "self_attn.o_proj": (DIM, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, DIM),
        "mlp.up_proj": (INNER, DIM),
        "mlp.down_proj": (DIM, INNER),
        "input_layernorm": (DIM,),
        "post_attention_layernorm": (DIM,),
    }
    return {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}


def size(shape: tuple[int, ...]) -> int:
    return 2 * math.prod(shape)


def write(folder: Path, gigabytes: float, sparse: bool = False) -> None:
    """Random weights, one tensor in memory at a time; those of the feed-forward parts, which no audit reads, repeat one block."""
    ends = {
        "model.embed_tokens.weight": (VOCABULARY, DIM),
        "lm_head.weight": (VOCABULARY, DIM),
        "model.norm.weight": (DIM,),
    }
    each, fixed = sum(map(size, shapes(0).values())), sum(map(size, ends.values()))
    layers = max(2, round((gigabytes * 1e9 - fixed) / each))
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for part in (ends, *(shapes(layer) for layer in range(layers))):
        if sum(map(size, shards[-1].values())) + sum(map(size, part.values())) > SHARD:
            shards.append({})
        shards[-1] |= part
    folder.mkdir(parents=True)
    draw, block = torch.Generator().manual_seed(0), torch.empty(INNER, DIM, dtype=torch.bfloat16).normal_(0, 0.02)
    names = [f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors" for index in range(len(shards))]
    for name, tensors in zip(names, shards, strict=True):
        write_shard(folder / name, tensors, draw, block, sparse)
        print(f"wrote {name}", file=sys.stderr)
    weight_map = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(configuration(layers)))


def configuration(layers: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": DIM,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "intermediate_size": INNER,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
    }


def write_shard(
    file: Path, tensors: dict[str, tuple[int, ...]], draw: torch.Generator, block: torch.Tensor, sparse: bool
) -> None:
    """The format of safetensors: the length of a header, the header in JSON, and the tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size(shape)]}
        end += size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            if sparse and "self_attn" not in name and len(shape) > 1:
                out.truncate(out.seek(size(shape), os.SEEK_CUR))
                continue
            for rows in values(name, shape, draw, block):
                out.write(rows.view(torch.int16).numpy().tobytes())


def values(name: str, shape: tuple[int, ...], draw: torch.Generator, block: torch.Tensor) -> list[torch.Tensor]:
    """A tensor in pieces."""
    if "self_attn" in name:
        return [torch.randn(shape, generator=draw).mul_(0.02).bfloat16()]
    if len(shape) == 1:
        return [torch.rand(shape, generator=draw).add_(0.5).bfloat16()]
    count, flat = math.prod(shape), block.flatten()
    return [flat[: min(len(flat), count - start)] for start in range(0, count, len(flat))]


def attention(folder: Path, layers: int | None) -> list[tuple[Path, str]]:
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    wanted = [(folder / file, name) for name, file in weight_map.items() if ".self_attn." in name]
    return [pair for pair in wanted if layers is None or int(pair[1].split(".")[2]) < layers]


def drop(folder: Path) -> None:
    """Take the files out of the page cache, as far as the system lets one."""
    for file in folder.glob("*.safetensors"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read(folder: Path, layers: int | None) -> dict[str, float]:
    """Seconds for reading every attention tensor into memory, one at a time."""
    from safetensors import safe_open

    wanted, start, used = attention(folder, layers), time.perf_counter(), time.process_time()
    for file in sorted({file for file, _ in wanted}):
        with safe_open(file, framework="pt") as stored:
            for name in (name for other, name in wanted if other == file):
                stored.get_tensor(name).clone()
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}


def audited(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    options = {} if given.layers is None else {"layers": list(range(given.layers))}
    command = [sys.executable, "-c", AUDIT, str(folder), json.dumps(options)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {name: [] for name in ("read disk", "audit disk", "read cache", "audit cache")}
    for _ in range(given.rounds):
        drop(folder)
        rows["read disk"].append(read(folder, given.layers))
        drop(folder)
        rows["audit disk"].append(audited(folder, given))
        rows["read cache"].append(read(folder, given.layers))
        rows["audit cache"].append(audited(folder, given))
    runs = rows["audit disk"] + rows["audit cache"]
    found: dict[str, Any] = {
        "heads": runs[0]["heads"],
        "before": runs[0]["before"],
        "peak": max(run["peak"] for run in runs),
    }
    for place in ("disk", "cache"):
        pairs = list(zip(rows[f"read {place}"], rows[f"audit {place}"], strict=True))
        found[place] = {"reading": [one["seconds"] for one, _ in pairs], "audit": [one["seconds"] for _, one in pairs]}
        found[place]["processor"] = {
            "reading": [a["processor"] for a, _ in pairs],
            "audit": [b["processor"] for _, b in pairs],
        }
        for kind, name in (("seconds", "ratio"), ("processor", "processor_ratio")):
            found[place][name] = statistics.median(audit[kind] / reading[kind] for reading, audit in pairs)
    return found


def main() -> None:
    given = arguments()
    if not given.folder.exists():
        write(given.folder, given.gigabytes, given.sparse)
    try:
        found = measured(given.folder, given)
        files = sum(file.stat().st_size for file in given.folder.glob("*.safetensors"))
        layers = json.loads((given.folder / "config.json").read_text())["num_hidden_layers"]
    finally:
        if not given.keep:
            shutil.rmtree(given.folder)
    layer = sum(size(shape) for name, shape in shapes(0).items() if ".mlp." not in name)
    within = found["peak"] <= layer + TARGETS["extra_memory"]
    facts = {
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "torch": torch.__version__,
        "bytes": files,
        "layers": layers,
        "layer_attention_bytes": layer,
        "targets": TARGETS,
        "memory_within_target": within,
    }
    print(json.dumps({"schema": "attractor.large_checkpoint/1", **facts, **found}, indent=1, default=str))


if __name__ == "__main__":
    main()
