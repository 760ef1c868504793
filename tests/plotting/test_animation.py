"""Animations: frames, pauses, colours, and a clear word when ffmpeg is missing or fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attractor.errors import AttractorError, MissingExtraError
from attractor.plotting import Scene, animation, draw, style

Make = Callable[..., Scene]


def test_a_gif_moves_and_reports(globe_scene: Scene, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    path = draw(
        globe_scene, tmp_path / "tokens.gif", frames=5, fps=10, dpi=60, progress=lambda *call: calls.append(call)
    )
    count = len(calls)
    assert calls == [(done + 1, count) for done in range(count)]
    with Image.open(path) as image:
        assert image.n_frames == count  # pyright: ignore[reportAttributeAccessIssue]
        first = np.asarray(image.convert("RGB")).astype(int)
        assert image.info["duration"] == 100
        image.seek(count - 1)
        assert image.info["duration"] == 100 + 1000 * animation.HOLD
        last = np.asarray(image.convert("RGB")).astype(int)
    assert (first[-1, -1] == 255).all()
    assert (np.abs(first - last).max(axis=2) > 40).mean() > 0.005


def test_the_palette_knows_the_colours_of_the_tokens() -> None:
    hues = np.array([style.rgb(colour) for colour in style.PALETTE])
    palette = animation.palette(hues).astype(int)
    assert palette.shape == (256, 3)
    nearest = np.abs(palette[:, None] - np.rint(255 * hues)).max(axis=2).min(axis=0)
    assert nearest.max() <= 10


def test_an_mp4_can_be_read_back(make_scene: Make, tmp_path: Path) -> None:
    path = draw(make_scene(), tmp_path / "tokens.mp4", dpi=61, frames=3, fps=10)
    done = subprocess.run(
        [animation.ffmpeg(), "-v", "error", "-i", str(path), "-f", "null", "-"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_ffmpeg_is_one_sentence(make_scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr(animation.shutil, "which", lambda _: None)
    with pytest.raises(MissingExtraError, match="ffmpeg"):
        draw(make_scene(), tmp_path / "tokens.mp4")
    assert os.listdir(tmp_path) == []


def test_an_ffmpeg_that_fails_is_quoted(make_scene: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\necho 'no such codec' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(animation, "ffmpeg", lambda: str(broken))
    with pytest.raises(AttractorError, match="no such codec"):
        draw(make_scene(), tmp_path / "tokens.mp4", frames=3)
    assert os.listdir(tmp_path) == ["ffmpeg"]
