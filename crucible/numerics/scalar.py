"""The whole contract as one NumPy oracle: slow, obviously right, sharing no code with any kernel."""

from crucible.numerics.fma import fma32
from crucible.numerics.scalar_exact import cos_sin, reciprocal_root, rope_frequencies
from crucible.numerics.scalar_layers import (
    attention,
    attention_row,
    dequantize,
    linear_f32,
    linear_i8,
    linear_i8_sums,
    quantize_rows,
    quantize_weight,
    residual,
    rmsnorm,
    rope,
    split_rows,
    swiglu,
)
from crucible.numerics.scalar_math import exp, ln, sigmoid, sum256, sumsq256, tree32
from crucible.numerics.scalar_sampling import draw, greedy, gumbel_id, logprobs, philox4x32, rank, sample

__all__ = [
    "attention",
    "attention_row",
    "cos_sin",
    "dequantize",
    "draw",
    "exp",
    "fma32",
    "greedy",
    "gumbel_id",
    "linear_f32",
    "linear_i8",
    "linear_i8_sums",
    "ln",
    "logprobs",
    "philox4x32",
    "quantize_rows",
    "quantize_weight",
    "rank",
    "reciprocal_root",
    "residual",
    "rmsnorm",
    "rope",
    "rope_frequencies",
    "sample",
    "sigmoid",
    "split_rows",
    "sum256",
    "sumsq256",
    "swiglu",
    "tree32",
]
