"""A tokenizer from nothing but ``vocab.txt``, as folders of BERT often have it: one entry a line, its number the id.

What the file does not say is read off its entries. Upper-case entries mean that text keeps its case. Entries that begin with ``##``
continue a word, and text is split as BERT's is. Where there are none the entries are not pieces of words but symbols, of molecules or
proteins say: everything between spaces is cut into the longest entries that fit, one after the other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attractor.errors import CheckpointError

NEEDED = ("[UNK]", "[CLS]", "[SEP]")
SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK|unused\d+)\]")
LONGEST = 100_000  # characters without a space


def from_vocabulary(file: Path) -> Any:
    """A tokenizer of transformers."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    entries = _entries(file)
    own = [entry for entry in entries if not SPECIAL.fullmatch(entry)]
    lower, words = all(entry == entry.lower() for entry in own), any(entry.startswith("##") for entry in own)
    options = {} if words else {"continuing_subword_prefix": "", "max_input_chars_per_word": LONGEST}
    made = Tokenizer(models.WordPiece(entries, unk_token="[UNK]", **options))
    if words:
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
