"""Whole models and their tokenizers."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attractor import memory
from attractor.errors import AttractorError, CheckpointError, InputError, MemoryShortageError, UnsupportedError
from attractor.files import read_json
from attractor.models.checkpoints import DEPTHS, STRENGTH, Checkpoint, silence_transformers, with_eager_experts
from attractor.models.derived_tensors import AdaptedTensors
from attractor.models.gguf import GGUFTensors
from attractor.models.llama2c import Llama2cTensors
from attractor.models.structure import StructuralFamily
from attractor.models.tensors import CPU, PartTensors, PickleFolder, SafetensorsFolder, check_finite, check_range
from attractor.nn import RECORD, attach_strengths, plain_config

NEEDED = ("[UNK]", "[CLS]", "[SEP]")
SPECIAL = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK|BOS|EOS|unused\d+)\]|</?[A-Za-z]+>")
CASED = 0.02  # share of entries with upper-case letters, among those with letters
LONGEST = 100_000  # characters without a space


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a vocab.txt with their ids; ``upper`` of the ``lettered`` entries have upper-case letters."""

    entries: dict[str, int]
    upper: int
    lettered: int
    words: bool

    @classmethod
    def read(cls, file: Path) -> Vocabulary:
        entries = _read_entries(file)
        own = [entry for entry in entries if not SPECIAL.fullmatch(entry)]
        upper = sum(entry != entry.lower() for entry in own)
        lettered = sum(entry.lower() != entry.upper() for entry in own)
        return cls(entries, upper, lettered, any(entry.startswith("##") for entry in own))

    @property
    def lower(self) -> bool:
        """Whether text is converted to lower case."""
        return self.upper < CASED * self.lettered or not self.upper

    def note(self, stated: bool | None = None) -> str:
        """How text is tokenized, and why; ``stated`` is the do_lower_case of another file."""
        case = "is taken to lower case" if (self.lower if stated is None else stated) else "keeps its case"
        why = f"{self.upper} of {self.lettered} entries with letters have upper-case ones"
        cut = "split into pieces of words as BERT does" if self.words else "cut into the longest symbols"
        return f"vocab.txt has no tokenizer: text {case} ({why if stated is None else 'do_lower_case says so'}) and is {cut}"


def make_tokenizer(file: Path, lower: bool | None = None) -> Any:
    """A tokenizer of transformers from a vocab.txt; ``lower`` overrides the choice of case by the entries."""
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


