"""A tokenizer from nothing but ``vocab.txt``, as folders of BERT often have it: one entry a line, its number the id.

What the file does not say is read off its entries. Text keeps its case if at least one in fifty of the entries with letters has an
upper-case one: fewer are left over from something else, and nothing could ever be read as them in lower case. Entries that begin with
``##`` continue a word, and text is split as BERT's is. Where there are none the entries are not pieces of words but symbols, of molecules
or proteins say: everything between spaces is cut into the longest entries that fit, one after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import CheckpointError

NEEDED = ("[UNK]", "[CLS]", "[SEP]")
SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK|BOS|EOS|unused\d+)\]|</?[A-Za-z]+>")
CASED = 0.02  # share of entries with upper-case letters, among those with letters
LONGEST = 100_000  # characters without a space


@dataclass(frozen=True)
class Vocabulary:
    """The entries with their ids, and what they say about text: ``upper`` of ``lettered`` entries have upper-case letters."""

    entries: dict[str, int]
    upper: int
    lettered: int
    words: bool

    @classmethod
    def read(cls, file: Path) -> Vocabulary:
        entries = _entries(file)
        own = [entry for entry in entries if not SPECIAL.fullmatch(entry)]
        upper = sum(entry != entry.lower() for entry in own)
        lettered = sum(entry.lower() != entry.upper() for entry in own)
        return cls(entries, upper, lettered, any(entry.startswith("##") for entry in own))

    @property
    def lower(self) -> bool:
        """Whether text is taken to lower case."""
        return self.upper < CASED * self.lettered or not self.upper

    def note(self, stated: bool | None = None) -> str:
        """What was decided, and why; ``stated`` is what a file beside it says of the case."""
        case = "is taken to lower case" if (self.lower if stated is None else stated) else "keeps its case"
        why = f"{self.upper} of {self.lettered} entries with letters have upper-case ones"
        cut = "split into pieces of words as BERT does" if self.words else "cut into the longest symbols"
        return f"vocab.txt has no tokenizer beside it: text {case} ({why if stated is None else 'do_lower_case says so'}) and is {cut}"


def from_vocabulary(file: Path, lower: bool | None = None) -> Any:
    """A tokenizer of transformers; ``lower`` where something says whether text is taken to lower case."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    found = Vocabulary.read(file)
    entries, lower = found.entries, found.lower if lower is None else lower
    options = {} if found.words else {"continuing_subword_prefix": "", "max_input_chars_per_word": LONGEST}
    made = Tokenizer(models.WordPiece(entries, unk_token="[UNK]", **options))
    if found.words:
        made.normalizer, made.pre_tokenizer = (
            normalizers.BertNormalizer(lowercase=lower),
            pre_tokenizers.BertPreTokenizer(),
        )
    else:
        made.normalizer = normalizers.Lowercase() if lower else normalizers.Sequence([])
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(name, entries[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    known = [name for name in ("UNK", "CLS", "SEP", "PAD", "MASK") if f"[{name}]" in entries]
    return PreTrainedTokenizerFast(tokenizer_object=made, **{f"{name.lower()}_token": f"[{name}]" for name in known})


def _entries(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # an entry may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as a vocabulary: {error}") from None
    entries = {line.rstrip("\r"): index for index, line in enumerate(lines) if line.strip()}
    lost = [name for name in NEEDED if name not in entries]
    if lost:
        raise CheckpointError(
            f"{file} has no entry {lost[0]}, so it is no vocabulary of BERT: give token ids from Python"
        )
    return entries
