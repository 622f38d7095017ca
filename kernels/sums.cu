// The fixed reduction orders by themselves, for conformance.
//
// segment_sums: sum256 or, with squares, sumsq256 of x[offsets[i] .. offsets[i + 1]) -> y[i], grid (n), block
// 256: thread t is accumulator t. tree32_rows: p [n][32] -> y [n], grid (n/8 rounded up), a warp a row.
// Contract section: 3. Verdict: the only variants.
#include "contract.cuh"

extern "C" __global__ void __launch_bounds__(256)
    segment_sums(const float* __restrict__ x, const int* __restrict__ offsets, float* __restrict__ y,
                 int squares) {
  __shared__ float warps[8];
  const long long first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  float a = 0.0f;
  for (long long j = first + threadIdx.x; j < end; j += 256)
    a = squares ? __fmaf_rn(x[j], x[j], a) : __fadd_rn(a, x[j]);
  const float sum = sum256(a, warps);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
    tree32_rows(const float* __restrict__ p, float* __restrict__ y, int n) {
  const int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  const float sum = tree32(row < n ? p[32ll * row + lane] : 0.0f);
  if (lane == 0 && row < n) y[row] = sum;
}
