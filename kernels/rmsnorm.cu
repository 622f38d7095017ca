// RMSNorm of rows: y = (x*r)*w with r = 1/sqrt(sumsq256(x)/N + eps).
//
// x, y [T][N] (y may be x); w [N]. Grid (T), block 256: thread t holds accumulator t of sumsq256 and the
// columns t, t + 256, … of its row, which stay in registers up to N = 2048. Contract sections: 3
// (sumsq256), 7. Verdict: the only variant; one barrier, bound by the latency of one load.
#include "norm.cuh"

#ifndef VALUES
#define VALUES 8
#endif

extern "C" __global__ void __launch_bounds__(256)
    rmsnorm(const float* x, const float* __restrict__ w, float* y, int N, float eps) {
  __shared__ float warps[8];
  const long long start = static_cast<long long>(blockIdx.x) * N;
  float kept[VALUES], weight[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; i++) {  // asked for before the sum, so that both latencies overlap
    const int j = threadIdx.x + 256 * i;
    weight[i] = j < N ? w[j] : 0.0f;
  }
  const float r = rms_factor256(sumsq_partial(x + start, N, kept), N, eps, warps);
#pragma unroll
  for (int i = 0; i < VALUES; i++) {
    const int j = threadIdx.x + 256 * i;
    if (j < N) y[start + j] = __fmul_rn(__fmul_rn(kept[i], r), weight[i]);
  }
  for (int j = threadIdx.x + 256 * VALUES; j < N; j += 256)
    y[start + j] = __fmul_rn(__fmul_rn(x[start + j], r), w[j]);
}
