"""Named files, 8-bit weights with scales, and LoRA adapters: what is opened is what was named."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import random_model

import attractor as at
from attractor.errors import CheckpointError, UnsupportedError

QUERY = "layers.0.self_attn.q_proj.weight"
IDS = [3, 9, 27, 14, 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model("Llama, grouped").save_pretrained(tmp_path / "base")  # type: ignore[operator]
    return tmp_path / "base"


def query(source: Any, layer: int = 0) -> torch.Tensor:
    return at.checkpoint(source).layers[layer].law().query  # type: ignore[attr-defined]


def change(folder: Path, name: str, **tensors: torch.Tensor) -> None:
    """Write the weights of a folder to another file, with some tensors changed."""
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, **tensors}, folder / name)


def configure(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_a_named_file_is_opened_whatever_lies_beside_it(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    change(folder, "finetuned.safetensors", **{QUERY: 2 * stored[QUERY]})
    torch.testing.assert_close(query(folder / "finetuned.safetensors"), 2 * query(folder))
    torch.testing.assert_close(query(folder / "model.safetensors"), query(folder))
    named, plain = (at.trace(place, IDS).points for place in (folder / "finetuned.safetensors", folder))
    assert float((named - plain).abs().max()) > 1e-3
    torch.save({**stored, QUERY: 3 * stored[QUERY]}, folder / "other.bin")
    torch.testing.assert_close(query(folder / "other.bin"), 3 * query(folder))


def test_files_with_the_same_tensors_are_not_mixed(folder: Path) -> None:
    change(folder, "one.safetensors")
    (folder / "model.safetensors").rename(folder / "two.safetensors")
    with pytest.raises(
        CheckpointError, match=r"in one\.safetensors and in two\.safetensors: give the path of one file"
    ):
        at.checkpoint(folder)


def test_a_folder_with_several_models_is_rejected(tmp_path: Path, folder: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"holds several models \(a\.gguf, b\.gguf\): give the path of one file"):
        at.checkpoint(tmp_path)
    (folder / "config.json").unlink()
    (folder / "foreign.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"several models \(foreign\.gguf, model\.safetensors\)"):
        at.checkpoint(folder)


def test_meta_tensors_are_said_to_be_absent() -> None:
    model = random_model("Llama, grouped").to("meta")
    with pytest.raises(UnsupportedError, match="is on the meta device: its values are offloaded"):
        at.checkpoint(model)


def test_an_encoder_alone_has_one_stack(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=16, vocab_size=64)
    model = T5EncoderModel(config).eval()
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        opened = at.checkpoint(source)
        assert opened.stacks == {"encoder": 2}
        assert opened.verify().error < 1e-12
        assert len(at.audit(opened, nulls=0).heads) == 8


def quantise(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Store the attention of layer 0 in 8 bits with scales; returns the values that they stand for."""
    stored, exact = load_file(folder / "model.safetensors"), {}
    for part in ("q", "k", "v", "o"):
        name = f"layers.0.self_attn.{part}_proj.weight"
        matrix = stored.pop(name)
        if kind == "int8 per tensor":
            scale = matrix.abs().max() / 127
            values, whole = (matrix / scale).round().to(torch.int8), scale
        elif kind == "int8 per row":
            scale = matrix.abs().amax(1, keepdim=True) / 127
            values, whole = (matrix / scale).round().to(torch.int8), scale
        else:
            rows, columns = matrix.shape
            scale = matrix.reshape(rows // 8, 8, columns // 8, 8).abs().amax((1, 3)) / 448
            whole = scale.repeat_interleave(8, 0).repeat_interleave(8, 1)
            values = (matrix / whole).to(torch.float8_e4m3fn)
        stored |= {name: values, f"{name}_scale_inv" if kind == "fp8 in blocks" else f"{name}_scale": scale}
        exact[name] = values.float() * whole
    save_file(stored, folder / "model.safetensors")
    return exact


@pytest.mark.parametrize("kind", ["int8 per tensor", "int8 per row", "fp8 in blocks"])
def test_eight_bit_weights_are_multiplied_by_their_scales(folder: Path, kind: str) -> None:
    exact = quantise(folder, kind)
    configure(folder, quantization_config={"quant_method": "fp8" if "fp8" in kind else "compressed-tensors"})
    opened = at.checkpoint(folder)
    for name, values in exact.items():
        torch.testing.assert_close(opened.tensors.read(name), values)
    assert opened.verify().error < 1e-12
    found = at.audit(opened, nulls=0)
    assert any("8 bits" in note for note in found.notes)
    first, last = found.heads[0], found.heads[-1]
    assert first.errors is not None
    assert last.errors is not None
    bar, none = first.errors["value_abscissa"], last.errors["value_abscissa"]
    assert bar is not None
    assert none is not None
    assert 0 < bar.bar < 0.1 * abs(first.quantities["value_abscissa"] or 0)
    assert none.bar == 0  # layer 1 is stored exactly
    assert at.trace(opened, IDS).points.isfinite().all()


def test_the_step_of_fp8_is_the_distance_to_the_next_number(folder: Path) -> None:
    quantise(folder, "fp8 in blocks")
    opened: Any = at.checkpoint(folder)
    stored, step = opened.tensors.stored.read(QUERY), opened.tensors.step(QUERY)
    scale = opened.tensors.read(QUERY) / stored.float()
    above = (stored.view(torch.uint8) + 1).view(torch.float8_e4m3fn).float()
    inside = (stored.float().abs() < 400) & (stored.float() != 0)
    expected = ((above - stored.float()).abs() * scale.abs()).double()
    torch.testing.assert_close(step[inside], expected[inside], rtol=1e-5, atol=0)


def test_eight_bits_without_scales_are_rejected(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, QUERY: (stored[QUERY] * 10).to(torch.int8)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"holds integers \(int8\) without a scale"):
        at.checkpoint(folder).layers[0]


@pytest.mark.parametrize(
    ("method", "name"), [("gptq", "qweight"), ("awq", "qzeros"), ("bitsandbytes", "weight.absmax")]
)
def test_packed_weights_are_rejected(folder: Path, method: str, name: str) -> None:
    change(folder, "model.safetensors", **{f"layers.0.self_attn.q_proj.{name}": torch.zeros(4, dtype=torch.int32)})
    configure(folder, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(UnsupportedError, match=rf"packed by {method} .* open the original model, or a GGUF file"):
        at.checkpoint(folder)


def write_adapter(place: Path, base: str, **settings: Any) -> dict[str, torch.Tensor]:
    """A LoRA adapter of the queries and outputs of layer 0; returns the changes of their matrices without the factor."""
    place.mkdir(exist_ok=True)
    draw = torch.Generator().manual_seed(0)
    tensors, changes = {}, {}
    for part in ("q_proj", "o_proj"):
        module = f"layers.0.self_attn.{part}"
        down, up = (torch.randn(*shape, generator=draw) for shape in ((4, 32), (32, 4)))
        tensors |= {
            f"base_model.model.model.{module}.lora_{kind}.weight": one for kind, one in (("A", down), ("B", up))
        }
        changes[f"{module}.weight"] = up @ down
    save_file(tensors, place / "adapter_model.safetensors")
    known = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": base, **settings}
    (place / "adapter_config.json").write_text(json.dumps(known))
    return changes


@pytest.mark.parametrize("where", ["named", "beside", "same folder"])
def test_an_adapter_is_merged_into_its_base(folder: Path, where: str) -> None:
    from transformers import LlamaModel

    copytree(folder, folder.parent / "plain")
    place = folder if where == "same folder" else folder.parent / "adapter"
    changes = write_adapter(place, {"named": str(folder), "beside": "somebody/base", "same folder": ""}[where])
    plain = load_file(folder / "model.safetensors")
    opened = at.checkpoint(place)
    for name, value in changes.items():
        torch.testing.assert_close(opened.tensors.read(name), plain[name] + 2.0 * value)
    assert opened.verify().error < 1e-12
    assert "2 matrices are changed" in opened.notes[-1]
    merged = LlamaModel.from_pretrained(folder.parent / "plain")
    with torch.no_grad():
        for name, value in changes.items():
            merged.get_parameter(name).add_(2.0 * value)
    torch.testing.assert_close(at.trace(place, IDS).points, at.trace(merged, IDS).points, rtol=1e-4, atol=1e-4)


def test_scalings_of_adapters(folder: Path) -> None:
    plain = load_file(folder / "model.safetensors")[QUERY]
    for settings, factor in (
        ({"use_rslora": True}, 8 / 2.0),
        ({"alpha_pattern": {"q_proj": 2}}, 2 / 4.0),
    ):
        change = write_adapter(folder.parent / "adapter", str(folder), **settings)[QUERY]
        torch.testing.assert_close(
            at.checkpoint(folder.parent / "adapter").tensors.read(QUERY), plain + factor * change
        )


def test_dora_sets_the_length_of_every_row(folder: Path) -> None:
    place = folder.parent / "adapter"
    change = write_adapter(place, str(folder), use_dora=True)[QUERY]
    tensors, sizes = load_file(place / "adapter_model.safetensors"), torch.linspace(1, 2, 32)
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = sizes
    save_file(tensors, place / "adapter_model.safetensors")
    whole = load_file(folder / "model.safetensors")[QUERY] + 2.0 * change
    expected = sizes[:, None] * whole / whole.norm(dim=1, keepdim=True)
    torch.testing.assert_close(at.checkpoint(place).tensors.read(QUERY), expected)


def test_what_an_adapter_lacks_is_one_sentence(folder: Path) -> None:
    place = folder.parent / "adapter"
    write_adapter(place, "", peft_type="PREFIX_TUNING")
    with pytest.raises(UnsupportedError, match="an adapter of type PREFIX_TUNING"):
        at.checkpoint(place)
    write_adapter(place, "")
    with pytest.raises(CheckpointError, match="does not name its base model"):
        at.checkpoint(place)
    write_adapter(place, str(folder.parent / "absent"))
    with pytest.raises(
        CheckpointError, match=r"a LoRA adapter of '.*absent', which could not be opened .*put the base"
    ):
        at.checkpoint(place)
    write_adapter(place, str(folder))
    tensors = load_file(place / "adapter_model.safetensors")
    save_file(
        {name.replace("layers.0", "layers.9"): one for name, one in tensors.items()},
        place / "adapter_model.safetensors",
    )
    with pytest.raises(CheckpointError, match=r"changes .*layers\.9.*, which its base model does not have"):
        at.checkpoint(place)
