"""Archives, opened without trust: nothing is written outside the folder that is named, and links are not followed."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from attractor.errors import FetchError

Member = tuple[str, Callable[[], IO[bytes] | None]]


def unpack(archive: Path, folder: Path, root: str, patterns: tuple[str, ...]) -> list[str]:
    """Write the plain files under ``root`` that match one of the patterns into ``folder``, and return their names there.

    ``*`` in a pattern stands for any part of a path, folders included. An archive that names a file outside itself is refused as a
    whole, before anything is written.
    """
    with _members(archive) as members:
        found = [(place, open) for name, open in members if (place := _place(archive, name, root)) is not None]
        wanted = [(place, open) for place, open in found if any(fnmatchcase(place, each) for each in patterns)]
        for place, open in wanted:
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            source = open()
            assert source is not None
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    if not wanted:
        raise FetchError(f"{archive.name} holds no {' or '.join(patterns)} under {root}")
    return [place for place, _ in wanted]


def _place(archive: Path, name: str, root: str) -> str | None:
    """Where a member goes, relative to ``root``; None for one that lies elsewhere in the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\x00" in name:
        raise FetchError(f"{archive.name} names a file outside its folder ({name!r}) and is not unpacked")
    inside = PurePosixPath(root)
    return str(path.relative_to(inside)) if path.is_relative_to(inside) and path != inside else None


@contextmanager
def _members(archive: Path) -> Iterator[list[Member]]:
    """Every plain file of an archive."""
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as stored:
                files = [info for info in stored.infolist() if not info.is_dir()]
                yield [(info.filename, _opener(stored.open, info)) for info in files]
        elif archive.suffix == ".deb":
            with _debian(archive) as plain, tarfile.open(plain) as stored:
                yield _of_tar(stored)
        else:
            with tarfile.open(archive) as stored:
                yield _of_tar(stored)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise FetchError(f"{archive.name} is no archive that can be read: {error}") from None


def _of_tar(stored: tarfile.TarFile) -> list[Member]:
    return [(info.name, _opener(stored.extractfile, info)) for info in stored.getmembers() if info.isreg()]


def _opener(open: Callable[[Any], IO[bytes] | None], info: Any) -> Callable[[], IO[bytes] | None]:
    return lambda: open(info)


@contextmanager
def _debian(archive: Path) -> Iterator[Path]:
    """The files of a .deb as a plain tar, whichever compression it has."""
    program = shutil.which("dpkg-deb")
    if program is None:
        raise FetchError(f"{archive.name} is unpacked by dpkg-deb, which is not installed; it comes with Debian's dpkg")
    plain = archive.with_suffix(".tar")
    try:
        with plain.open("wb") as file:
            done = subprocess.run([program, "--fsys-tarfile", str(archive)], stdout=file, stderr=subprocess.PIPE)
        if done.returncode:
            raise FetchError(f"{archive.name} is no archive that can be read: {done.stderr.decode().strip()}")
        yield plain
    finally:
        plain.unlink(missing_ok=True)
