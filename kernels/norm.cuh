// Contract section 7: the factor r of RMSNorm for one row, by a block of 256 threads.
#pragma once

#include "contract.cuh"

constexpr int kRowValues = 8;  // values of a row that a thread keeps in registers: rows of up to 2048

// Accumulator a[t] of sumsq256 over x[0..N-1] for t = threadIdx.x; `kept` gets x[t + 256 i], i < kValues.
template <int kValues>
__device__ __forceinline__ float sumsq_partial(const float* x, int N, float (&kept)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; i++) {
    const int j = threadIdx.x + 256 * i;
    kept[i] = j < N ? x[j] : 0.0f;
  }
  float a = 0.0f;  // a square added to +0 or to a sum of squares: padding with x = 0 changes no bit
#pragma unroll
  for (int i = 0; i < kValues; i++) a = __fmaf_rn(kept[i], kept[i], a);
  for (int j = threadIdx.x + 256 * kValues; j < N; j += 256) a = __fmaf_rn(x[j], x[j], a);
  return a;
}

// 1/sqrt(sumsq/N + eps), every step rounded.
__device__ __forceinline__ float rms_factor(float sumsq, int N, float eps) {
  const float mean = __fdiv_rn(sumsq, __int2float_rn(N));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// The factor in every thread of the block. Each warp joins the eight warp sums for itself, which saves the
// barrier that a broadcast would need. `warps` is shared, and may be used again after the next barrier.
__device__ __forceinline__ float rms_factor256(float partial, int N, float eps, float (&warps)[8]) {
  const int lane = threadIdx.x & 31;
  const float w = tree32(partial);
  if (lane == 0) warps[threadIdx.x >> 5] = w;
  __syncthreads();
  const float sum = tree32(lane < 8 ? warps[lane] : 0.0f);
  return rms_factor(__shfl_sync(kAllLanes, sum, 0), N, eps);
}
