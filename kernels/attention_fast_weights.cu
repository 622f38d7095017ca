// Second of the three kernels of `fast-split`: the softmax of every distribution, in place.
//
// items [grid.x]; scores [grid.x][DISTS][C] in, exp(s_j - max) out; inverses [grid.x][DISTS] = 1/sum256.
// Grid: (items, DISTS); a distribution that the item lacks leaves. Block: 256 threads as in the reference:
// thread t takes keys t, t + 256, …
// Contract sections: 2, 3, 4. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

extern "C" __global__ void __launch_bounds__(256)
    attention_fast_weights(const Item* __restrict__ items, int C, float* __restrict__ scores,
                           float* __restrict__ inverses) {
  __shared__ float warps[8];
  __shared__ float maximum;
  const int t = threadIdx.x, dist = blockIdx.y;
  const Item item = items[blockIdx.x];
  if (dist >= item.rows() * G) return;
  const int L = item.length + dist / G;
  float* s = scores + (static_cast<long long>(blockIdx.x) * DISTS + dist) * C;

  constexpr int kHeld = 8;  // scores that stay in registers between the two passes: histories to 2,048
  float held[kHeld], m = minus_infinity();
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    const int j = t + i * 256;
    held[i] = j < L ? s[j] : minus_infinity();
    m = fmaxf(m, held[i]);
  }
  for (int j = t + kHeld * 256; j < L; j += 256) m = fmaxf(m, s[j]);
  m = max256(m, warps);
  if (t == 0) maximum = m;
  __syncthreads();
  m = maximum;

  float z = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    const int j = t + i * 256;
    if (j < L) {
      const float e = exp_selected(__fsub_rn(held[i], m));
      s[j] = e;
      z = __fadd_rn(z, e);
    }
  }
  for (int j = t + kHeld * 256; j < L; j += 256) {
    const float e = exp_selected(__fsub_rn(s[j], m));
    s[j] = e;
    z = __fadd_rn(z, e);
  }
  z = sum256(z, warps);
  if (t == 0) inverses[static_cast<long long>(blockIdx.x) * DISTS + dist] = __fdiv_rn(1.0f, z);
}
