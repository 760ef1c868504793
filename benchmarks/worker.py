"""One flow, timed, in a process of its own: ``python -m benchmarks.worker``, alone or under ``torchrun``.

Under ``torchrun`` the group of processes is set up first, and ``flow`` shards the tokens over it by itself. Rank 0 writes the seconds,
the median of all repeats, and the final points to the file that is named.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="a .npz file to write")
    for name in ("tokens", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    for name in ("beta", "until"):
        parser.add_argument(f"--{name}", type=float, required=True)
    given = parser.parse_args(arguments)
    import numpy as np
    import torch
    from torch import distributed

    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    torch.set_num_threads(1)
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if together:
        distributed.init_process_group("gloo")
    law, tokens = Attention.isotropic(3, given.beta), Tokens.uniform(given.tokens, 3, given.seed)
    asked = {"space": Sphere(), "merge": False, "stop": (), "rtol": 1e-6, "atol": 1e-6}
    asked["engine"] = "fused"  # the cost that is shared is that of all pairs
    run = flow(law, tokens, until=1e-3, save=[1e-3], **asked)
    seconds = []
    for _ in range(given.repeats):
        if together:
            distributed.barrier()
        start = time.perf_counter()
        run = flow(law, tokens, until=given.until, save=[given.until], **asked)
        if together:
            distributed.barrier()
        seconds.append(time.perf_counter() - start)
    if int(os.environ.get("RANK", "0")) == 0:
        np.savez(given.file, seconds=np.median(seconds), points=run.points[-1].numpy(), engine=run.stats.engine)
    if together:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
