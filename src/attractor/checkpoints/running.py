"""The whole model, and the text it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.gguf import GGUFTensors
from attractor.checkpoints.llama2c import Llama2cTensors
from attractor.checkpoints.reader import check_finite
from attractor.checkpoints.tensors import PickleFolder
from attractor.checkpoints.verification import quiet
from attractor.checkpoints.vocabulary import from_vocabulary
from attractor.errors import CheckpointError, InputError

UNUSED = ("pooler", "position_ids", "mask_token", "rotary_emb.inv_freq")  # tokens of a trace do not depend on these
TOKENIZERS = ("tokenizer*.json", "vocab*", "*.model", "*.tiktoken")


class ShortText(InputError):
    """A text of fewer than two tokens that the model knows, which have no distance."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


def whole_model(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Any:
    """The model itself, ready to run; a model in memory is taken as it is. Weights that are not finite are refused."""
    model = _base(checkpoint.model).eval() if checkpoint.model is not None else _read(checkpoint, dtype)
    for name, weights in model.named_parameters():
        check_finite(name, weights.detach())
    return model


def _read(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    from transformers import AutoModel

    kind: Any = AutoModel._model_mapping[type(checkpoint.config)]
    with quiet():
        if isinstance(checkpoint.tensors, (GGUFTensors, Llama2cTensors)):
            names = [name for name in checkpoint.tensors.names() if name.startswith("model.")]
            state = {name.removeprefix("model."): checkpoint.tensors.read(name) for name in names}
            return _loaded(checkpoint, kind, None, state_dict=state, dtype=dtype)
        if isinstance(checkpoint.tensors, PickleFolder):
            state = {name: checkpoint.tensors.read(name) for name in checkpoint.tensors.names()}
            return _loaded(checkpoint, kind, None, state_dict=state, dtype=dtype)
        folder = checkpoint.tensors.describe()
        return _loaded(checkpoint, kind, folder, local_files_only=True, trust_remote_code=False, dtype=dtype)


def _loaded(checkpoint: Checkpoint, kind: Any, place: str | None, **options: Any) -> Any:
    """The model with all its weights: what is not in the files would be drawn at random, silently."""
    try:
        model, found = kind.from_pretrained(place, config=checkpoint.config, output_loading_info=True, **options)
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


def _base(model: Any) -> Any:
    """The stack of layers inside a model with a head."""
    return getattr(model, "base_model", model)


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """The tokenizer that lies beside the weights."""
    from transformers import AutoTokenizer

    if checkpoint.model is not None:
        raise InputError("a model in memory has no tokenizer beside it: give token ids, or tokenizer=...")
    if isinstance(checkpoint.tensors, Llama2cTensors):
        return checkpoint.tensors.tokenizer()
    place = Path(checkpoint.tensors.describe())
    if place.is_dir() and not any(list(place.glob(pattern)) for pattern in TOKENIZERS):
        raise CheckpointError(
            f"{checkpoint.name} has no tokenizer beside its weights; put its files there, or give token ids from Python"
        )
    if checkpoint.config.model_type in ("bert", "electra") and _bare(place):
        return from_vocabulary(place / "vocab.txt")
    inside = {"gguf_file": place.name} if place.is_file() else {}
    try:
        with quiet():
            folder = place.parent if place.is_file() else place
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **inside)
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise CheckpointError(
            f"{checkpoint.name} has no tokenizer that can be read ({reason}); put its files there, or give token ids from Python"
        ) from None


def _bare(folder: Path) -> bool:
    """Whether there is a vocabulary and nothing that says how it is used: transformers would take every text to lower case."""
    said = ("tokenizer.json", "tokenizer_config.json")
    return (folder / "vocab.txt").is_file() and not any((folder / name).exists() for name in said)


def token_ids(
    checkpoint: Checkpoint, text: Any, tokenizer: Any = None, most: int | None = None
) -> tuple[torch.Tensor, list[str]]:
    """Token ids (n,) of a text, or of ids themselves, and what each stands for; at most the first ``most``."""
    if isinstance(text, str):
        tokenizer = tokenizer_of(checkpoint) if tokenizer is None else tokenizer
        ids = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
        _check_known(tokenizer, ids.tolist(), text)
        words = tokenizer.convert_ids_to_tokens(ids.tolist())
    else:
        ids = torch.as_tensor(text, dtype=torch.long)
        words = [str(int(index)) for index in ids.flatten()]
    if most is not None:
        ids, words = ids[:most], words[:most]
    _check_ids(checkpoint, ids)
    return ids, words


def _check_known(tokenizer: Any, ids: list[int], text: str) -> None:
    """A text of which no word is known would be traced as a row of the same token."""
    unknown, special = getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "all_special_ids", ())
    own = [index for index in ids if index == unknown or index not in special]
    if unknown is not None and own and all(index == unknown for index in own):
        start = text if len(text) < 40 else text[:37] + "..."
        raise ShortText(
            f"the tokenizer of this model knows nothing of the text {start!r}: is it of the kind it was made for?", 0
        )


def _check_ids(checkpoint: Checkpoint, ids: torch.Tensor) -> None:
    if ids.ndim != 1:
        raise InputError(f"token ids are one row of whole numbers, got the shape {tuple(ids.shape)}")
    if len(ids) < 2:
        raise ShortText(
            f"the text has {len(ids) or 'no'} token{'s' * (len(ids) != 1)}; give at least two tokens", len(ids)
        )
    longest = context_length(checkpoint.config)
    if longest is not None and len(ids) > longest:
        raise InputError(
            f"the text has {len(ids)} tokens and the model's context {longest}; cut it with max_tokens=..."
        )
    vocabulary = getattr(checkpoint.config, "vocab_size", None)
    if vocabulary is not None and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise InputError(f"token ids must lie between 0 and {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}")


def context_length(config: Any) -> int | None:
    """The longest text that the model has positions for."""
    longest = next(
        (
            value
            for name in ("max_position_embeddings", "n_positions", "seq_length")
            if (value := getattr(config, name, None))
        ),
        None,
    )
    if longest is not None and config.model_type in ("roberta", "xlm-roberta", "camembert"):
        return longest - 2  # positions begin after the padding's
    return longest
