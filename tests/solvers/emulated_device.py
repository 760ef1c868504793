"""A stand-in for the GPU: compiles the kernel of the device loop for the CPU and runs its threads one after another."""

import ctypes
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import torch

HEADER = Path(__file__).with_name("cuda_emulation.h")
ENTRY = """
extern "C" void run_grid(const Run* run, int grid, int block, long shared) {
    const int together = GRID ? grid : 1;
    gridDim.x = grid;
    std::vector<std::vector<double>> memory(together, std::vector<double>(shared / 8 + 2));
    for (int first = 0; first < grid; first += together) {
        for (auto& part : memory) std::fill(part.begin(), part.end(), std::numeric_limits<double>::quiet_NaN());
        Fibers fibers;
        fibers.run(first, together, block, [&](int b) { MEMORY = (REAL*)memory[b].data(); }, [&] { integrate_member(*run); });
    }
}
"""


class EmulatedDevice:
    """Has the interface of ``device_loop.Cuda`` for tensors on the CPU."""

    device_type = "cpu"
    reason = ""
    multiprocessors = 0  # for the threads of a token
    largest_block = 0  # threads of a block of a grid; 0 for no grids

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches = 0

    def compile(self, source: str, device: torch.device, shared: int) -> Any:
        memory = "static REAL* MEMORY;"  # shared memory
        code = f'#include "{HEADER}"\n#include <algorithm>\n{source[: source.index("// Steps")]}\n{memory}\n{source}\n{ENTRY}'
        path = self.folder / f"{hashlib.sha256(code.encode()).hexdigest()[:20]}.so"
        if not path.exists():
            command = ["g++", "-x", "c++", "-", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-o", str(path)]
            done = subprocess.run(command, input=code, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(path)).run_grid

    def launch(
        self, function: Any, grid: int, block: int, shared: int, run: Any, device: torch.device, together: bool
    ) -> None:
        self.launches += 1
        function(ctypes.byref(run), grid, block, ctypes.c_long(shared))

    def grid(self, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
        return (4, self.largest_block) if self.largest_block else (0, 0)

    def shared_memory(self, device: torch.device) -> int:
        return 227 << 10

    def processors(self, device: torch.device) -> int:
        return self.multiprocessors
