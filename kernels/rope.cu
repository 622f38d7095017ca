// Rotary position embedding: rotates the pairs (i, i + D/2) of every head.
//
// x, y [T][H*D] (y may be x); positions int32 [T]; cos, sin [P][D/2], row = position.
// Block 256 threads, one per pair, grid-stride over the T*H*D/2 pairs.
// Contract section: 7 (RoPE). Verdict: the only variant; bound by memory.
#include "contract.cuh"

extern "C" __global__ void __launch_bounds__(256)
    rope(const float* x, const int* __restrict__ positions, const float* __restrict__ cos_table,
         const float* __restrict__ sin_table, float* y, int T, int H, int D) {
  const int half = D / 2;
  const long long pairs = static_cast<long long>(T) * H * half;
  for (long long n = blockIdx.x * 256ll + threadIdx.x; n < pairs; n += gridDim.x * 256ll) {
    const int i = n % half;
    const long long vector = n / half, row = vector / H;
    const long long entry = static_cast<long long>(positions[row]) * half + i;
    const float c = cos_table[entry], s = sin_table[entry];
    const float low = x[vector * D + i], high = x[vector * D + half + i];
    y[vector * D + i] = __fmaf_rn(-high, s, __fmul_rn(low, c));
    y[vector * D + half + i] = __fmaf_rn(low, s, __fmul_rn(high, c));
  }
}
