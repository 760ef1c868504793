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
    std::vector<double> memory(shared / 8 + 2);
    blockDim.x = block;
    MEMORY = (REAL*)memory.data();
    for (int b = 0; b < grid; b++) {
        blockIdx.x = b;
        std::fill(memory.begin(), memory.end(), std::numeric_limits<double>::quiet_NaN());
        Fibers fibers;
        fibers.run(block, [&] {
            integrate_member(*run);
        });
    }
}
"""


class EmulatedDevice:
    """Has the interface of ``device_loop.Cuda`` for tensors on the CPU."""

    device_type = "cpu"
    reason = ""
    multiprocessors = 0

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

    def launch(self, function: Any, grid: int, block: int, shared: int, run: Any, device: torch.device) -> None:
        self.launches += 1
        function(ctypes.byref(run), grid, block, ctypes.c_long(shared))

    def shared_memory(self, device: torch.device) -> int:
        return 227 << 10

    def processors(self, device: torch.device) -> int:
        return self.multiprocessors
