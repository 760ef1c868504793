"""The explorer's page: one HTML file, assembled from the sources in ``page/``."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

SHARED = ("random.js", "numerics.js", "theory.js")  # scripts of the page and of its workers
SCRIPTS = (*SHARED, "export.js", "scene.js", "panels.js", "app.js", "controls.js", "server.js", "models.js", "start.js")


def read_source(name: str) -> str:
    """Return one of the page's source files."""
    return files("attractor.explorer").joinpath("page", name).read_text(encoding="utf-8")


@cache
def tableau() -> dict[str, Any]:
    """The coefficients of DOP853, as the package takes them from SciPy [hairer1993solving]."""
    from scipy.integrate import DOP853

    names = ("A", "B", "C", "E3", "E5", "A_EXTRA", "C_EXTRA", "D")
    return {name: getattr(DOP853, name).tolist() for name in names}


def build_page(server: Any = None, documentation: str | None = None) -> str:
    """Return the page as one HTML document that loads nothing.

    Parameters
    ----------
    server : settings of a local server that answers the page's requests; None for a static file, whose content security policy
        allows no connection at all.
    documentation : address of the documentation's page of theorems, relative to this page; None where there is none beside it.
    """
    scripts = "\n".join(map(read_source, SCRIPTS))
    style = read_source("page.css")
    data = {
        "tableau": tableau(),
        "presets": json.loads(read_source("presets.json")),
        "shared": sum(len(read_source(name)) + 1 for name in SHARED),
        "worker": read_source("worker.js"),
        "documentation": documentation,
    }
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(scripts)}'",
            f"style-src '{_digest(style)}'",
            "worker-src blob:",
            "img-src data: blob:",
            "connect-src 'none'" if server is None else "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "SERVER": _as_script(server),
        "DATA": _as_script(data),
        "SCRIPT": scripts,
    }
    page = read_source("page.html")
    for name, text in parts.items():
        before, after = page.split(f"<!--{name}-->" if name != "POLICY" else "POLICY", 1)
        page = before + text + after
    return page


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_script(value: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
