"""Frames become a film: a GIF by pillow, an MP4 by ffmpeg."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from attractor.errors import AttractorError, missing
from attractor.pictures import style
from attractor.pictures.selection import some

# The last frame stays for a while, so that one sees how it ended before it starts again.
HOLD = 1.5


def write_gif(pictures: Iterator[np.ndarray], path: Path, fps: int, hues: np.ndarray) -> None:
    """One palette for all frames, so that colours do not flicker."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("pillow", "plot") from None
    colours = palette(hues)
    ground = Image.new("P", (1, 1))
    ground.putpalette(colours.ravel().tolist())
    drawn = []
    for pixels in pictures:
        image = Image.fromarray(pixels).quantize(palette=ground, dither=Image.Dither.NONE)
        # pillow takes a nearly white for white, which shows on a white page
        numbers = np.where((pixels == 255).all(axis=2), 0, np.asarray(image)).astype(np.uint8)
        exact = Image.fromarray(numbers)
        exact.putpalette(colours.ravel().tolist())
        drawn.append(exact)
    pause = max(20, round(1000 / fps))
    pauses = [pause] * (len(drawn) - 1) + [pause + round(1000 * HOLD)]
    drawn[0].save(path, format="GIF", save_all=True, append_images=drawn[1:], duration=pauses, loop=0, optimize=False)


def palette(hues: np.ndarray) -> np.ndarray:
    """The 256 colours (256, 3) of a GIF: white first, the globe, the greys of ink, and the tokens' hues faded in steps."""
    kinds = np.unique(np.rint(hues * 15) / 15, axis=0)
    kinds = np.concatenate([kinds[some(len(kinds), 24)], [style.rgb(style.PALETTE[0]), style.rgb(style.PALETTE[1])]])
    light, shade = style.rgb(style.GLOBE_LIGHT), style.rgb(style.GLOBE_SHADE)
    globe = shade + np.linspace(0, 1, 24)[:, None] * (light - shade)
    ink = style.rgb(style.INK) + np.linspace(0, 1, 22)[:, None] * (light - style.rgb(style.INK))
    steps = (256 - len(globe) - len(ink)) // len(kinds)
    middle = (2 * light + shade) / 3
    faded = [kinds + part * (middle - kinds) for part in np.linspace(0, 1, steps, endpoint=False)]
    colours = np.concatenate([globe[::-1], ink, *faded])
    return np.rint(255 * np.resize(colours, (256, 3))).astype(np.uint8)


def write_mp4(pictures: Iterator[np.ndarray], path: Path, fps: int) -> None:
    """H.264 in the pixel format that every player knows."""
    program = ffmpeg()
    first = next(pictures)
    height, width = first.shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    coding = ["-an", "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [program, "-y", "-loglevel", "error", *source, *coding, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        # a broken pipe means that ffmpeg has given up; it says why on its error stream
        with suppress(BrokenPipeError):
            last = first
            process.stdin.write(first.tobytes())
            for last in pictures:
                process.stdin.write(last.tobytes())
            for _ in range(round(HOLD * fps)):
                process.stdin.write(last.tobytes())
        with suppress(BrokenPipeError):
            process.stdin.close()
        complaint = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stderr.close()
        if process.poll() is None and sys.exception() is not None:
            process.kill()
        failed = process.wait() != 0
    if failed:
        raise AttractorError(f"ffmpeg could not write the film: {complaint[-1] if complaint else 'no reason given'}")


def ffmpeg() -> str:
    """The ffmpeg that comes with imageio-ffmpeg, or the system's."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        found = shutil.which("ffmpeg")
    if found is None:
        raise missing("ffmpeg (it comes with the package imageio-ffmpeg)", "plot")
    return found
