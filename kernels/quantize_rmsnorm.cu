// RMSNorm and the quantisation of its rows in one step: y = (x*r)*w, then as quantize_rows.cu.
//
// x [T][K]; w [K]; y [T][K] or null, may be x; rows, top, grid, block, shared memory: as in quantize_rows.cu.
// sumsq256 has 256 accumulators, and columns 4p..4p+3 (mod 256) are thread p's: it holds four of them.
// Contract sections: 3 (sumsq256), 6, 7. Verdict: the only variant; saves writing and reading y and a launch.
#include "norm.cuh"
#include "quantize_rows.cuh"

namespace {

// sumsq256 joined by the 64 threads of a row, from accumulators 4p..4p+3 of thread p; the result is in every
// thread. tree32 over 32 neighbours runs over 8 lanes of four: 16, 8 and 4 apart are lanes 4, 2 and 1 apart.
__device__ __forceinline__ float join_row(float (&a)[4], float (&eighths)[kMostThreads / 8]) {
  for (int o = 4; o > 0; o >>= 1)
#pragma unroll
    for (int e = 0; e < 4; e++) a[e] = __fadd_rn(a[e], __shfl_down_sync(kAllLanes, a[e], o));
  const float w = __fadd_rn(__fadd_rn(a[0], a[2]), __fadd_rn(a[1], a[3]));
  if (threadIdx.x % 8 == 0) eighths[threadIdx.x / 8] = w;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  const float sum = tree32(lane < 8 ? eighths[threadIdx.x / kRowThreads * 8 + lane] : 0.0f);
  return __shfl_sync(kAllLanes, sum, 0);
}

__device__ __forceinline__ void add_squares(float (&a)[4], const float4& v) {
  a[0] = __fmaf_rn(v.x, v.x, a[0]), a[1] = __fmaf_rn(v.y, v.y, a[1]);
  a[2] = __fmaf_rn(v.z, v.z, a[2]), a[3] = __fmaf_rn(v.w, v.w, a[3]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kMostThreads)
    quantize_rmsnorm(const float* x, const float* __restrict__ w, float* y, signed char* __restrict__ rows,
                     float* __restrict__ top, int T, int K, float eps) {
  extern __shared__ uint4 digits[];
  __shared__ float eighths[kMostThreads / 8];
  const int p = threadIdx.x % kRowThreads;
  const long long t = blockIdx.x * (blockDim.x / kRowThreads) + threadIdx.x / kRowThreads;
  const float* row = x + t * K;
  float4 kept[KEPT], weight[KEPT];
  float a[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int k = 4 * (p + i * kRowThreads);
    kept[i] = t < T ? load_quad(row, k, K) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    weight[i] = load_quad(w, k, K);  // asked for before the sum, so that both latencies overlap
  }
#pragma unroll
  for (int i = 0; i < KEPT; i++) add_squares(a, kept[i]);  // +0 past K changes no square sum
  for (int k = 4 * (p + KEPT * kRowThreads); t < T && k < K; k += 4 * kRowThreads)
    add_squares(a, load_quad(row, k, K));
  const float r = rms_factor(join_row(a, eighths), K, eps);
  quantize_block(rows, top, T, K, digits, [&](int i, int k) {
    const float4 v = i < KEPT ? kept[i % KEPT] : load_quad(row, k, K);
    const float4 g = i < KEPT ? weight[i % KEPT] : load_quad(w, k, K);
    const float4 n = normed(v, r, g);
    if (y && i < KEPT) store_quad(y + t * K, k, K, n);
    return n;
  });
  if (y && t < T)  // last, since y may be x
    for (int k = 4 * (p + KEPT * kRowThreads); k < K; k += 4 * kRowThreads) {
      store_quad(y + t * K, k, K, normed(load_quad(row, k, K), r, load_quad(w, k, K)));
    }
}
