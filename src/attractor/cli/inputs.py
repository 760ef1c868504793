"""Arrays and texts from files, and checks of output paths."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError, missing

if TYPE_CHECKING:
    from torch import Tensor

READABLE = ".npy, .safetensors or .csv"
ROWS = re.compile(r"(?:[-+0-9.eE,;| ]|nan|inf)+")  # numbers in place of a file
FIGURE_PACKAGES = {
    ".html": ("plotly",),
    ".png": ("matplotlib",),
    ".pdf": ("matplotlib",),
    ".svg": ("matplotlib",),
    ".gif": ("matplotlib", "PIL"),
    ".webp": ("matplotlib", "PIL"),
    ".mp4": ("matplotlib", "imageio_ffmpeg"),
}


def read_array(path: Path, option: str) -> Tensor:
    """Read a file of numbers into a float64 tensor, or the rows that are given in its place; booleans stay boolean."""
    readers = {".npy": _npy, ".safetensors": _safetensors, ".csv": _csv, ".txt": _csv}
    if path.suffix.lower() not in readers:
        if ROWS.fullmatch(str(path)):
            return _rows(str(path), option)
        raise InputError(
            f"{option} {path}: expected a {READABLE} file (pickles are never read), or rows such as '1,0;0,1'"
        )
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"{option} {path} {kind}; give a {READABLE} file")
    try:
        return readers[path.suffix.lower()](path, option)
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _rows(text: str, option: str) -> Tensor:
    """Rows separated by semicolons; several matrices (heads) are separated by |."""
    import torch

    try:
        parts = [[[float(entry) for entry in row.split(",")] for row in part.split(";")] for part in text.split("|")]
    except ValueError as error:
        reason = str(error).partition(": ")[2]
        raise InputError(f"{option} must be rows of numbers such as '1,0;0,1'; {reason} is not a number") from None
    if len({(len(part), *map(len, part)) for part in parts}) != 1 or len(set(map(len, parts[0]))) != 1:
        raise InputError(f"{option} must have rows of one length, and matrices of one size")
    found = torch.tensor(parts, dtype=torch.float64)
    if not torch.isfinite(found).all():
        raise InputError(f"{option} must be finite numbers, got {text}")
    return found if len(parts) > 1 else found[0]


def _npy(path: Path, option: str) -> Tensor:
    import numpy as np
    import torch

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "pickle" in str(error):
            raise InputError(
                f"{option} {path} holds pickled objects, which are never read; save plain numbers with numpy.save"
            ) from None
        raise InputError(
            f"{option} {path} is not a whole .npy file ({' '.join(str(error).split())}); write it again"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = array.dtype if isinstance(array, np.ndarray) else "an archive"
        raise InputError(f"{option} {path} must hold an array of real numbers, got {kind}")
    return torch.from_numpy(array if array.dtype.kind in "b" else array.astype(np.float64))


def _csv(path: Path, option: str) -> Tensor:
    import numpy as np
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # an empty file is an error of ours, not a warning
            array = np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(
            f"{option} {path} must be rows of numbers separated by commas: {' '.join(str(error).split())}"
        ) from None
    if array.size == 0:
        raise InputError(f"{option} {path} is empty; give one row of numbers for each token")
    return torch.from_numpy(array)


def _safetensors(path: Path, option: str) -> Tensor:
    try:
        from safetensors import SafetensorError  # pyright: ignore[reportMissingImports]
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise missing("safetensors", "checkpoints") from None
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{option} {path} is not a whole .safetensors file ({error})") from None
    wanted = option.lstrip("-").removesuffix("-file")
    if wanted not in tensors and len(tensors) != 1:
        names = ", ".join(sorted(tensors)) or "nothing"
        raise InputError(f"{option} {path} holds {names}; it must hold one tensor, or one called {wanted!r}")
    tensor = tensors[wanted] if wanted in tensors else next(iter(tensors.values()))
    return tensor if not tensor.is_floating_point() else tensor.double()


def check_figure(path: Path, option: str = "--plot", *, still: bool = False) -> None:
    """Raise if a figure could not be written; ``still`` excludes animations and interactive pages."""
    from attractor.files import check_folder, check_target
    from attractor.plotting import check_suffix, static_suffix

    suffix = static_suffix(path) if still else check_suffix(check_target(path))
    for package in FIGURE_PACKAGES.get(suffix, ()):
        if find_spec(package) is None:
            raise missing("pillow" if package == "PIL" else package, "plot")
    check_folder(check_target(path).parent, f"{option} {path}")


def check_file(path: Path, option: str) -> None:
    """Raise if a file could not be written."""
    from attractor.files import check_folder

    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    check_folder(path.parent, f"{option} {path}")


def check_store(path: Path) -> None:
    """Raise if a store could not be created."""
    if find_spec("zarr") is None:
        raise missing("zarr", "store")
    if path.exists():
        raise InputError(f"--out {path} exists already: choose another path, or continue the run with --resume {path}")
    check_new_folder(path, "--out")


def check_new_folder(path: Path, option: str) -> None:
    """Raise if a folder could not be created or written to."""
    from attractor.files import check_folder

    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} {path} cannot be created: {nearest} is a file, not a folder; choose another folder")
    check_folder(nearest, f"{option} {path}")


def write_figures(
    run: Any,
    paths: list[Path],
    member: int,
    density: Path | None = None,
    clock: str = "time",
    attention: Path | None = None,
    **options: Any,
) -> tuple[list[Path], Exception | None]:
    """Draw one member of a run into every file, its density and its attention weights; ``options`` are those of ``Trajectory.plot``.

    Returns the files written, and the first error or None: a figure that fails must not prevent the report of a long run.
    """
    done: list[Path] = []
    for path in paths:
        try:
            run.plot(path, member=member, clock=clock, **options)
        except Exception as error:
            return done, error
        done.append(path)
    if density is not None:
        from attractor.meanfield import plot_densities

        try:
            plot_densities(run.member(member), density)
        except Exception as error:
            return done, error
        done.append(density)
    if attention is not None:
        snapshots = options.get("snapshots")
        try:
            times = snapshots if isinstance(snapshots, list) else None
            run.plot_attention(attention, times=times, member=member, title=options.get("title"))
        except Exception as error:
            return done, error
        done.append(attention)
    return done, None


EXCERPT = 24  # characters of a text that identify it in messages


@dataclass(frozen=True)
class Text:
    """A text and its source."""

    text: str
    place: str

    @property
    def name(self) -> str:
        """The source and the beginning of the text."""
        line = " ".join(self.text.split())
        return f"{self.place} ({line if len(line) <= EXCERPT else line[: EXCERPT - 3] + '...'!r})"


def read_file(path: Path, option: str = "--file") -> str:
    """Read a text file in UTF-8."""
    if not path.is_file():
        kind = "is a folder, not a file with text" if path.is_dir() else "is not a file that can be read"
        raise InputError(f"{option} {path} {kind}")
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} {path} is not text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def read_files(paths: Iterable[Path]) -> list[Text]:
    """Read every file as one text."""
    return [Text(read_file(path), f"--file {path}") for path in paths]


def read_lines(paths: Iterable[Path]) -> list[Text]:
    """Read every line that is not blank as a text."""
    return [
        Text(line, f"line {number} of {path}")
        for path in paths
        for number, line in enumerate(read_file(path).split("\n"), 1)
        if line.strip()
    ]
