"""A dictionary of the columns of audits and traces: one name for a quantity in the terminal, JSON, tables and pages."""

from __future__ import annotations

import re
from typing import Literal

from attractor.weights import QUANTITIES

FORMS = {
    "interaction": "W",
    "metric": "V'W",
    "reduced_interaction": "W on the range of the output",
    "reduced_metric": "V'W on the range of the output",
}
PARTS = {
    "positive": "number of positive eigenvalues of the symmetric part of {}",
    "negative": "number of negative eigenvalues of the symmetric part of {}",
    "zero": "number of its other eigenvalues, zero by rank or within rounding",
    "low": "lowest eigenvalue of the symmetric part of {}",
    "high": "highest eigenvalue of the symmetric part of {}",
    "index": "trace of the symmetric part of {} over the sum of the sizes of its eigenvalues",
    "asymmetry": "share of the skew part of {}",
    "norm": "Frobenius norm of {}",
    "trace": "trace of {}",
    "sign": "sign of the symmetric part of {}: positive, negative, semidefinite, indefinite, undetermined within rounding",
}
PLACES = {
    "model": "name of the model",
    "layer": "index of the layer, from 0",
    "name": "name of the layer",
    "head": "index of the head in its layer",
    "dim": "width of the model",
    "rank": "rank of the output of the head, the dimension of its own system",
}
LABELS = {
    "label": "regime of the head by itself, as a flow without norms and feed-forward",
    "certificate": "theorem that proves the label; empty if none does",
    "why": "reason of the label",
    "label_random_rate": "share of random heads of the same shape, under the same mask and positions, that have the label",
    "certified_random_rate": "share of them for which a theorem certifies the label",
}
VALUES = {
    "value_real": "largest real eigenvalue of O V; empty if there is none",
    "value_norm": "largest singular value of O V on the range of the output",
    "value_zeros": "number of eigenvalues of O V that are zero by rank",
    "value_stability": "stable (all real parts negative), unstable, marginal or undetermined",
    "value_index": "sum of the real parts of the eigenvalues of O V over the sum of their sizes: 1 if the head writes back what it reads "
    "in every direction, -1 if its opposite, near 0 for random heads",
    "value_relative_size": "Frobenius norm of O V over its median in the layer",
    "nearest_head": "head of the layer that is most like this one; empty if heads were not compared",
    "nearest_similarity": "smaller of the cosines of W and of O V with those of that head",
}
QUANTITY = {quantity.name: quantity.meaning for quantity in QUANTITIES}
PATTERNS = {
    "QUANTITY_random_mean": "mean of a quantity over random heads of the same shape and norms",
    "QUANTITY_random_spread": "its standard deviation over them",
    "QUANTITY_random_deviations": "(value - mean) / standard deviation",
    "QUANTITY_mismatched_mean": "mean over heads with the queries and keys of one head of the layer and the values and outputs of another",
    "QUANTITY_mismatched_spread": "its standard deviation over them",
    "QUANTITY_mismatched_deviations": "(value - mean) / standard deviation",
    "plain_QUANTITY": "the quantity without the norm, where the audit folds it in",
    "folded_QUANTITY": "the quantity with the norm folded in, where the audit does not",
    "QUANTITY_error": "error bar of quantised weights: root mean square change under rounding errors",
    "QUANTITY_error_shift": "mean change under rounding errors",
    "offset_K_index": "index of W at the rotary offset K (key minus query)",
    "offset_K_low": "lowest eigenvalue of the symmetric part of W at that offset",
    "offset_K_high": "highest eigenvalue of the symmetric part of W at that offset",
    "offset_K_change": "Frobenius norm of W(K) - W(0) over that of W(0)",
}
AUDIT = {
    **PLACES,
    **LABELS,
    **{f"{form}_{part}": text.format(of) for form, of in FORMS.items() for part, text in PARTS.items()},
    **QUANTITY,
    **VALUES,
    **PATTERNS,
}
CHANGES = {
    "moved": "larger of interaction_moved and value_moved; standardised where models were not given",
    "interaction_moved": "Frobenius norm of the change of W over that of W",
    "value_moved": "Frobenius norm of the change of O V over that of O V",
    "standardised": "mean absolute change of all quantities, each in units of its standard deviation over the heads of the first model",
}
STREAM = {
    "token_norm": "mean length of a token",
    "pairwise_distance": "mean squared distance of two tokens",
    "cosine": "mean cosine of two tokens: 1 at consensus",
    "cosine_min": "smallest cosine of two tokens",
    "sharpness": "share of the size of the tokens that is spread about their mean: 0 at consensus",
    "effective_rank": "exponential of the entropy of the spectrum of the tokens",
    "clusters": "number of groups of tokens closer than a tenth of the longest one's length",
    "energy": "half the mean of exp(cosine): e/2 at consensus",
    "first_norm": "length of the first token over the mean length of the others",
    "centred_cosine": "mean cosine of two tokens after their mean is taken away, without tokens ten times as long as the median",
    "centred_rank": "participation ratio of the spectrum of these centred tokens",
    "anisotropy": "squared length of the mean direction: the share of the common direction",
    "largest_norm": "length of the longest token over the median length",
}
SUFFIX = "_without_first"
BLOCKS = {
    "displacement": "root mean square displacement of tokens by the block",
    "attention": "root mean square of what attention adds, with the norm after it",
    "feedforward": "root mean square of what the feed-forward adds, with the norm after it",
}
HEADS = {
    "attention_entropy": "entropy of the attention weights, mean over tokens: 0 if each attends to one other",
    "relative_entropy": "that entropy over the logarithm of the number of visible keys: 1 where attention is uniform",
    "self_weight": "weight that a token gives itself, mean over tokens",
    "first_weight": "weight that all other tokens give the first: near 1 in a head with an attention sink",
    "sink_weight": "largest mean weight that a position receives from the other tokens",
    "output_norm": "root mean square of what the head adds to the stream, over that of its input",
    "expansion": "divergence of a token's velocity through its own query: negative where the head contracts",
    "log_energy": "logarithm of half the mean of exp(score) over visible pairs, under the head's own scores",
}
TRACE = {
    "block": "index of the block, from 0; -1 is the input of the first",
    "head": "index of the head in its block",
    **STREAM,
    f"MEASURE{SUFFIX}": "the measure without the first token, which may be much longer than the others",
    **BLOCKS,
    **HEADS,
}
Table = Literal["audit", "comparison", "trace"]
TABLES: dict[Table, dict[str, str]] = {"audit": AUDIT, "comparison": CHANGES, "trace": TRACE}


def list_columns(table: Table) -> dict[str, str]:
    """Return the names of all columns of a table and what they mean; QUANTITY, K and MEASURE stand for names and numbers."""
    return dict(TABLES[table])


def find_column(table: Table, name: str) -> str | None:
    """Return the entry of the dictionary that describes a column, or None."""
    known = TABLES[table]
    if name in known:
        return name
    words = {"QUANTITY": "|".join(map(re.escape, QUANTITY)), "K": r"-?\d+", "MEASURE": "|".join(map(re.escape, STREAM))}
    for pattern in known:
        for word, names in words.items():
            before, found, after = pattern.partition(word)
            if found and re.fullmatch(f"{re.escape(before)}({names}){re.escape(after)}", name):
                return pattern
    return None