def _read_entries(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # an entry may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as a vocabulary: {error}") from None
    entries = {line.rstrip("\r"): index for index, line in enumerate(lines) if line.strip()}
    lost = [name for name in NEEDED if name not in entries]
    if lost:
        raise CheckpointError(
            f"{file} has no entry {lost[0]}, so it is no vocabulary of BERT: give token ids from Python"
        )
    return entries


UNUSED = ("pooler", "position_ids", "mask_token", "rotary_emb.inv_freq")  # a trace does not depend on these
TOKENIZERS = ("tokenizer*.json", "vocab*", "*.model", "*.tiktoken")


class ShortTextError(InputError):
    """A text has fewer than two known tokens."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


PRECISIONS = {
    str(one).removeprefix("torch."): one for one in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def find_dtype(name: Any) -> torch.dtype:
    """The floating type of this name, such as "bfloat16"."""
    found = PRECISIONS.get(str(name).removeprefix("torch."))
    if found is None:
        raise InputError(f"dtype must be {', '.join(PRECISIONS)}, got {name!r}")
    return found


def own_device(checkpoint: Checkpoint) -> torch.device:
    """The device of a model in memory; the CPU for files."""
    first = None if checkpoint.model is None else next(checkpoint.model.parameters(), None)
    return CPU if first is None else first.device


def choose_run(checkpoint: Checkpoint, device: Any, dtype: Any) -> tuple[torch.device, torch.dtype]:
    """The device and the precision in which a model runs; those of a model in memory cannot be changed."""
    own = own_device(checkpoint), own_dtype(checkpoint)
    chosen = own[0] if device is None else memory.find_device(device), own[1] if dtype is None else find_dtype(dtype)
    if checkpoint.model is not None:
        for name, where, given, has in zip(("device", "dtype"), ("on", "in"), chosen, own, strict=True):
            if str(given).removesuffix(":0") != str(has).removesuffix(":0"):
                raise InputError(
                    f"the model in memory is {where} {has}; give {name}=... the same, or convert the model"
                )
    return chosen


def own_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The precision of a model: that of its weights in memory or of its configuration; float32 for quantised weights."""
    if checkpoint.model is not None:
        first = next(checkpoint.model.parameters(), None)
        return torch.float32 if first is None else first.dtype
    stored = getattr(checkpoint.config, "dtype", None)
    whole = isinstance(checkpoint.tensors, (SafetensorsFolder, PickleFolder, PartTensors, AdaptedTensors))
    return next((one for one in PRECISIONS.values() if whole and one == stored), torch.float32)


def keep_layers(checkpoint: Checkpoint, count: int | None) -> Checkpoint:
    """The first ``count`` layers of each stack of a model, as a model of its own, of which only these are loaded."""
    if count is None:
        return checkpoint
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"layers must be a number of layers, at least 1, got {count!r}")
    config = checkpoint.config
    depths = {name: depth for name in DEPTHS if isinstance(depth := getattr(config, name, None), int) and depth > 0}
    if depths and count > max(depths.values()):
        raise InputError(f"{checkpoint.name} has {max(depths.values())} layers, and {count} were asked for")
    if checkpoint.model is not None or not depths or getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedError(
            f"a part of the layers of {checkpoint.name} cannot be taken: "
            + ("it is in memory already" if checkpoint.model is not None else "its layers depend on their number")
        )
    if not hasattr(config, "to_dict"):
        raise UnsupportedError(
            f"a part of the layers of {checkpoint.name} cannot be taken: it is a run of attractor train"
        )
    shorter = copy.deepcopy(config)
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) in depths.values() and "layer" in name:
            setattr(shorter, name, value[:count])  # one entry for each layer
    try:
        for name, depth in depths.items():
            setattr(shorter, name, min(depth, count))
    except (AttributeError, NotImplementedError):
        raise UnsupportedError(
            f"the layers of {checkpoint.name} depend on each other, so no part can be taken"
        ) from None
    note = f"only the first {count} of {max(depths.values())} layers were taken"
    return replace(checkpoint, config=shorter, notes=(*checkpoint.notes, note))


def count_parameters(config: Any) -> int:
    """The number of parameters of a model, from its configuration alone."""
    from transformers import AutoModel

    with silence_transformers(), torch.device("meta"):
        return sum(part.numel() for part in AutoModel.from_config(copy.deepcopy(config)).parameters())


