"""Arrays and texts from files, and checks of output paths."""

from __future__ import annotations

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
PICTURES = {  # what each kind of picture needs
    ".html": ("plotly",),
    ".png": ("matplotlib",),
    ".pdf": ("matplotlib",),
    ".svg": ("matplotlib",),
    ".gif": ("matplotlib", "PIL"),
    ".mp4": ("matplotlib", "imageio_ffmpeg"),
}


def read_array(path: Path, option: str) -> Tensor:
    """The numbers in a file, as a tensor; bool stays bool."""
    readers = {".npy": _npy, ".safetensors": _safetensors, ".csv": _csv, ".txt": _csv}
    if path.suffix.lower() not in readers:
        raise InputError(f"{option} {path}: attractor reads {READABLE} files, and never pickles")
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"{option} {path} {kind}; give a {READABLE} file")
    try:
        return readers[path.suffix.lower()](path, option)
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None


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


def check_picture(path: Path, option: str = "--plot", *, still: bool = False) -> None:
    """Refuse a picture that could not be written at the end of the run; ``still`` ones neither move nor answer."""
    from attractor.files import check_folder, check_target
    from attractor.plotting import check_suffix, static_suffix

    suffix = static_suffix(path) if still else check_suffix(check_target(path))
    for package in PICTURES.get(suffix, ()):
        if find_spec(package) is None:
            raise missing("pillow" if package == "PIL" else package, "plot")
    check_folder(check_target(path).parent, f"{option} {path}")


def check_file(path: Path, option: str) -> None:
    """Refuse a file that could not be written at the end."""
    from attractor.files import check_folder

    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    check_folder(path.parent, f"{option} {path}")


def check_store(path: Path) -> None:
    """Refuse a store that could not be made."""
    if find_spec("zarr") is None:
        raise missing("zarr", "store")
    if path.exists():
        raise InputError(
            f"--out {path} exists already: choose another path, or go on with the run in it with --resume {path}"
        )
    check_folder_to_make(path, "--out")


def check_folder_to_make(path: Path, option: str) -> None:
    """Refuse a folder that is a file, or that could neither be made nor written to."""
    from attractor.files import check_folder

    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} {path} cannot be made: {nearest} is a file, not a folder; choose another folder")
    check_folder(nearest, f"{option} {path}")


def write_pictures(
    run: Any, paths: list[Path], member: int, density: Path | None = None
) -> tuple[list[Path], Exception | None]:
    """Draw one member of the run into every file, and its density; the files written, and what stopped the next one.

    A picture that fails must not cost the report of a long run, so its error waits.
    """
    written: list[Path] = []
    for path in paths:
        try:
            run.plot(path, member=member)
        except Exception as error:
            return written, error
        written.append(path)
    if density is not None:
        from attractor.meanfield import plot_densities

        try:
            plot_densities(run.member(member), density)
        except Exception as error:
            return written, error
        written.append(density)
    return written, None


BEGINS = 24  # characters by which a text is told


@dataclass(frozen=True)
class Text:
    """A text and where it is from."""

    text: str
    place: str

    @property
    def name(self) -> str:
        """The place and how the text begins."""
        line = " ".join(self.text.split())
        return f"{self.place} ({line if len(line) <= BEGINS else line[: BEGINS - 3] + '...'!r})"


def read_file(path: Path, option: str = "--file") -> str:
    """The whole of a file."""
    if not path.is_file():
        kind = "is a folder, not a file with text" if path.is_dir() else "is not a file that can be read"
        raise InputError(f"{option} {path} {kind}")
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without the mark that some programs put first
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} {path} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def read_files(paths: Iterable[Path]) -> list[Text]:
    """The whole of every file."""
    return [Text(read_file(path), f"--file {path}") for path in paths]


def read_lines(paths: Iterable[Path]) -> list[Text]:
    """Every line that is not blank."""
    return [
        Text(line, f"line {number} of {path}")
        for path in paths
        for number, line in enumerate(read_file(path).split("\n"), 1)
        if line.strip()
    ]
