"""Reading JSON: damaged, deeply nested or never-ending files raise at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attractor.files import parse_json, read_json


def test_deep_nesting_is_a_value_error(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting value"):
            parse_json(text)
        (tmp_path / "deep.json").write_text(text)
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting value"):
            read_json(tmp_path / "deep.json")
    assert parse_json("[" * 50 + "]" * 50)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="named pipe"):
        read_json(tmp_path / "pipe.json")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing.json")
