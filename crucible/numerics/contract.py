"""Constants of the arithmetic contract, version 1 (sections 2, 5, 6, 8), each rounded to its format once."""

import numpy as np

CONTRACT_VERSION = 1

PAGE_SIZE = 16  # positions per K/V page
K_BLOCK = 256  # inner length of one f32 linear block; also the lane count of sum256
WARP = 32  # lanes of one tree

# exp (section 2): smallest argument that is not +0, log2(e), the rounding constant, ln 2 in two parts.
EXP_MIN = np.float32(-87.0)
EXP_LOG2E = np.float32(float.fromhex("0x1.715476p+0"))
EXP_ROUND = np.float32(12582912.0)
EXP_LN2_HIGH = np.float32(0.693145751953125)
EXP_LN2_LOW = np.float32(1.428606765330187e-06)
EXP_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
        *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    )
)

# int8 linear (section 6).
WEIGHT_LEVELS = 127
WEIGHT_SCALE_MIN = np.float32(2.0**-126)
ACTIVATION_LEVELS = 32512
ACTIVATION_MIN = np.float32(2.0**-100)

# ln in f64 (section 8): the mantissa interval, ln 2, and the odd reciprocals of the series.
LN_MANTISSA_LOW = 0.7071067811865476
LN_MANTISSA_HIGH = 1.4142135623730951
LN_2 = 0.6931471805599453
LN_SERIES = tuple(1.0 / odd for odd in range(23, 0, -2))

# Philox4x32-10 (section 8): round multipliers and key increments.
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
