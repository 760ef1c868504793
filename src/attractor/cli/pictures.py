"""How wide pictures are: the same option for every command that draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from attractor.cli.groups import panel

option = panel("Results")


@dataclass(frozen=True)
class PictureOptions:
    """The size of what is drawn."""

    width: Annotated[
        str, option("one|two|INCHES", "Width of printed pictures: one column (3.4 in), two (7 in), or inches.")
    ] = "two"

    @contextmanager
    def sized(self) -> Iterator[None]:
        """Pictures drawn inside are this wide."""
        from attractor.pictures.style import sized

        with sized(self.width):
            yield
