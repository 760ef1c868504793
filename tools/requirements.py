"""What pip must install for some extras of this project, read from pyproject.toml: one requirement a line.

    python tools/requirements.py all dev docs

So `make` can install them while it compiles the kernels.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """The project's own requirements and those of the extras; an extra may name others, as in ``attractor[plot,store]``."""
    found, left = list(project["dependencies"]), list(extras)
    while left:
        for line in project["optional-dependencies"][left.pop(0)]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", line)
            if own:
                left += [name.strip() for name in own[1].split(",")]
            else:
                found.append(line)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    file = Path(__file__).parent.parent / "pyproject.toml"
    print("\n".join(requirements(tomllib.loads(file.read_text(encoding="utf-8"))["project"], sys.argv[1:])))
