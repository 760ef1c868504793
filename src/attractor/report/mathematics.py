r"""Formulas as MathML, which browsers draw without scripts or a network, and words that contain formulas.

The converter hands over its tree and we write it out: its own text form undoes the escaping of what stands in ``\text{...}``.
"""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring

from attractor.errors import missing

if TYPE_CHECKING:
    from markupsafe import Markup

# Words are written by us; `code` and \( formulas \) are the only two things that are not plain in them.
PARTS = re.compile(r"\\\((.*?)\\\)|`([^`]+)`", re.DOTALL)


def mathematics(latex: str, block: bool = False) -> Markup:
    """A formula; one that cannot be read stays as it was written."""
    try:
        from latex2mathml.converter import convert_to_element
        from markupsafe import Markup
    except ImportError:
        raise missing("latex2mathml", "report") from None
    try:
        tree = convert_to_element(latex, display="block" if block else "inline")
    except Exception:
        return Markup("<code>{}</code>").format(latex)
    for element in tree.iter():
        element.text = None if element.text is None else unescape(element.text)
    return Markup(written(tree))


def written(tree: Element) -> str:
    """The tree as text, everything in it escaped."""
    return tostring(tree, encoding="unicode", short_empty_elements=False)


def words(text: str) -> Markup:
    r"""Plain words, escaped, with formulas between \( and \) and code between backticks."""
    try:
        from markupsafe import Markup, escape
    except ImportError:
        raise missing("jinja2", "report") from None
    parts, place = Markup(""), 0
    for found in PARTS.finditer(text):
        parts += escape(text[place : found.start()])
        latex, code = found.groups()
        parts += mathematics(latex) if latex is not None else Markup("<code>{}</code>").format(code)
        place = found.end()
    return parts + escape(text[place:])
