"""What a refinement costs: training steps of one model as it is, with the shift and with the slice, interleaved.

    python benchmarks/refinement.py [--family gpt2] [--layers 12] [--dim 768] [--heads 12] [--context 1024] [--batch 16] [--rounds 20]
                                    [--steps 5]

A step is forward, backward and AdamW on random tokens, on the GPU if there is one (bfloat16 autocast there, float32 on the CPU). Every
contender has a turn of ``--steps`` steps in each round; within a turn nothing waits for the device, as in training. Prints one JSON
object: median seconds of a step of each contender and the median, over rounds, of its ratio to the plain model; the target is 1.05.
All contenders take the same path but for attention, so the ratio is the price of the refinement. ``--channels 16`` keeps part of each
slice, ``--pad`` says whether values are made as wide as keys, ``--compile`` compiles every contender, and ``--backends`` adds contenders
(plain ones too) that try this kernel of PyTorch's fused attention first. Sizes by default are those of
GPT-2 small on a GPU (about a minute on an H200) and small ones on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import attractor as at

TARGET = 1.05
PADS = {"auto": None, "always": True, "never": False}


def arguments() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--kinds", nargs="+", choices=["shift", "slice"], default=["shift", "slice"])
    for name, large, small in (("layers", 12, 4), ("dim", 768, 256), ("heads", 12, 4), ("context", 1024, 256)):
        parser.add_argument(f"--{name}", type=int, default=large if gpu else small)
    parser.add_argument("--vocabulary", type=int, default=50257 if gpu else 4096)
    parser.add_argument("--batch", type=int, default=16 if gpu else 4)
    parser.add_argument("--rounds", type=int, default=20 if gpu else 5)
    parser.add_argument("--steps", type=int, default=5 if gpu else 1, help="of one turn")
    parser.add_argument("--channels", type=int, help="of each slice, all of them by default")
    parser.add_argument("--pad", choices=list(PADS), default="auto")
    parser.add_argument("--backends", nargs="+", choices=["cudnn", "flash", "efficient"], default=[])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    return parser.parse_args()


def model_of(given: argparse.Namespace) -> Any:
    import transformers

    torch.manual_seed(0)
    if given.family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=given.vocabulary,
            n_positions=given.context,
            n_embd=given.dim,
            n_layer=given.layers,
            n_head=given.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        return transformers.GPT2LMHeadModel(config).to(given.device).train()
    config = transformers.LlamaConfig(
        vocab_size=given.vocabulary,
        hidden_size=given.dim,
        intermediate_size=int(8 * given.dim / 3),
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        num_key_value_heads=given.heads,
        max_position_embeddings=given.context,
    )
    return transformers.LlamaForCausalLM(config).to(given.device).train()


def step_of(given: argparse.Namespace, kind: Any, backend: str | None) -> Callable[[], None]:
    model = model_of(given)
    if kind is not None:
        channels = given.channels if kind == "slice" else None
        at.nn.refine(model, kind, sign="free", value=0.01, channels=channels, pad=PADS[given.pad], backend=backend)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=given.device == "cuda")
    run = torch.compile(model) if given.compile else model
    ids = torch.randint(0, given.vocabulary, (given.batch, given.context), device=given.device)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(given.device, torch.bfloat16, enabled=given.device == "cuda"), preferred(backend):
            loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()

    return step


def preferred(backend: str | None) -> Any:
    if backend is None:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    first = getattr(SDPBackend, names.pop(backend))
    return sdpa_kernel(
        [first, *(getattr(SDPBackend, name) for name in names.values()), SDPBackend.MATH], set_priority=True
    )


def seconds(given: argparse.Namespace, step: Callable[[], None]) -> float:
    if given.device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(given.steps):
        step()
    if given.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / given.steps


def main() -> None:
    given = arguments()
    contenders: dict[str, tuple[str | None, str | None]] = {}
    for kind in (None, *given.kinds):
        for backend in (None, *given.backends):
            contenders[" ".join(filter(None, (kind or "plain", backend)))] = kind, backend
    steps = {name: step_of(given, *choice) for name, choice in contenders.items()}
    for step in steps.values():
        for _ in range(3):  # what is compiled, tuned or allocated on first use
            step()
    times = {name: [] for name in steps}
    order = list(steps)
    for _ in range(given.rounds):
        for name in order:
            times[name].append(seconds(given, steps[name]))
        order = [*order[1:], order[0]]  # rotate, so that no contender always follows the same one
    rows = []
    for name, taken in times.items():
        ratios = [mine / plain for mine, plain in zip(taken, times["plain"], strict=True)]
        ratio = statistics.median(ratios)
        spread = [round(value, 4) for value in statistics.quantiles(ratios, n=4)] if given.rounds > 1 else None
        rows.append(
            {
                "contender": name,
                "seconds": round(statistics.median(taken), 6),
                "ratio": round(ratio, 4),
                "ratio_quartiles": spread,
                "within_target": ratio <= TARGET,
            }
        )
    device = torch.cuda.get_device_name() if given.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    facts = {"hardware": device, "torch": torch.__version__, "target": TARGET, **vars(given)}
    print(json.dumps({"schema": "attractor.refinement/1", **facts, "rows": rows}))


if __name__ == "__main__":
    main()
