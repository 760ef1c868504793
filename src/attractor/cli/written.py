"""Where the results of a command are: the same last lines, and the same entry ``written`` of the object, for every command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Written:
    """What a command wrote: pictures, a page, tables and the like, and the store of a run."""

    pictures: Sequence[str | Path] = ()
    report: str | Path | None = None
    files: Sequence[str | Path] = ()
    store: str | Path | None = None

    @classmethod
    def of(
        cls, pictures: Iterable[str | Path | None] = (), report: Path | None = None, files: Iterable[Path | None] = ()
    ) -> Written:
        """From the values of options, of which some were not given."""
        return cls(
            [path for path in pictures if path is not None], report, [path for path in files if path is not None]
        )

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        report, store = (None if path is None else str(path) for path in (self.report, self.store))
        return {
            "pictures": list(map(str, self.pictures)),
            "report": report,
            "files": list(map(str, self.files)),
            "store": store,
        }

    def tell(self, command: str, **more: str) -> None:
        """Places first, and the command that makes the same again last."""
        from attractor.cli.printing import print_rows

        places = {
            "pictures": " ".join(map(str, self.pictures)),
            "report": str(self.report or ""),
            "files": " ".join(map(str, self.files)),
            "store": str(self.store or ""),
            **more,
        }
        print_rows("Results", {**{label: text for label, text in places.items() if text}, "again": command})
