// Linear layer in int8 for many rows on Hopper: asynchronous tensor products fed by bulk copies.
//
// rows, w: the layouts of linear_i8.cuh; top [T]; scale [N]; bias [N] or null; add [T][N] or null, may be y;
// y [T][N]. Grid: any number of blocks, which share the tiles of 32*WARPGROUPS rows by TILE_N outputs, row
// tiles first. Block 128*WARPGROUPS + 32: the last warp copies slices of 64 k into STAGES buffers, a run of
// groups and a run of panels each; a warpgroup multiplies four groups of 8 rows (64 lines, hi digits above lo
// in each 16), so that a thread ends with both sums of its outputs. Groups and panels past the end are not
// copied; what the buffer holds there reaches no stored output. Dynamic shared memory:
// STAGES * (4096*WARPGROUPS + 64*TILE_N) bytes. Results leave in strips of STRIP panels. `pairs`: see
// store_pairs. K at most 2^17. Contract section: 6. Verdict: gpu-only (sm_90a), fastest for prefill; see
// linear_i8.md.
#include "linear_i8.cuh"

#ifndef TILE_N
#define TILE_N 128
#endif
#ifndef WARPGROUPS
#define WARPGROUPS 2
#endif
#ifndef STAGES
#define STAGES 6
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

#ifndef STRIP
#define STRIP 4
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "wgmma.cuh"

namespace {

constexpr int kGroups = 4 * WARPGROUPS, kPanels = TILE_N / 8;
constexpr int kConsumers = 128 * WARPGROUPS, kEnds = (TILE_N + kConsumers - 1) / kConsumers;
constexpr int kStage = kGroups * kRowGroup + kPanels * kWeightPanel;

// A place in the ring of buffers; `phase` is the parity of its round.
struct Place {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
};

}  // namespace
#endif

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS + 32, MIN_BLOCKS)
    linear_i8_wgmma(const signed char* __restrict__ rows, const float* __restrict__ top,
                    const signed char* __restrict__ w, const float* __restrict__ scale,
                    const float* __restrict__ bias, const float* add, float* y, int T, int N, int K,
                    int pairs) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  __shared__ __align__(8) float ends[2][2][TILE_N];  // [round][scale, bias]
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int groups = eights_of(T), panels = eights_of(N), slices = slices_of(K);
  const int row_tiles = (groups + kGroups - 1) / kGroups, output_tiles = (panels + kPanels - 1) / kPanels;
  const int tiles = row_tiles * output_tiles;
  const unsigned base = shared_address(memory), full0 = shared_address(full), empty0 = shared_address(empty);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(full0 + 8 * s, 1);
      barrier_init(empty0 + 8 * s, 4 * WARPGROUPS);
    }
    barriers_ready();
  }
  __syncthreads();
  Place at;
  if (warp == 4 * WARPGROUPS) {
    if (lane != 0) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int2 place = tile_place(tile, row_tiles, output_tiles);
      const int group0 = place.x * kGroups, panel0 = place.y * kPanels;
      const unsigned row_bytes = min(kGroups, groups - group0) * kRowGroup;
      const unsigned panel_bytes = min(kPanels, panels - panel0) * kWeightPanel;
      const signed char* a = rows + static_cast<long long>(group0) * kRowGroup;
      const signed char* b = w + static_cast<long long>(panel0) * kWeightPanel;
      for (int slice = 0; slice < slices; slice++) {
        const unsigned to = base + at.stage * kStage, barrier = full0 + 8 * at.stage;
        wait_phase(empty0 + 8 * at.stage, at.phase ^ 1);
        arrive_expecting(barrier, row_bytes + panel_bytes);
        bulk_copy(to, a, row_bytes, barrier);
        bulk_copy(to + kGroups * kRowGroup, b, panel_bytes, barrier);
        a += static_cast<long long>(groups) * kRowGroup;
        b += static_cast<long long>(panels) * kWeightPanel;
        at.advance();
      }
    }
    return;
  }
  const int my_group = warp >> 2 << 2;
  const Finish to{add, y, N};
  for (int tile = blockIdx.x, round = 0; tile < tiles; tile += gridDim.x, round ^= 1) {
    const int2 place = tile_place(tile, row_tiles, output_tiles);
    const int t = (place.x * kGroups + warp) * 8 + (lane >> 2), n0 = place.y * TILE_N;
    // Read here, so that the products hide it.
    const float A = t < T ? top[t] : 0.0f;
    float my_scale[kEnds], my_bias[kEnds];
#pragma unroll
    for (int i = 0; i < kEnds; i++) {
      const int n = n0 + threadIdx.x + i * kConsumers;
      my_scale[i] = n < N ? scale[n] : 0.0f;
      my_bias[i] = n < N && bias ? bias[n] : 0.0f;
    }
    int d[TILE_N / 2];
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i++) d[i] = 0;
    Place before = at;
    for (int slice = 0; slice < slices; slice++) {
      const unsigned stage = base + at.stage * kStage;
      const unsigned long long a = core_operand(stage + my_group * kRowGroup, kCore, kWeightPanel);
      const unsigned long long b = core_operand(stage + kGroups * kRowGroup, kCore, kWeightPanel);
      wait_phase(full0 + 8 * at.stage, at.phase);
      products_fence();
      product_i8(d, a, b, slice > 0);
      product_i8(d, a + 2 * kCore / 16, b + 2 * kCore / 16, 1);
      products_commit();
      products_wait<1>();  // the slice before is done with its buffer
      if (slice > 0 && lane == 0) arrive(empty0 + 8 * before.stage);
      before = at;
      at.advance();
    }
    products_wait<0>();
    if (lane == 0) arrive(empty0 + 8 * before.stage);
    hold(d);
    float sums[TILE_N / 4];
#pragma unroll
    for (int i = 0; i < TILE_N / 4; i += 2) {
      sums[i] = joined(d[2 * i], d[2 * i + 2]);
      sums[i + 1] = joined(d[2 * i + 1], d[2 * i + 3]);
    }
    hold(sums);  // half the registers are free before anything is read
#pragma unroll
    for (int i = 0; i < kEnds; i++) {
      const int column = threadIdx.x + i * kConsumers;
      if (column < TILE_N) ends[round][0][column] = my_scale[i], ends[round][1][column] = my_bias[i];
    }
    meet_some<kConsumers>();  // and two rounds of ends keep the next tile's from overtaking
    if (t < T) {
      const float unit = row_unit(A);
      int column[1] = {2 * (lane & 3)};
      hold(column);  // or all addresses would be made, and spilled, before the products
#pragma unroll
      for (int j = 0; j < kPanels; j += STRIP) {
        const int at = column[0] + 8 * j;
        store_pairs<STRIP, true>(
            to, pairs, t, n0 + at, unit, ends[round][0] + at, bias ? ends[round][1] + at : nullptr,
            [&](int i) { return make_float2(sums[2 * (i + j)], sums[2 * (i + j) + 1]); });
      }
    }
    __syncwarp();
  }
#else
  __trap();  // another target: the launcher does not choose this kernel there
#endif
}