def check_memory(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
    """Raise before a model is loaded that does not fit; the message says which precision or how many layers would.

    The estimate is the size of the parameters in ``dtype``; where the weights are converted or merged when they are read, they are
    in memory twice. A model that runs on a GPU passes through main memory.
    """
    if device.type != "cpu":
        check_memory(checkpoint, dtype, CPU)
    free = memory.available(device)
    if checkpoint.model is not None or free is None:
        return
    try:
        count = count_parameters(checkpoint.config)
    except Exception:  # not every configuration builds a model without weights; then nothing is known before loading
        return
    direct = isinstance(checkpoint.tensors, SafetensorsFolder) and checkpoint.tensors.only is None
    twice = 0 if direct or device.type != "cpu" else 4  # bytes of a parameter as it is read
    needed = count * (dtype.itemsize + twice)
    if needed <= free:
        return
    narrow = next(
        (
            name
            for name, one in PRECISIONS.items()
            if one.itemsize < dtype.itemsize and count * (one.itemsize + twice) <= free
        ),
        None,
    )
    advice = [f"in {narrow} it would fit"] if narrow else []
    fit = _count_fitting(checkpoint, free / (dtype.itemsize + twice))
    advice += [f"its first {fit} layers would fit (layers={fit})"] if fit else []
    raise MemoryShortageError(
        f"{checkpoint.name} has {count:,} parameters, which need about {memory.format_size(needed)} in "
        f"{str(dtype).removeprefix('torch.')}, and {memory.format_size(free)} are free on {device.type}; "
        + (" and ".join(advice) or "no precision and no number of layers would fit")
    )


def _count_fitting(checkpoint: Checkpoint, parameters: float) -> int:
    """The number of layers of a model that has at most so many parameters; 0 if it is not known."""
    try:
        one, two = (count_parameters(keep_layers(checkpoint, count).config) for count in (1, 2))
    except AttractorError:
        return 0
    return max(0, 1 + int((parameters - one) / (two - one))) if two > one and parameters >= one else 0


def load_model(checkpoint: Checkpoint, dtype: torch.dtype | None = None, device: torch.device = CPU) -> Any:
    """Load the whole model for inference, in its own precision by default; raises if a weight is not finite or if it does not fit. A
    model in memory is returned as it is."""
    dtype = own_dtype(checkpoint) if dtype is None else dtype
    if checkpoint.model is None:
        check_memory(checkpoint, dtype, device)
    if checkpoint.model is not None:
        model = _get_base(checkpoint).eval()
    else:
        model = _attach_refinement(checkpoint, _load(checkpoint, dtype)).to(device)
    for name, weights in model.named_parameters():
        if checkpoint.model is None and weights.dtype == dtype:
            _check_cast(checkpoint, name, weights.detach())
        check_finite(name, weights.detach())
    return model


def _attach_refinement(checkpoint: Checkpoint, model: Any) -> Any:
    """Refine a model as its files say."""
    names = [name for name in checkpoint.tensors.names() if name.endswith(STRENGTH)]
    if not names or not checkpoint.family.stores_refinements:
        return model
    if getattr(model.config, RECORD, None) is None:
        raise CheckpointError(
            f"{checkpoint.name} has strengths of a refinement, and its config.json does not say of which kind"
        )
    return attach_strengths(model, {name: checkpoint.tensors.read(name) for name in names}, checkpoint.name).eval()


def _check_cast(checkpoint: Checkpoint, name: str, weights: torch.Tensor) -> None:
    """Raise if a weight that is finite in the file became infinite in float16."""
    if weights.dtype != torch.float16 or bool(torch.isfinite(weights).all()):
        return
    near = [stored for stored in checkpoint.tensors.names() if stored == name or stored.endswith("." + name)]
    if len(near) == 1:
        check_range(near[0], checkpoint.tensors.read(near[0]), weights.dtype)


def _load(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    from transformers import AutoModel

    own = checkpoint.family.load(checkpoint.config, dtype)
    if own is not None:
        return own
    with silence_transformers():
        kind: Any = AutoModel._model_mapping[type(checkpoint.config)]
        if isinstance(checkpoint.tensors, (GGUFTensors, Llama2cTensors)):
            names = [name for name in checkpoint.tensors.names() if name.startswith("model.")]
            state = {name.removeprefix("model."): checkpoint.tensors.read(name) for name in names}
            return _from_pretrained(checkpoint, kind, None, state_dict=state, dtype=dtype)
        whole = isinstance(checkpoint.tensors, SafetensorsFolder) and checkpoint.tensors.only is None
        if not whole:
            state = {name: checkpoint.tensors.read(name) for name in checkpoint.tensors.names()}
            return _from_pretrained(checkpoint, kind, None, state_dict=state, dtype=dtype)
        folder = checkpoint.tensors.describe()
        return _from_pretrained(checkpoint, kind, folder, local_files_only=True, trust_remote_code=False, dtype=dtype)


def _from_pretrained(checkpoint: Checkpoint, kind: Any, place: str | None, **options: Any) -> Any:
    """Load a model; raises if a weight is missing, which transformers would initialise at random."""
    try:
        config = with_eager_experts(checkpoint.config, options["dtype"])
        model, found = kind.from_pretrained(place, config=config, output_loading_info=True, **options)
    except RuntimeError as error:
        if "size" not in str(error):
            raise
        raise CheckpointError(
            f"tensors of {checkpoint.name} have other shapes than its configuration says, outside attention too: "
            "compare config.json with the weights"
        ) from None
    missing = sorted(name for name in found["missing_keys"] if not any(word in name for word in UNUSED))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{checkpoint.name} has no tensor {missing[0]}{more}: the model cannot be run")
    return model.eval()


def _get_base(checkpoint: Checkpoint) -> Any:
    """A model in memory without its head, where its family tells the parts of the model without it."""
    from transformers import AutoModel

    model = checkpoint.model
    if isinstance(checkpoint.family, StructuralFamily) or not hasattr(model, "config"):
        return model
    kinds: Any = AutoModel._model_mapping
    own = kinds.get(type(plain_config(model.config)), ())
    return model if isinstance(model, own) else getattr(model, "base_model", model)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load the tokenizer of a checkpoint."""
    from transformers import AutoTokenizer

    if getattr(checkpoint.config, "tokenizer", None) is not None:
        return checkpoint.config.tokenizer
    if checkpoint.model is not None:
        raise InputError("a model in memory has no tokenizer: give token ids, or tokenizer=...")
    if isinstance(checkpoint.tensors, Llama2cTensors):
        return checkpoint.tensors.tokenizer()
    tensors = checkpoint.tensors
    place = Path(tensors.describe())
    if isinstance(tensors, AdaptedTensors) and not any(list(place.glob(pattern)) for pattern in TOKENIZERS):
        place = Path(tensors.base.describe())
    if place.is_file() and not isinstance(tensors, GGUFTensors):
        place = place.parent
    if place.is_dir() and not any(list(place.glob(pattern)) for pattern in TOKENIZERS):
        raise CheckpointError(
            f"{checkpoint.name} has no tokenizer beside its weights; put its files there, or give token ids from Python"
        )
    options: dict[str, Any] = {"gguf_file": place.name} if place.is_file() else {}
    if _lacks_tokenizer(checkpoint, place):
        stated = _read_lower_case(place)
        if not (place / "tokenizer_config.json").exists():
            return make_tokenizer(place / "vocab.txt", stated)
        if stated is None:  # transformers would convert every text to lower case
            options["do_lower_case"] = Vocabulary.read(place / "vocab.txt").lower
    try:
        with silence_transformers():
            folder = place.parent if place.is_file() else place
            found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
            if isinstance(tensors, GGUFTensors) and tensors.field("tokenizer.ggml.add_bos_token", False):
                _begin_texts(found, int(tensors.field("tokenizer.ggml.bos_token_id")))
            return found
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise CheckpointError(
            f"{checkpoint.name} has no tokenizer that can be read ({reason}); put its files there, or give token ids from Python"
        ) from None


def _begin_texts(tokenizer: Any, first: int) -> None:
    """Let every text begin with the token that a GGUF file demands, which transformers leaves out."""
    from tokenizers.processors import TemplateProcessing

    if tokenizer("a")["input_ids"][:1] != [first]:
        name = tokenizer.convert_ids_to_tokens(first)
        single, pair = f"{name} $A", f"{name} $A {name}:1 $B:1"
        made = TemplateProcessing(single=single, pair=pair, special_tokens=[(name, first)])
        tokenizer.backend_tokenizer.post_processor = made


def tokenizer_notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Notes on the tokenizer, where it was derived from a vocab.txt."""
    place = Path(checkpoint.tensors.describe())
    if checkpoint.model is not None or not _lacks_tokenizer(checkpoint, place):
        return ()
    stated = _read_lower_case(place)
    alone = not (place / "tokenizer_config.json").exists()
    return (Vocabulary.read(place / "vocab.txt").note(stated),) if alone or stated is None else ()


def _lacks_tokenizer(checkpoint: Checkpoint, folder: Path) -> bool:
    """Whether a BERT or ALBERT model has a vocab.txt and neither tokenizer.json nor a SentencePiece model."""
    kind = checkpoint.config.model_type in ("bert", "electra", "albert") and not (folder / "spiece.model").exists()
    return kind and (folder / "vocab.txt").is_file() and not (folder / "tokenizer.json").exists()


def _read_lower_case(folder: Path) -> bool | None:
    """The do_lower_case of the configuration files, if any."""
    for name in ("tokenizer_config.json", "config.json"):
        try:
            found = read_json(folder / name).get("do_lower_case")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(found, bool):
            return found
    return None


def tokenize(
    checkpoint: Checkpoint, text: Any, tokenizer: Any = None, most: int | None = None
) -> tuple[torch.Tensor, list[str]]:
    """Token ids (n,) of a text, or given ids, and the tokens as strings; at most the first ``most``."""
    if isinstance(text, str):
        tokenizer = load_tokenizer(checkpoint) if tokenizer is None else tokenizer
        ids = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
        _check_known(tokenizer, ids.tolist(), text)
        words = tokenizer.convert_ids_to_tokens(ids.tolist())
    else:
        ids = _read_ids(text)
        words = [str(int(index)) for index in ids.flatten()]
    if most is not None:
        ids, words = ids[:most], words[:most]
    _check_ids(checkpoint, ids)
    return ids, words


def _read_ids(given: Any) -> torch.Tensor:
    try:
        ids = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is None or (ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)):
        kind = type(given).__name__ if ids is None else str(ids.dtype).removeprefix("torch.")
        raise InputError(
            f"a text is one string or one row of whole numbers, its token ids; got {kind}; give several texts one by one"
        )
    return ids.long()


def _check_known(tokenizer: Any, ids: list[int], text: str) -> None:
    """Raise if every token of a text is unknown."""
    unknown, special = getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "all_special_ids", ())
    own = [index for index in ids if index == unknown or index not in special]
    if unknown is not None and own and all(index == unknown for index in own):
        start = text if len(text) < 40 else text[:37] + "..."
        raise ShortTextError(
            f"the tokenizer of this model has no token for the text {start!r}: is it of the kind it was made for?", 0
        )


