// Adds the partial sums of a split linear layer in block order, then bias and residual.
//
// partial [blocks][T][N]; bias [N] or null; add [T][N] or null, may be y; y [T][N]. WIDE 1: N a multiple of
// four and all pointers 16-byte aligned. Block 256 threads, four outputs each, grid-stride.
// Contract section: 6. Verdict: follows linear_tile with SPLIT 1.
#include "linear.cuh"

#ifndef WIDE
#define WIDE 0
#endif

extern "C" __global__ void __launch_bounds__(256)
    linear_fold(const float* __restrict__ partial, const float* __restrict__ bias, const float* add, float* y,
                int T, int N, int blocks) {
  constexpr int kEach = WIDE ? 4 : 1;
  const long long count = static_cast<long long>(T) * N, stride = gridDim.x * 256ll * kEach;
  for (long long at = (blockIdx.x * 256ll + threadIdx.x) * kEach; at < count; at += stride) {
    const int row = at / N, n = at % N;
#if WIDE
    float4 v = *reinterpret_cast<const float4*>(partial + at);
    for (int b = 1; b < blocks; b++) {
      const float4 next = *reinterpret_cast<const float4*>(partial + b * count + at);
      v = make_float4(__fadd_rn(v.x, next.x), __fadd_rn(v.y, next.y), __fadd_rn(v.z, next.z),
                      __fadd_rn(v.w, next.w));
    }
    const float sums[4] = {v.x, v.y, v.z, v.w};
    finish4(sums, bias, add, y, row, n, N, true);
#else
    float sum = partial[at];
    for (int b = 1; b < blocks; b++) sum = __fadd_rn(sum, partial[b * count + at]);
    y[at] = finished(sum, bias, add, at, n);
#endif
  }
}
