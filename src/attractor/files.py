"""Atomic and durable file output, locks, checksums, and strict JSON."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, StoreError

SEAL = b"sha256:\n"  # precedes the checksum at the end of a file of arrays
DAMAGED = "restore it from a copy, or compute it again"


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; raise if it is a folder or its folder does not exist."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise InputError(f"{place} is a folder; give the name of a file in it, such as {place / 'tokens.html'}")
    if not place.parent.is_dir():
        raise InputError(f"the folder {place.parent} does not exist; create it before a file is written there")
    return place


def check_folder(folder: Path, what: str) -> None:
    """Raise if no file can be created in a folder. It creates one, because permission bits alone do not decide it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{what} cannot be written: {reason(error)} in {folder}; choose a folder you may write to"
        ) from None


@contextmanager
def replace_on_success(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield an empty temporary file (or folder) next to ``path`` that replaces it on success and is removed on error.

    Its contents are on the disk before it gets its name, so after a power loss ``path`` is the old or the new one. Temporary
    files that killed processes left behind are removed.
    """
    remove_leftovers(path)
    temporary, lock = _create_temporary(path, folder)
    try:
        yield temporary
        sync_tree(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        if folder:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        os.close(lock)


def _create_temporary(path: Path, folder: bool) -> tuple[Path, int]:
    """Create a temporary file or folder; return it with a descriptor that holds a lock on it while this process lives."""
    while True:
        temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
        if folder:
            temporary.mkdir()
        else:
            temporary.touch(exist_ok=False)
        with suppress(FileNotFoundError):  # another process may remove it before it is locked
            descriptor = os.open(temporary, os.O_RDONLY)
            if lock(descriptor) is not False and temporary.exists():
                return temporary, descriptor
            os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files and folders of ``path`` whose process has died: nobody holds their locks."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    with suppress(OSError):  # a folder that cannot be read, or a file that another process removes
        for found in filter(name.fullmatch, os.listdir(path.parent)):
            place = path.parent / found
            descriptor = os.open(place, os.O_RDONLY)
            try:
                if not lock(descriptor):
                    continue
                if place.is_dir():
                    shutil.rmtree(place, ignore_errors=True)
                else:
                    place.unlink()
            finally:
                os.close(descriptor)


def lock(descriptor: int, shared: bool = False) -> bool | None:
    """Lock an open file for this process; return False if another one holds it, None if the file system has no locks.

    With ``shared`` other processes may hold it too, if they share it.

    The system releases the lock when the descriptor is closed or the process dies.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        return None
    return True


@contextmanager
def hold_lock(path: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock file ``path`` inside the block; raise ``StoreError`` if another process writes ``what``.

    With ``shared`` other processes may hold it too, if they share it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(descriptor)
    try:
        if lock(descriptor, shared) is False:
            holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
            raise StoreError(
                f"{what} is being written by another run{f' (process {holder})' if holder else ''}: wait for its end, or give "
                "another path"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


_held: set[int] = set()  # descriptors of locks


def _close_locks() -> None:
    """Close the locks in a forked process, which would otherwise hold them after the death of its parent."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)


def sync_file(path: Path) -> None:
    """Wait until the contents of a file are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, if the file system supports that."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_tree(path: Path) -> None:
    """Wait until a file, or a folder with all it holds, is on the disk."""
    if not path.is_dir():
        return sync_file(path)
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_file(Path(folder, name))
        sync_folder(Path(folder))
    return None


def checksum_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 checksum of every file in a folder and its subfolders, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): checksum_file(path) for path in files}


def checksum_file(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, checksums: Mapping[str, str], what: str) -> None:
    """Raise ``StoreError`` if a file in a folder is missing or has another checksum."""
    for name, expected in checksums.items():
        try:
            found = checksum_file(folder / name)
        except FileNotFoundError:
            raise StoreError(f"{what} is damaged: its file {name} is missing; {DAMAGED}") from None
        except OSError as error:
            raise StoreError(f"{what} cannot be read: {reason(error)} in {name}") from None
        if found != expected:
            raise StoreError(f"{what} is damaged: its file {name} does not have its checksum; {DAMAGED}")


def checksum_json(value: Any) -> str:
    """Return the SHA-256 checksum of a JSON document, which does not depend on its layout."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return an .npz file of arrays that ends with a checksum of all bytes before it, in the comment of the archive."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    body = (
        buffer.getvalue()[:-2] + struct.pack("<H", len(SEAL) + 32) + SEAL
    )  # the last two bytes: length of the comment
    return body + hashlib.sha256(body).digest()


def unpack_arrays(data: bytes, sealed: bool) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; raise ``ValueError`` if its checksum is wrong or, with ``sealed``, if it has none."""
    if data[-40:-32] == SEAL:
        if hashlib.sha256(memoryview(data)[:-32]).digest() != data[-32:]:
            raise ValueError("it does not have its checksum")
    elif sealed:
        raise ValueError("its checksum is missing")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """``replace_on_success`` for a file, with errors of the operating system as ``StoreError``."""
    began = False
    try:
        with replace_on_success(path) as temporary:
            began = True
            yield temporary
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        advice = "" if began else "; choose a folder you may write to"
        raise StoreError(f"{path} cannot be written: {reason(error)}{advice}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with write_atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write one JSON document atomically."""
    write_text(path, dump_json(value, indent) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON document per line, atomically."""
    write_text(path, "".join(dump_json(row) + "\n" for row in rows))


def read_json_lines(path: Path) -> list[Any]:
    """Return the documents of a file with one per line, without a last line that an interrupted write left incomplete."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_json(line.decode("utf-8")))
        except ValueError:
            if number < len(lines):
                raise StoreError(
                    f"line {number} of {path} is no JSON document: the file is damaged; {DAMAGED}"
                ) from None
    return found


def read_json(path: Path) -> Any:
    """Return the document of a JSON file in UTF-8; raise ``OSError`` or ``ValueError``, also for a file that is no regular one."""
    check_regular(path)
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Return a JSON document; raise ``ValueError`` if it is not valid, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def check_regular(path: Path) -> None:
    """Raise ``OSError`` for a named pipe, a socket or a device: to read from it could wait forever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a named pipe, a socket or a device, not a regular file", str(path))


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; see ``to_json``."""
    return json.dumps(to_json(value), allow_nan=False, indent=indent)


def to_json(value: Any, digits: int | None = None) -> Any:
    """Return a value made of what JSON has: text keys, lists, and None for numbers that are not finite.

    Arrays, tensors and their scalars become numbers and nested lists; ``digits`` rounds floats to so many significant digits.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(key): to_json(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, digits) for item in value]
    return value


def reason(error: OSError) -> str:
    """Return the operating system's reason, in lower case."""
    return (error.strerror or str(error)).lower()
