"""Frozen dataclasses that a store can write and read back, without pickle; results as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from attractor.errors import InputError, StoreError, UnsupportedError, missing

if TYPE_CHECKING:
    import pandas

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_BARE = frozenset((type(None), bool, int, float, str, torch.dtype))  # types without tensors
_registry: dict[str, type[Record]] = {}


class Record:
    """Base class of dataclasses that ``encode`` and ``decode`` support; subclasses are registered by name."""

    record_name: ClassVar[str] = "Record"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.record_name = cls.__name__
        _registry[cls.__name__] = cls

    def citations(self) -> tuple[str, ...]:
        """Keys in ``references.bib`` of the work this object implements."""
        return ()


def encode(value: Any, arrays: dict[str, np.ndarray] | None = None) -> tuple[Any, dict[str, np.ndarray]]:
    """Turn a record (or a container of records) into JSON-ready data and a table of arrays."""
    arrays = {} if arrays is None else arrays
    return _encode(value, arrays), arrays


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, Record):
        fields = {field.name: _encode(getattr(value, field.name), arrays) for field in _fields(value)}
        return {"record": value.record_name, "fields": fields}
    if isinstance(value, torch.Tensor):
        name = f"array{len(arrays)}"
        arrays[name] = value.detach().cpu().numpy()
        return {"array": name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return {"list": [_encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): _encode(item, arrays) for key, item in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be written to a store; laws given as Python functions must be passed again on resume"
    )


def decode(data: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Rebuild what ``encode`` wrote."""
    try:
        return _decode(data, arrays)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the store is damaged: {type(error).__name__}: {error}") from error


def _decode(data: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return torch.from_numpy(np.array(arrays[data["array"]]))
    if "dtype" in data:
        return _DTYPES[data["dtype"]]
    if "list" in data:
        return tuple(_decode(item, arrays) for item in data["list"])
    if "dict" in data:
        return {key: _decode(item, arrays) for key, item in data["dict"].items()}
    name = data.get("record")
    if name not in _registry:
        raise StoreError(f"the store holds a {name!r}, which this version of attractor does not have")
    return _registry[name](**{key: _decode(item, arrays) for key, item in data["fields"].items()})


def find_missing(data: Any) -> list[str]:
    """Return the names of records in what ``encode`` wrote whose classes this process has not imported."""
    if isinstance(data, list):
        return list(dict.fromkeys(name for item in data for name in find_missing(item)))
    if not isinstance(data, dict):
        return []
    inner = find_missing(list(data.values()))
    name = data.get("record")
    return [name, *inner] if isinstance(name, str) and name not in _registry else inner


def find_modules(data: Any) -> dict[str, str]:
    """Return the modules of the classes outside this package among the records that ``encode`` wrote, by name."""
    if isinstance(data, list):
        return {name: module for item in data for name, module in find_modules(item).items()}
    if not isinstance(data, dict):
        return {}
    found, kind = find_modules(list(data.values())), _registry.get(data.get("record", ""))
    outside = kind is not None and kind.__module__.partition(".")[0] != __name__.partition(".")[0]
    return {kind.record_name: kind.__module__, **found} if kind is not None and outside else found


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors of a record, nested records included."""
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    kind = type(value)
    if kind in _BARE:
        return
    if kind is torch.Tensor or isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, Record) and dataclasses.is_dataclass(value):
        for name in _names_of(kind):
            item = getattr(value, name)
            if type(item) not in _BARE:
                _collect(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def parse_targets(targets: tuple[Any, ...]) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the floating-point type among the arguments of a method ``to``."""
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    for target in targets:
        if isinstance(target, torch.dtype):
            if target not in _DTYPES.values():
                raise InputError(f"parameters are kept in float64 or float32, not {target}")
            dtype = target
            continue
        try:
            device = torch.device(target)
        except (RuntimeError, TypeError):
            raise InputError(
                f"to takes a device such as 'cuda' and torch.float32 or torch.float64, got {target!r}"
            ) from None
    return device, dtype


def move_tensors(value: Any, device: torch.device | None, dtype: torch.dtype | None = None) -> Any:
    """Return the record with every tensor on a device, and floating-point ones in a type; the same object if they are already."""
    if all(_is_there(tensor, device, dtype) for tensor in tensors(value)):
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, (list, tuple)):
        return type(value)(move_tensors(item, device, dtype) for item in value)
    return dataclasses.replace(
        value, **{field.name: move_tensors(getattr(value, field.name), device, dtype) for field in _fields(value)}
    )


def _is_there(tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None) -> bool:
    right = dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype
    return right and (device is None or tensor.device == device)


def citations(value: Any) -> list[str]:
    """Citation keys of a record and of every record inside it, in order of appearance."""
    keys: list[str] = []
    if isinstance(value, Record):
        keys += value.citations()
        for field in _fields(value):
            keys += citations(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            keys += citations(item)
    return list(dict.fromkeys(keys))


def _fields(value: Record) -> tuple[dataclasses.Field[Any], ...]:
    return _fields_of(type(value))


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in _fields_of(kind))


@cache
def _fields_of(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(kind) if field.init)


def to_frame(rows: Iterable[Any]) -> pandas.DataFrame:
    """Return results as a pandas DataFrame with one line per row.

    Parameters
    ----------
    rows : mappings, dataclass instances, or objects whose method ``row()`` returns a mapping; the keys become columns.
    """
    try:
        import pandas
    except ImportError:
        raise missing("pandas", "pandas") from None
    return pandas.DataFrame([_to_mapping(row) for row in rows])


def _to_mapping(row: Any) -> Any:
    if callable(getattr(row, "row", None)):
        return row.row()
    return dataclasses.asdict(row) if dataclasses.is_dataclass(row) and not isinstance(row, type) else row
