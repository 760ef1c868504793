"""Opening folders, files, hub names and live models; whatever is wrong with them is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import random_model

import attractor as at
from attractor.errors import AttractorError, CheckpointError, InputError, UnsupportedError

CASES = ("GPT-2", "Llama, grouped", "BERT, MiniLM", "ViT", "DINOv2", "ESM-2", "DeepSeek V3", "T5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model("Llama, grouped").save_pretrained(tmp_path, max_shard_size="10KB")  # type: ignore[operator]
    return tmp_path


def same(one: at.models.Checkpoint, other: at.models.Checkpoint) -> None:
    for first, second in zip(one.layers, other.layers, strict=True):
        tokens = at.Tokens.gaussian(5, first.dim, seed=3)
        torch.testing.assert_close(
            at.velocity(first.attention, tokens), at.velocity(second.attention, tokens), rtol=0, atol=0
        )


@pytest.mark.parametrize("case", CASES)
def test_files_and_the_live_model_give_the_same_laws(case: str, tmp_path: Path) -> None:
    model: Any = random_model(case)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    opened = at.checkpoint(tmp_path)
    same(opened, at.checkpoint(model))
    assert opened.verify(layers=[1]).error < 1e-12


def test_a_model_with_a_head_has_the_same_laws(tmp_path: Path) -> None:
    """The tensors of a language model carry a prefix that those of its base do not."""
    from transformers import LlamaForCausalLM

    base: Any = random_model("Llama, grouped")
    whole = LlamaForCausalLM(base.config)
    whole.model.load_state_dict(base.state_dict())
    whole.save_pretrained(tmp_path)
    same(at.checkpoint(tmp_path), at.checkpoint(base))
    same(at.checkpoint(whole), at.checkpoint(base))


def test_a_file_of_the_folder_opens_it(folder: Path) -> None:
    same(at.checkpoint(folder / "config.json"), at.checkpoint(str(folder)))


def test_layers_are_a_sequence(folder: Path) -> None:
    opened = at.checkpoint(folder)
    assert [layer.index for layer in opened.layers] == [0, 1]
    assert opened.layers[-1].index == 1
    assert [layer.index for layer in opened.layers[1:]] == [1]
    assert "family='llama', layers=2, dim=32" in repr(opened)
    with pytest.raises(InputError, match="layers 0 to 1, not 2"):
        opened.layers[2]
    with pytest.raises(InputError, match="heads 0 to 3, not 4"):
        opened.layers[0].head(4)


def test_a_safe_pickle_opens(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "pickled"
    other.mkdir()
    model: Any = random_model("Llama, grouped")
    torch.save(model.state_dict(), other / "pytorch_model.bin")
    (other / "config.json").write_text((folder / "config.json").read_text())
    same(at.checkpoint(other), at.checkpoint(model))


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("mapped", [False, True])
def test_folders_older_than_model_types_open(prefix: str, mapped: bool, tmp_path: Path) -> None:
    """Without model_type the names of tensors tell; pickles of the old format are read too, and the whole model runs."""
    model: Any = random_model("BERT, MiniLM")
    model.save_pretrained(tmp_path)
    _without(tmp_path, "*.safetensors")
    stored = {prefix + name: value for name, value in model.state_dict().items()}
    torch.save(stored, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=mapped)
    file = tmp_path / "config.json"
    config = {name: value for name, value in json.loads(file.read_text()).items() if name != "model_type"}
    file.write_text(json.dumps(config))
    opened = at.checkpoint(tmp_path)
    assert "named as those of bert" in opened.notes[0]
    same(opened, at.checkpoint(model))
    ids = [3, 5, 7, 9]
    expected = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
    torch.testing.assert_close(at.trace(opened, ids, attention=False).points[-1], expected, rtol=1e-5, atol=1e-5)


class Trap:
    def __reduce__(self) -> Any:
        return (print, ("the pickle ran",))


def _with_nan(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        stored = load_file(file)
        if "layers.1.self_attn.q_proj.weight" in stored:
            stored["layers.1.self_attn.q_proj.weight"][3] = torch.nan
            save_file(stored, file, {"format": "pt"})


def _config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _whole(folder: Path) -> Path:
    """One file instead of shards."""
    stored = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    for file in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        file.unlink()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder / "model.safetensors"


def _cut(folder: Path) -> None:
    file = _whole(folder)
    file.write_bytes(file.read_bytes()[:-1000])


def _cut_shard(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])


def _renamed(index: Path) -> None:
    index.write_text(index.read_text().replace("layers.1.self_attn.q_proj", "layers.9.self_attn.q_proj"))


def _pickled(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        file.unlink()
    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")


def _without(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink()


DAMAGE = {
    "truncated": (_cut, CheckpointError, r"model\.safetensors cannot be read .* truncated"),
    "a truncated shard": (
        _cut_shard,
        CheckpointError,
        r"model-0000\d-of-0000\d\.safetensors cannot be read .* truncated",
    ),
    "a shard missing": (
        lambda folder: _without(folder, "model-00002-*"),
        CheckpointError,
        r"1 of them is missing: model-00002-of-0000\d\.safetensors",
    ),
    "a pickle that runs code": (_pickled, CheckpointError, "may run code and is not opened"),
    "NaN": (_with_nan, CheckpointError, r"layers\.1\.self_attn\.q_proj\.weight holds 32 entries"),
    "a shape against the configuration": (
        lambda folder: _config(folder, num_key_value_heads=1),
        CheckpointError,
        r"k_proj\.weight has shape \(16, 32\), the configuration calls for \(8, 32\)",
    ),
    "a layer too many": (
        lambda folder: _config(folder, num_hidden_layers=3),
        CheckpointError,
        r"no tensor layers\.2\.self_attn\.q_proj\.weight",
    ),
    "no weights": (
        lambda folder: _without(folder, "*.safetensors", "*.index.json"),
        CheckpointError,
        "holds no weights",
    ),
    "no configuration": (lambda folder: _without(folder, "config.json"), CheckpointError, "has no config.json"),
    "not JSON": (lambda folder: (folder / "config.json").write_text("{"), CheckpointError, "cannot be read as JSON"),
    "no heads": (
        lambda folder: _config(folder, num_attention_heads=0),
        CheckpointError,
        r"config\.json says num_attention_heads = 0, and a model has at least 1: the configuration is damaged",
    ),
    "no groups": (
        lambda folder: _config(folder, num_key_value_heads=0),
        CheckpointError,
        "says num_key_value_heads = 0",
    ),
    "no dimensions": (lambda folder: _config(folder, hidden_size=0), CheckpointError, "says hidden_size = 0"),
    "an index that is none": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("[]"),
        CheckpointError,
        "cannot be read as an index",
    ),
    "an index that names what is not there": (
        lambda folder: _renamed(folder / "model.safetensors.index.json"),
        CheckpointError,
        r"holds the tensor layers\.9\.self_attn\.q_proj\.(bias|weight), which it does not",
    ),
    "an index that leads elsewhere": (
        lambda folder: (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"x": "../x.safetensors"}}'
        ),
        CheckpointError,
        "outside its folder",
    ),
    "an index whose values are no names": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": 3, "y": null}}'),
        CheckpointError,
        "must give the name of a file for every tensor",
    ),
    "an index without a table": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": ["x"]}'),
        CheckpointError,
        "must give the name of a file for every tensor",
    ),
    "a configuration nested deeply": (
        lambda folder: (folder / "config.json").write_text('{"model_type":' + "[" * 100_000 + "]" * 100_000 + "}"),
        CheckpointError,
        "nested too deeply",
    ),
    "an index nested deeply": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("[" * 100_000 + "]" * 100_000),
        CheckpointError,
        "nested too deeply",
    ),
    "a billion layers": (
        lambda folder: _config(folder, num_hidden_layers=10**9),
        CheckpointError,
        r"says num_hidden_layers = 1e\+09, and a model has at most 100000",
    ),
    "a billion layers inside": (
        lambda folder: _config(folder, text_config={"num_hidden_layers": 1e9}),
        CheckpointError,
        r"says num_hidden_layers = 1e\+09, and a model has at most 100000",
    ),
    "infinitely many dimensions": (
        lambda folder: _config(folder, hidden_size=float("inf")),
        CheckpointError,
        "says hidden_size = inf, and a model has at most",
    ),
    "a named pipe as weights": (
        lambda folder: os.mkfifo(folder / "extra.safetensors"),
        CheckpointError,
        r"extra\.safetensors cannot be read: it is a named pipe",
    ),
    "an unknown family": (
        lambda folder: _config(folder, model_type="lama"),
        UnsupportedError,
        r"\(LlamaModel\) is a model of type 'lama', .* the nearest is 'llama'.*The families are .*whisper.*; to add one, write one file",
    ),
    "no model type": (
        lambda folder: _config(folder, model_type=None),
        UnsupportedError,
        r"names no model_type, and the tensors \(embed_tokens\.weight, .* add .model_type. to it, one of albert",
    ),
    "another model's tensors": (
        lambda folder: _config(folder, model_type="bert"),
        CheckpointError,
        r"no tensor whose name begins with bert\.encoder\.layer\.0\.",
    ),
}


def read(folder: Path) -> None:
    for layer in at.checkpoint(folder).layers:
        assert layer.attention


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_sentence(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, kind, message = DAMAGE[what]
    damage(folder)
    with pytest.raises(kind, match=message) as caught:
        read(folder)
    assert isinstance(caught.value, AttractorError)
    assert "\n" not in str(caught.value)
    assert "the pickle ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (
            "no-such-owner/no-such-model",
            CheckpointError,
            "not in the cache of the Hugging Face hub .* connect to the network",
        ),
        ("./no/such/folder", InputError, "no file or folder"),
        ("weights.gguf", InputError, "no file or folder"),
        (3, InputError, "not from a int"),
        (torch.nn.Linear(2, 2), InputError, "one of transformers"),
        (Path(__file__), InputError, "is not a checkpoint"),
    ],
)
def test_sources_that_are_none(source: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        at.checkpoint(source)
    assert "\n" not in str(caught.value)


def test_layers_are_read_ahead_in_order(folder: Path) -> None:
    opened = at.checkpoint(folder)
    assert [layer.index for layer in opened.layers.prefetch([1, 0, 1])] == [1, 0, 1]
    assert list(opened.layers.prefetch([])) == []
    with pytest.raises(InputError, match="layers 0 to 1, not 7"):
        list(opened.layers.prefetch([0, 7]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_entry_that_is_not_finite_is_found(dtype: torch.dtype, bad: float, folder: Path) -> None:
    name = "layers.0.self_attn.v_proj.weight"
    for file in folder.glob("*.safetensors"):
        stored = {key: value.to(dtype) for key, value in load_file(file).items()}
        if name in stored:
            stored[name][1, 2] = bad
        save_file(stored, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"v_proj\.weight holds 1 entry"):
        at.checkpoint(folder).layers[0]


@pytest.mark.parametrize("name", ["wte.weight", "h.1.mlp.c_fc.weight", "ln_f.bias"])
def test_damaged_weights_outside_attention_are_named_before_a_run(name: str, tmp_path: Path) -> None:
    """Embeddings, feed-forward parts and norms: a trace and an iteration end, from files and in memory; an audit does not read them."""
    model: Any = random_model("GPT-2")
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = float("nan")
    model.save_pretrained(tmp_path)
    for source in (tmp_path, model):
        with pytest.raises(CheckpointError, match=rf"the tensor {name} holds 1 entry that is NaN"):
            at.trace(source, [1, 2, 3])
        with pytest.raises(CheckpointError, match=rf"the tensor {name} holds 1 entry that is NaN"):
            at.iterate(source, prompts=[[1, 2, 3]], passes=2)
    assert at.audit(tmp_path, nulls=0, detail="heads", verify=False).heads


@pytest.mark.parametrize(
    ("family", "name"),
    [("GPT-2", "n_head"), ("Whisper", "decoder_attention_heads"), ("BERT, MiniLM", "num_attention_heads")],
)
def test_no_heads_by_the_names_of_the_families(family: str, name: str, tmp_path: Path) -> None:
    model: Any = random_model(family)
    model.config.save_pretrained(tmp_path)
    assert name in json.loads((tmp_path / "config.json").read_text())
    _config(tmp_path, **{name: 0})
    with pytest.raises(CheckpointError, match=f"says {name} = 0, and a model has at least 1"):
        at.checkpoint(tmp_path)


def test_weights_beyond_half_precision_are_no_damage(tmp_path: Path) -> None:
    model: Any = random_model("GPT-2")
    with torch.no_grad():
        model.wte.weight[3, 2], model.h[0].attn.c_attn.weight[1, 1] = 7e4, -8e4
    model.save_pretrained(tmp_path)
    for act in (
        lambda: at.iterate(tmp_path, prompts=[[1, 2, 3]], passes=2, dtype=torch.float16),
        lambda: at.checkpoint(tmp_path, dtype=torch.float16).layers[0],
    ):
        with pytest.raises(
            InputError, match=r"has an entry of size [78]0000, and float16 ends at 65504: take bfloat16"
        ):
            act()
    with pytest.raises(
        CheckpointError, match=r"holds 1 entry that is infinite: weights above 65504, where float16 ends"
    ):
        at.trace(model.half(), [1, 2, 3])
    assert at.iterate(tmp_path, prompts=[[1, 2, 3]], passes=1, dtype=torch.bfloat16).lengths == (3,)


def test_a_refused_pickle_is_one_sentence(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Nothing of what torch remarks about the version of the pickle is shown."""
    import pickle

    random_model("GPT-2").config.save_pretrained(tmp_path)  # type: ignore[union-attr]
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Path}, protocol=4))
    with pytest.raises(CheckpointError, match="does not load with weights_only=True"):
        at.checkpoint(tmp_path)
    assert not recwarn.list
