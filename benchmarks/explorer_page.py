"""Measures the explorer's page in Chromium: time to the first motion, frames per second, memory.

``python -m benchmarks.explorer_page --minutes 10`` prints one JSON object. Without a GPU the page draws on a plain canvas;
``--webgl`` measures WebGL in software instead. ``fastest frame`` is the shortest time that the page needs for one of thirty
frames (on a plain canvas the browser paints it later); ``frames per second`` is what the whole browser reaches at 1280 x 820
pixels. All times depend on what else the machine does, so the load is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from attractor.explorer import build_page

SYSTEM = "{ system: { dim: 3, start: { kind: 'uniform', tokens: N, seed: 0 }, beta: 9, until: 1e4 } }"
FRAME = """async () => {
  setPlaying(false);
  const gl = scene.gl, pixel = new Uint8Array(4);
  const draw = () => { drawScene(); if (gl) gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel); };
  draw(); draw();
  const times = [];
  for (let k = 0; k < 30; k++) { goTo(100 + 5 * k); const begin = performance.now(); draw(); times.push(performance.now() - begin); }
  goTo(0);
  setPlaying(true);
  let count = 0;
  const begin = performance.now();
  await new Promise((resolve) => {
    const step = () => { count++; performance.now() - begin < 5000 ? requestAnimationFrame(step) : resolve(); };
    requestAnimationFrame(step);
  });
  const run = new Integration(state.system, [0, 1]), spent = [], each = run.n > 500 ? 1 : 5;
  for (let k = 0; k < 60; k++) {
    const from = performance.now();
    for (let i = 0; i < each; i++) run.lifted(run.y, run.fEnd);
    spent.push((performance.now() - from) / each);
  }
  return { evaluation: Math.min(...spent), milliseconds: Math.min(...times), rate: count / (performance.now() - begin) * 1000 };
}"""


def wait(page: Any, condition: str, seconds: float = 120.0) -> None:
    """Wait for an expression; the policy of the page forbids the waiting functions of playwright."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"() => Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(condition)
        page.wait_for_timeout(20)


def measure(minutes: float, webgl: bool) -> dict[str, Any]:
    """Open the page and measure it."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--enable-precise-memory-info"]
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "explorer.html"
        path.write_text(build_page(), encoding="utf-8")
        found["bytes"] = path.stat().st_size
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 820})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time of the page's thread
        page.goto(path.as_uri() + ("?webgl" if webgl else ""))
        wait(page, "typeof state !== 'undefined' && state.moved")
        used = {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}
        found["first motion, milliseconds"] = round(page.evaluate("() => state.moved"))
        found["first motion, milliseconds of CPU time of the page"] = round(1000 * used["TaskDuration"])
        for tokens in (256, 1024):
            page.evaluate(f"() => openState({SYSTEM.replace('N', str(tokens))})")
            wait(page, "!state.next && state.run.frames.length > 300")
            row = page.evaluate(FRAME)
            found[f"{tokens} tokens"] = {
                "fastest frame, milliseconds": round(row["milliseconds"], 1),
                "fastest evaluation of the velocity, milliseconds": round(row["evaluation"], 2),
                "frames per second": round(row["rate"], 1),
            }
        memory, end = [], time.monotonic() + 60 * minutes
        page.evaluate(f"() => openState({SYSTEM.replace('N', '256')})")
        while time.monotonic() < end:
            # play, and change the system again and again
            page.evaluate("() => { change((s) => { s.beta = 2 + 8 * Math.random(); }); goTo(0); setPlaying(true); }")
            page.wait_for_timeout(5000)
            memory.append(page.evaluate("() => performance.memory.usedJSHeapSize / 1e6"))
        if memory:
            third = max(1, len(memory) // 3)
            found["minutes"] = minutes
            found["heap in the first and last third, MB, smallest"] = [
                round(min(memory[:third])),
                round(min(memory[-third:])),
            ]
        browser.close()
    return found


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="length of the run that watches memory")
    parser.add_argument("--webgl", action="store_true", help="take WebGL also where it is computed in software")
    given = parser.parse_args()
    print(json.dumps(measure(given.minutes, given.webgl), indent=2))


if __name__ == "__main__":
    main()
