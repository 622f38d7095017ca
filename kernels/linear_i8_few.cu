// Linear layer in int8 for one to a few rows: what makes its input, quantisation and product in one launch.
//
// SOURCE 0: the input is x [T][K] f32. SOURCE 1: it is rmsnorm(x) with norm [K] and eps. SOURCE 2: it is the
// SwiGLU of x [T][2K], gate then up. w: the layout of linear_i8.cuh; scale [N]; bias [N] or null; add [T][N]
// or null, may be y; y [T][N]. Grid (ceil(N/8/PANELS), ceil(T/8)), block 256: a block owns 8 rows by PANELS
// panels of 8 outputs. It asks for its first weights, makes and quantizes its rows for itself, and then
// multiplies as linear_i8_rows.cu does, slice by slice. Dynamic shared memory: 1024*ceil(K/64) bytes of
// digits, [slice][digit][8 rows][64]. `pairs`: see store_pairs. WHOLE: see quantize_rows.cuh. K at most 2^17
// and within shared memory. Contract sections: 2, 3 (sumsq256), 6, 7. Verdict: fastest where a launch costs
// more than making a row again; see linear_i8.md.
#include "norm.cuh"
#include "ptx.cuh"
#include "quantize_rows.cuh"

#ifndef PANELS
#define PANELS 1
#endif
#ifndef SOURCE
#define SOURCE 0
#endif
#ifndef AHEAD
#define AHEAD 4
#endif

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_i8_few(const float* __restrict__ x, const float* __restrict__ norm, float eps,
                  const signed char* __restrict__ w, const float* __restrict__ scale,
                  const float* __restrict__ bias, const float* add, float* y, int T, int N, int K,
                  int pairs) {
  extern __shared__ uint4 digits[];
  __shared__ int parts[kWarps][PANELS][4][32];
  __shared__ unsigned largest[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int panels = eights_of(N), slices = slices_of(K), quads = slices * (kSlice / 4);
  const int panel0 = blockIdx.x * PANELS, row0 = blockIdx.y * 8, rows = min(8, T - row0);

  const signed char* lines = w + (lane & 3) * kCore + (lane >> 2) * 16;
  uint4 weight[AHEAD][PANELS];
  const auto fetch = [&](int slice, uint4(&to)[PANELS]) {
#pragma unroll
    for (int j = 0; j < PANELS; j++) {
      const long long panel = static_cast<long long>(slice) * panels + min(panel0 + j, panels - 1);
      to[j] = make_uint4(0, 0, 0, 0);
      if (slice < slices) to[j] = __ldg(reinterpret_cast<const uint4*>(lines + panel * kWeightPanel));
    }
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) fetch(warp + i * kWarps, weight[i]);

  if (threadIdx.x < 8) largest[threadIdx.x] = 0;
  const long long stride = SOURCE == 2 ? 2ll * K : K;
  const float* from = x + row0 * stride;
#if SOURCE == 1
  __shared__ float joined_by_warp[8][kWarps], factors[8];
  for (int r = 0; r < rows; r++) {  // thread t holds accumulator t of sumsq256
    float a = 0.0f;
#pragma unroll 8
    for (int k = threadIdx.x; k < K; k += kThreads) {
      const float v = from[r * stride + k];
      a = __fmaf_rn(v, v, a);
    }
    a = tree32(a);
    if (lane == 0) joined_by_warp[r][warp] = a;
  }
  __syncthreads();
  if (warp < rows) {
    const float sum = tree32(lane < kWarps ? joined_by_warp[warp][lane] : 0.0f);
    if (lane == 0) factors[warp] = rms_factor(sum, K, eps);
  }
#endif
  __syncthreads();
  const auto value = [&](int r, int k) {
    const float4 v = load_quad(from + r * stride, k, K);
#if SOURCE == 1
    const float4 g = load_quad(norm, k, K);
    return normed(v, factors[r], g);
#elif SOURCE == 2
    return gated(v, load_quad(from + r * stride + K, k, K));
#else
    return v;
#endif
  };
  for (int r = 0; r < rows; r++) {
    unsigned mine = 0;
#pragma unroll 2
    for (int quad = threadIdx.x; quad < quads; quad += kThreads)
      mine = max(mine, magnitude(value(r, 4 * quad)));
    mine = warp_max(mine);
    if (lane == 0) atomicMax(&largest[r], mine);
  }
  __syncthreads();
  for (int r = 0; r < rows; r++) {
    const float factor = row_factor(row_top(largest[r]));
#pragma unroll 2
    for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
      const uint2 words = digit_words(value(r, 4 * quad), factor);
      unsigned* to = reinterpret_cast<unsigned*>(digits) + quad / 16 * 256 + r * 16 + quad % 16;
      to[0] = words.x;
      to[128] = words.y;
    }
  }
  __syncthreads();

  int sums[PANELS][4];
#pragma unroll
  for (int j = 0; j < PANELS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[j][e] = 0;
  for (int first = warp; first < slices; first += AHEAD * kWarps) {
    if (first > warp)
#pragma unroll
      for (int i = 0; i < AHEAD; i++) fetch(first + i * kWarps, weight[i]);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int slice = first + i * kWarps;
      if (slice >= slices) break;
      uint4 hi = make_uint4(0, 0, 0, 0), lo = hi;
      if ((lane >> 2) < rows) hi = digits[slice * 64 + lane], lo = digits[slice * 64 + 32 + lane];
#pragma unroll
      for (int j = 0; j < PANELS; j++) {
        mma_i8(sums[j], hi.x, lo.x, hi.y, lo.y, weight[i][j].x, weight[i][j].y);
        mma_i8(sums[j], hi.z, lo.z, hi.w, lo.w, weight[i][j].z, weight[i][j].w);
      }
    }
  }

#pragma unroll
  for (int j = 0; j < PANELS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) parts[warp][j][e][lane] = sums[j][e];
  __syncthreads();
  const Finish to{add, y, N};
  for (int at = threadIdx.x; at < PANELS * 32; at += kThreads) {
    const int tile = at / 32, r = at % 32 >> 2, n = (panel0 + tile) * 8 + 2 * (at & 3);
    if (r >= rows) continue;
    int sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int v = 0; v < kWarps; v++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e] += parts[v][tile][e][at % 32];
    store_pairs<1>(to, pairs, row0 + r, n, row_unit(row_top(largest[r])), scale + n,
                   bias ? bias + n : nullptr,
                   [&](int) { return make_float2(joined(sum[0], sum[2]), joined(sum[1], sum[3])); });
  }
}
