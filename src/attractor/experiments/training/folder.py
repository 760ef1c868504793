"""The folder of a run: its configuration, its curve, and checkpoints that are whole or absent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attractor.errors import StoreError
from attractor.experiments.training.config import Config


class RunFolder:
    """``config.json``, ``changed.json`` (which of its entries were set beside the file that it came from), ``curve.jsonl`` (one line
    for each step) and ``checkpoint`` (the last whole one)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.curve, self.checkpoint = self.path / "curve.jsonl", self.path / "checkpoint"

    def begun(self) -> bool:
        """Whether there is a run."""
        return (self.path / "config.json").exists()

    def check_new(self) -> None:
        """Refuse a folder that has a run."""
        if self.begun():
            raise StoreError(f"{self.path} holds a run already: resume it, or give another folder")

    def begin(self, config: Config, changed: Iterable[str] = ()) -> None:
        """A new run."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "changed.json").write_text(json.dumps([*changed]) + "\n", encoding="utf-8")
        (self.path / "config.json").write_text(json.dumps(config.row(), indent=1) + "\n", encoding="utf-8")

    def config(self) -> dict[str, Any]:
        """The configuration that the run began with."""
        try:
            return json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StoreError(
                f"{self.path} holds no run that could be resumed: it has no readable config.json"
            ) from None

    def changed(self) -> list[str]:
        """Entries that were set beside the file of the configuration; none where a run of an earlier version did not say."""
        with suppress(OSError, ValueError, TypeError):
            known = self.config()
            return [
                name for name in json.loads((self.path / "changed.json").read_text(encoding="utf-8")) if name in known
            ]
        return []

    def agree(self, config: Config) -> None:
        """Refuse to go on with another configuration."""
        old, new = self.config(), config.row()
        other = sorted(name for name in new if old.get(name) != new[name])
        if other:
            named = ", ".join(f"{name} ({old.get(name)!r} there, {new[name]!r} here)" for name in other)
            raise StoreError(f"the run in {self.path} has another configuration: {named}")

    def step(self) -> int:
        """The step that the checkpoint comes after; 0 without one."""
        try:
            return int(json.loads((self.checkpoint / "step.json").read_text(encoding="utf-8"))["step"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError):
            raise StoreError(f"the checkpoint in {self.checkpoint} is damaged: remove it to begin again") from None

    def save(self, step: int, write: Any) -> None:
        """A new checkpoint in the place of the old one, by ``write(folder)``."""
        fresh, old = self.path / "checkpoint.new", self.path / "checkpoint.old"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        write(fresh)
        (fresh / "step.json").write_text(json.dumps({"step": step}), encoding="utf-8")
        if self.checkpoint.exists():
            self.checkpoint.rename(old)
        fresh.rename(self.checkpoint)
        shutil.rmtree(old, ignore_errors=True)

    def recover(self) -> None:
        """After a kill between two renames the old checkpoint is the last whole one."""
        old = self.path / "checkpoint.old"
        if not self.checkpoint.exists() and (old / "step.json").is_file():
            old.rename(self.checkpoint)

    def rows(self) -> list[dict[str, Any]]:
        """The curve so far; a last line that a kill cut short is left out."""
        if not self.curve.exists():
            return []
        found = []
        for line in self.curve.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def cut(self, step: int) -> None:
        """Forget what lies after a step."""
        kept = [row for row in self.rows() if row["step"] <= step]
        self.curve.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


@contextmanager
def unmade(*folders: Path) -> Iterator[None]:
    """Take folders away again that an error left behind half filled, and those above them that are empty then."""
    fresh = [folder for folder in folders if not folder.exists()]
    above = {parent for folder in fresh for parent in folder.parents if not parent.exists()}
    try:
        yield
    except BaseException:
        for folder in fresh:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in sorted(above, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # others may have put something there
                parent.rmdir()
        raise
