// Linear layer in int8 for many rows: tensor cores on tiles of rows and outputs in shared memory.
//
// rows, w: the layouts of linear_i8.cuh; top [T]; scale [N]; bias [N] or null; add [T][N] or null, may be y;
// y [T][N]. Grid: a block for every tile, block 32*WARPS_M*WARPS_N. A warp owns TILE_M groups of 8 rows by
// TILE_N panels of 8 outputs; a group is one m16 operand, digits hi above lo, so a thread ends with both sums
// of its outputs. Slices of 64 k come by asynchronous copies into STAGES buffers. Groups and panels past the
// end are copies of the last one, never stored. Dynamic shared memory: STAGES * (1024 * groups + 512 *
// panels) bytes. `pairs`: see store_pairs. K at most 2^17, so that int32 holds every sum. Contract
// section: 6. Verdict: see linear_i8.md.
#include "linear_i8.cuh"
#include "ptx.cuh"

#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef TILE_M
#define TILE_M 4
#endif
#ifndef TILE_N
#define TILE_N 8
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2
#endif

namespace {

constexpr int kThreads = 32 * WARPS_M * WARPS_N, kGroups = WARPS_M * TILE_M, kPanels = WARPS_N * TILE_N;
constexpr int kGroupFloats = kRowGroup / 4, kPanelFloats = kWeightPanel / 4;
constexpr int kStage = kGroups * kGroupFloats + kPanels * kPanelFloats;  // floats of a stage
constexpr int kRowPieces = kGroups * kRowGroup / 16 / kThreads;          // copies of a thread and stage
constexpr int kPanelPieces = kPanels * kWeightPanel / 16 / kThreads;
static_assert(kRowPieces * kThreads * 16 == kGroups * kRowGroup &&
                  kPanelPieces * kThreads * 16 == kPanels * kWeightPanel,
              "whole passes");

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    linear_i8_tile(const signed char* __restrict__ rows, const float* __restrict__ top,
                   const signed char* __restrict__ w, const float* __restrict__ scale,
                   const float* __restrict__ bias, const float* add, float* y, int T, int N, int K,
                   int pairs) {
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int groups = eights_of(T), panels = eights_of(N), slices = slices_of(K);
  const int2 place =
      tile_place(blockIdx.x, (groups + kGroups - 1) / kGroups, (panels + kPanels - 1) / kPanels);
  const int group0 = place.x * kGroups, panel0 = place.y * kPanels;

  const signed char *row_from[kRowPieces], *panel_from[kPanelPieces];
#pragma unroll
  for (int i = 0; i < kRowPieces; i++) {
    const int piece = threadIdx.x + i * kThreads;
    row_from[i] =
        rows + static_cast<long long>(min(group0 + piece / 64, groups - 1)) * kRowGroup + piece % 64 * 16;
  }
#pragma unroll
  for (int i = 0; i < kPanelPieces; i++) {
    const int piece = threadIdx.x + i * kThreads;
    panel_from[i] =
        w + static_cast<long long>(min(panel0 + piece / 32, panels - 1)) * kWeightPanel + piece % 32 * 16;
  }
  const SharedFloats base = shared_floats(reinterpret_cast<float*>(memory));
  const auto copy = [&](int stage) {
    const SharedFloats to = ahead(base, stage * kStage + 4 * threadIdx.x);
#pragma unroll
    for (int i = 0; i < kRowPieces; i++) {
      copy16_async(ahead(to, 4 * i * kThreads), reinterpret_cast<const float*>(row_from[i]));
      row_from[i] += static_cast<long long>(groups) * kRowGroup;
    }
#pragma unroll
    for (int i = 0; i < kPanelPieces; i++) {
      copy16_async(ahead(to, kGroups * kGroupFloats + 4 * i * kThreads),
                   reinterpret_cast<const float*>(panel_from[i]));
      panel_from[i] += static_cast<long long>(panels) * kWeightPanel;
    }
  };

  int sums[TILE_M][TILE_N][4];
#pragma unroll
  for (int i = 0; i < TILE_M; i++)
#pragma unroll
    for (int j = 0; j < TILE_N; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0;

  const int my_group = warp / WARPS_N * TILE_M, my_panel = warp % WARPS_N * TILE_N;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < slices) copy(s);
    copies_commit();
  }
  for (int slice = 0; slice < slices; slice++) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    if (slice + STAGES - 1 < slices) copy((slice + STAGES - 1) % STAGES);
    copies_commit();
    const SharedFloats stage = ahead(base, slice % STAGES * kStage);
    const SharedFloats a = ahead(stage, my_group * kGroupFloats);
    const SharedFloats b = ahead(stage, kGroups * kGroupFloats + my_panel * kPanelFloats);
    unsigned weight[TILE_N][4];
#pragma unroll
    for (int j = 0; j < TILE_N; j++) load_cores(ahead(b, j * kPanelFloats), weight[j]);
#pragma unroll
    for (int i = 0; i < TILE_M; i++) {
      unsigned hi[4], lo[4];
      load_cores(ahead(a, i * kGroupFloats), hi);
      load_cores(ahead(a, i * kGroupFloats + kPanelFloats), lo);
#pragma unroll
      for (int half = 0; half < 4; half += 2)
#pragma unroll
        for (int j = 0; j < TILE_N; j++)
          mma_i8(sums[i][j], hi[half], lo[half], hi[half + 1], lo[half + 1], weight[j][half],
                 weight[j][half + 1]);
    }
  }

  const Finish to{add, y, N};
#pragma unroll
  for (int i = 0; i < TILE_M; i++) {
    const int t = (group0 + my_group + i) * 8 + (lane >> 2);
    if (t >= T) continue;
    const int n = (panel0 + my_panel) * 8 + 2 * (lane & 3);
    store_pairs<TILE_N>(to, pairs, t, n, row_unit(top[t]), scale + n, bias ? bias + n : nullptr, [&](int j) {
      const int (&sum)[4] = sums[i][j];
      return make_float2(joined(sum[0], sum[2]), joined(sum[1], sum[3]));
    });
  }
}
