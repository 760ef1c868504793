"""Checkpoints are tested offline."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported
sys.path.insert(0, str(Path(__file__).parent))  # `from small_models import ...` under --import-mode=importlib
