"""What a page owes to who listens to it or uses no mouse, read from its source alone: a list of faults, empty for a sound page."""

from __future__ import annotations

from html.parser import HTMLParser

PICTURES = ("plot", "tokens", "curves", "grid")  # classes of elements that scripts draw into
VOID = {"meta", "br", "hr", "img", "input", "link", "source", "wbr", "circle", "path", "col"}


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.levels: list[int] = []
        self.open: list[tuple[str, dict[str, str], list[str]]] = []
        self.ids: list[str] = []
        self.seen: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.seen.add(tag)
        self.ids += [given["id"]] if "id" in given else []
        said = given.get("aria-label", "").strip()
        if tag == "html" and not given.get("lang"):
            self.faults.append("the page does not name its language")
        if tag == "th" and given.get("scope") not in ("col", "row"):
            self.faults.append("a table header without scope")
        if tag == "img" and not given.get("alt", "").strip():
            self.faults.append("an image without alt")
        if tag == "svg" and not said and given.get("aria-hidden") != "true":
            self.faults.append("a drawing that is neither named nor hidden")
        if tag == "input" and not said:
            self.faults.append("an input without a name")
        if set(given.get("class", "").split()) & {*PICTURES} and not said:
            self.faults.append(f"a picture without words: {given['class']}")
        if given.get("role") == "img" and tag != "svg":
            self.faults.append("a picture with buttons inside is a group, no img")
        if given.get("tabindex", "0") not in ("0", "-1"):
            self.faults.append("an order of focus of its own")
        if tag not in VOID:
            self.open.append((tag, given, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        for _, _, words in self.open:
            words.append(data)

    def handle_endtag(self, tag: str) -> None:
        while self.open:
            name, given, words = self.open.pop()
            text = "".join(words).strip() or given.get("aria-label", "").strip()
            if name in ("title", "h1", "h2", "h3", "th", "button", "summary", "figcaption") and not text:
                self.faults.append(f"an empty {name}")
            if name in ("h1", "h2", "h3", "h4", "h5", "h6"):
                self.levels.append(int(name[1]))
            if name == tag:
                return


def faults(page: str) -> list[str]:
    """What is wrong with a page."""
    found = _Page(page)
    wrong = list(found.faults)
    wrong += [f"no {tag}" for tag in ("title", "main", "h1") if tag not in found.seen]
    wrong += ["more than one h1"] * (found.levels.count(1) > 1)
    if found.levels and found.levels[0] != 1:
        wrong.append("the first heading is not h1")
    steps = zip(found.levels, found.levels[1:], strict=False)
    wrong += [f"h{level} is followed by h{after}" for level, after in steps if after > level + 1]
    wrong += [f"two elements are called {name}" for name in sorted({*found.ids}) if found.ids.count(name) > 1]
    for rule in (":focus-visible {", "prefers-color-scheme: dark"):
        wrong += [] if rule in page else [f"no style for {rule.rstrip(' {')}"]
    return wrong
