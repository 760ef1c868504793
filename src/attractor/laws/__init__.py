"""Laws: what gives every token its velocity."""

from attractor.laws.attention import Attention
from attractor.laws.blocks import ACTIVATIONS, MLP, Affine, Block, LayerNorm, Norm, RMSNorm
from attractor.laws.circle import CircleField, circle_obstacle
from attractor.laws.closure import Closure, closure_field, closure_obstacle
from attractor.laws.equiangular import EquiangularAttention
from attractor.laws.kernels import CLASSES as KERNELS
from attractor.laws.kernels.capped import Capped
from attractor.laws.kernels.exponential import Exponential
from attractor.laws.kernels.kernel import (
    HeadNorms,
    Kernel,
    Pairing,
    Symmetry,
    exact_scores,
    has_kernel,
    kernel_named,
    list_kernels,
)
from attractor.laws.kernels.l2 import L2
from attractor.laws.kernels.linear import Linear
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.laws.kernels.softmax import Softmax
from attractor.laws.law import AbsentLaw, Law, Total
from attractor.laws.masks import Causal, Chunked, Mask, Visibility, Visible, Window
from attractor.laws.positions.absolute import Absolute
from attractor.laws.positions.alibi import Alibi
from attractor.laws.positions.combined import Combined, rotary_of
from attractor.laws.positions.position import Positions
from attractor.laws.positions.relative import Disentangled, Relative
from attractor.laws.positions.rotary import (
    DynamicRotary,
    GridRotary,
    LongRotary,
    Rotary,
    ScaledRotary,
    Temperature,
    turn_pairs,
)
from attractor.laws.schedules import Rescaled, Schedule, Stack
from attractor.laws.variants import Clip, Feature, LatentAttention, NormedAttention, NormedOutput
from attractor.laws.verification import check_velocities, is_external, merging_changes

__all__ = [
    "ACTIVATIONS",
    "KERNELS",
    "L2",
    "MLP",
    "AbsentLaw",
    "Absolute",
    "Affine",
    "Alibi",
    "Attention",
    "Block",
    "Capped",
    "Causal",
    "Chunked",
    "CircleField",
    "Clip",
    "Closure",
    "Combined",
    "Disentangled",
    "DynamicRotary",
    "EquiangularAttention",
    "Exponential",
    "Feature",
    "GridRotary",
    "HeadNorms",
    "Kernel",
    "LatentAttention",
    "Law",
    "LayerNorm",
    "Linear",
    "LongRotary",
    "Mask",
    "Norm",
    "NormedAttention",
    "NormedOutput",
    "Pairing",
    "Positions",
    "RMSNorm",
    "Relative",
    "Rescaled",
    "Rotary",
    "ScaledRotary",
    "Schedule",
    "Sigmoid",
    "Sinkhorn",
    "Softmax",
    "Stack",
    "Symmetry",
    "Temperature",
    "Total",
    "Visibility",
    "Visible",
    "Window",
    "check_velocities",
    "circle_obstacle",
    "closure_field",
    "closure_obstacle",
    "exact_scores",
    "has_kernel",
    "is_external",
    "kernel_named",
    "list_kernels",
    "merging_changes",
    "rotary_of",
    "turn_pairs",
]

globals().update(KERNELS)  # a kernel in a new file is exported without a line here
