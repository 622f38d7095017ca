// Linear layer in int8 for few rows: bound by reading the weights once.
//
// rows, w: the layouts of linear_i8.cuh; top [T]; scale [N]; bias [N] or null; add [T][N] or null, may be y;
// y [T][N]. Grid (ceil(N/8/PANELS), ceil(T/8/GROUPS)), block 32*WARPS: a block owns GROUPS groups of 8 rows
// by PANELS panels of 8 outputs, its warps take slices in turn, and their sums, integers, meet in shared
// memory. A lane reads line g of core t as 16 bytes and gives its four words to the two products of the
// slice: k is permuted, alike in rows and weights, and the sums do not change. K at most 2^17, as int32 holds
// the sums. Contract section: 6. Verdict: fastest for few rows; see linear_i8.md.
#include "linear_i8.cuh"
#include "ptx.cuh"

#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef PANELS
#define PANELS 2
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0
#endif
#if MIN_BLOCKS
#define BOUNDS __launch_bounds__(32 * WARPS, MIN_BLOCKS)
#else
#define BOUNDS __launch_bounds__(32 * WARPS)
#endif
#ifndef UNROLL
#define UNROLL 4
#endif

extern "C" __global__ void BOUNDS linear_i8_rows(const signed char* __restrict__ rows,
                                                 const float* __restrict__ top,
                                                 const signed char* __restrict__ w,
                                                 const float* __restrict__ scale,
                                                 const float* __restrict__ bias, const float* add, float* y,
                                                 int T, int N, int K, int pairs) {
  __shared__ int parts[WARPS][GROUPS * PANELS][4][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int groups = eights_of(T), panels = eights_of(N), slices = slices_of(K);
  const int panel0 = blockIdx.x * PANELS, group0 = blockIdx.y * GROUPS;
  const int line = (lane & 3) * kCore + (lane >> 2) * 16;
  int sums[GROUPS][PANELS][4];
#pragma unroll
  for (int i = 0; i < GROUPS; i++)
#pragma unroll
    for (int j = 0; j < PANELS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0;

  const auto take = [&](int slice) {
    const signed char* a = rows + static_cast<long long>(slice) * groups * kRowGroup + line;
    const signed char* b = w + static_cast<long long>(slice) * panels * kWeightPanel + line;
    uint4 weight[PANELS];
#pragma unroll
    for (int j = 0; j < PANELS; j++)
      weight[j] = __ldg(reinterpret_cast<const uint4*>(b + min(panel0 + j, panels - 1) * 1ll * kWeightPanel));
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      const uint4* from = reinterpret_cast<const uint4*>(a + min(group0 + i, groups - 1) * 1ll * kRowGroup);
      const uint4 hi = __ldg(from), lo = __ldg(from + kWeightPanel / 16);
#pragma unroll
      for (int j = 0; j < PANELS; j++) {
        mma_i8(sums[i][j], hi.x, lo.x, hi.y, lo.y, weight[j].x, weight[j].y);
        mma_i8(sums[i][j], hi.z, lo.z, hi.w, lo.w, weight[j].z, weight[j].w);
      }
    }
  };
#pragma unroll UNROLL
  for (int slice = warp; slice < slices; slice += WARPS) take(slice);

#pragma unroll
  for (int i = 0; i < GROUPS; i++)
#pragma unroll
    for (int j = 0; j < PANELS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) parts[warp][i * PANELS + j][e][lane] = sums[i][j][e];
  __syncthreads();
  const Finish to{add, y, N};
  for (int at = threadIdx.x; at < GROUPS * PANELS * 32; at += 32 * WARPS) {
    const int tile = at / 32, from = at % 32;
    const int t = (group0 + tile / PANELS) * 8 + (from >> 2),
              n = (panel0 + tile % PANELS) * 8 + 2 * (from & 3);
    if (t >= T) continue;
    int sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int v = 0; v < WARPS; v++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[e] += parts[v][tile][e][from];
    store_pairs<1>(to, pairs, t, n, row_unit(top[t]), scale + n, bias ? bias + n : nullptr,
                   [&](int) { return make_float2(joined(sum[0], sum[2]), joined(sum[1], sum[3])); });
  }
}
