"""The ordinary clients of package registries: they know the user's mirrors and proxies, and we do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from attractor.errors import FetchError
from attractor.fetching.registry import Package

SECONDS = 1800
SUFFIXES = {"pip": (".whl",), "npm": (".tgz",), "apt": (".deb",)}
ABSENT = {
    "pip": "this Python has no pip; install it with python -m ensurepip",
    "npm": "npm is not installed; it comes with Node.js",
    "apt": "apt-get is not installed; it is the client of Debian and Ubuntu",
}


def download(package: Package, folder: Path, unpinned: bool = False) -> Path:
    """The archive of a package, in a folder that is empty before; ``unpinned`` takes whatever version the registry has."""
    words = _command(package, package.name if unpinned else package.requirement)
    try:
        # apt says what it looks for in the language of the machine; we quote it
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


def _reason(said: str) -> str:
    """The line of a client's output that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error", "e:", "npm error", "npm err"))]
    return (telling or lines or ["it did not say why"])[-1].rstrip(".")