def _check_ids(checkpoint: Checkpoint, ids: torch.Tensor) -> None:
    if ids.ndim != 1:
        raise InputError(f"token ids are one row of whole numbers, got the shape {tuple(ids.shape)}")
    if len(ids) < 2:
        raise ShortTextError(
            f"the text has {len(ids) or 'no'} token{'s' * (len(ids) != 1)}; give at least two tokens", len(ids)
        )
    config = read_text_config(checkpoint.config)
    longest = context_length(config)
    if longest is not None and len(ids) > longest:
        raise InputError(
            f"the text has {len(ids)} tokens and the model's context {longest}; cut it with max_tokens=..."
        )
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is not None and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise InputError(f"token ids must lie between 0 and {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}")


def read_text_config(config: Any) -> Any:
    """The configuration of the part of a model that reads text."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def context_length(config: Any) -> int | None:
    """The largest number of tokens that the model has positions for; None if there is no bound."""
    longest = next(
        (
            value
            for name in ("max_position_embeddings", "n_positions", "seq_length")
            if (value := getattr(config, name, None)) and value > 0
        ),
        None,
    )
    if longest is not None and config.model_type in (
        "roberta",
        "xlm-roberta",
        "camembert",
        "data2vec-text",
        "markuplm",
    ):
        return longest - 2  # positions start after the padding index
    return longest
