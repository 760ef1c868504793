"""The Triton kernels that compute each pair once, compiled for a GPU; none is needed for that.

python tests/engines/triton_compile.py CAPABILITY
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attractor.engines.triton import launch, symmetric

NAMES = {"torch.float32": "fp32", "torch.float64": "fp64"}


def compile_size(kernel, pointers: str, numbers: str, type_name: str, constants: dict, capability: int) -> int:
    """Bytes of the machine code."""
    signature = dict.fromkeys(pointers.split(), f"*{type_name}") | dict.fromkeys(numbers.split(), "i32")
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants)
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1}).asm["cubin"])


def main(capability: int) -> None:
    for dtype, (rows, unroll) in launch.SHAPES.items():
        mass = str(dtype) == "torch.float64"
        shape = {"E": 3, "C": 3, "SAME": not mass, "MASS": mass, "SKIP": mass, "SLOTS": 7 if mass else 3}
        given = {**shape, "BM": rows, "UNROLL": unroll}
        name = NAMES[str(dtype)]
        first = compile_size(symmetric.symmetric, "K V M P FACTOR ROWS T", "n keys copies", name, given, capability)
        second = compile_size(
            symmetric.finish_symmetric, "ROWS T OUT SUM", "n copies", name, {"C": 3, "MODE": 0}, capability
        )
        print(dtype, first, second)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
