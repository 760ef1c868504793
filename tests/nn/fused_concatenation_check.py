"""The nodes of refinements against plain PyTorch, values and gradients; run with TRITON_INTERPRET=1 where there is no GPU.

python tests/nn/fused_concatenation_check.py DEVICE
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from attractor.nn.fused_concatenation import ConcatShift, ConcatSlice, RoundForTwo


def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], inputs: list[Tensor], allowed: float) -> None:
    generator = torch.Generator(found[0].device).manual_seed(1)
    towards = [torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype) for x in found]
    pairs = [*zip(found, expected, strict=True)]
    pairs += zip(
        torch.autograd.grad(found, inputs, towards), torch.autograd.grad(expected, inputs, towards), strict=True
    )
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape
        error = float((mine.double() - theirs.double()).norm() / theirs.double().norm())
        assert error <= allowed, (mine.shape, error)


def heads_of(generator: torch.Generator, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    """A view of a larger projection, as GPT-2's queries are: (batch, h, n, c)."""
    batch, heads, n, c = shape
    wide = torch.randn(batch, n, 3 * heads * c, generator=generator, device=generator.device).to(dtype)
    return wide[..., heads * c : 2 * heads * c].unflatten(-1, (heads, c)).transpose(1, 2).requires_grad_()


def main(device: str) -> None:
    generator = torch.Generator(device).manual_seed(0)
    for dtype, allowed in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
        for batch, heads, kept, n, c, r in ((2, 3, 3, 37, 16, 16), (1, 4, 2, 5, 24, 8), (2, 2, 2, 33, 8, 20)):
            x = torch.randn(batch, n, 48, generator=generator, device=device).to(dtype).requires_grad_()
            q, k = (heads_of(generator, (batch, h, n, c), dtype) for h in (heads, kept))
            v = heads_of(generator, (batch, kept, n, r), dtype)
            output = torch.randn(heads * r, 48, generator=generator, device=device).mT  # as GPT-2 keeps it
            output = (output if heads == kept else output.contiguous()).requires_grad_()
            strength = torch.randn(heads, generator=generator, device=device).requires_grad_()
            scaled = (output.unflatten(1, (heads, r)) * strength[:, None]).flatten(1).to(dtype)
            a = (x @ scaled).unflatten(-1, (heads, r)).transpose(1, 2)
            plain = torch.cat((q, a), -1), torch.cat((k, v), -1), v * 1
            inputs = [x, output, strength, q, k, v]
            check(ConcatShift.apply(x, output, strength, q, k, v), plain, inputs, allowed)
            slices = heads_of(generator, (batch, heads, n, r), dtype)
            if n == 37:  # tokens that are columns of something
                slices = slices.detach().mT.contiguous().mT.requires_grad_()
            strengths = torch.randn(heads, r, generator=generator, device=device).requires_grad_()
            own = heads_of(generator, (batch, heads, n, c), dtype)
            plain = torch.cat((q, slices * strengths.unsqueeze(-2).to(dtype)), -1), torch.cat((own, slices), -1)
            check(ConcatSlice.apply(slices, strengths, q, own), plain, [slices, strengths, q, own], allowed)
    tokens = torch.randn(2, 7, 48, generator=generator, device=device, requires_grad=True)
    both = tokens.to(torch.bfloat16) * 1, tokens.to(torch.bfloat16) * 1
    check(RoundForTwo.apply(tokens, torch.bfloat16), both, [tokens], 0.0)
    sys.stdout.write("checked\n")


if __name__ == "__main__":
    main(sys.argv[1])
