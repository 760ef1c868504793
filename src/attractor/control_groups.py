"""What the control groups of Linux leave a process: a container's limit of memory, which /proc/meminfo does not know."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SELF = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
# limit, what is used, and of that what is given up when memory is short: pages of files and what the kernel keeps of them
UNIFIED = "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
SPLIT = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
Names = tuple[str, str, tuple[str, ...]]
Group = tuple[Path, Names]


def memory_left() -> int | None:
    """Bytes until the nearest limit of this process's groups, or None where there is none."""
    left = [found for folder, names in _groups() if (found := _left(folder, names)) is not None]
    return min(left, default=None)


@cache
def _groups() -> tuple[Group, ...]:
    """The groups of this process and all above them that count memory."""
    try:
        lines = SELF.read_text().splitlines()
    except OSError:
        return ()
    found: list[Group] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and "memory" not in controllers.split(","):
            continue
        root, names = (ROOT, UNIFIED) if unified else (ROOT / "memory", SPLIT)
        here = root / path.lstrip("/")
        found += [(folder, names) for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return tuple(group for group in found if (group[0] / group[1][0]).is_file())


def _left(folder: Path, names: Names) -> int | None:
    limit_name, used_name, cached = names
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= 1 << 60:  # version 1 writes no limit as a very large one
            return None
        used = int((folder / used_name).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + sum(int(stats.get(name, 0)) for name in cached))
    except (OSError, ValueError):
        return None
