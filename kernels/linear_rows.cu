// Linear layer in f32 for few rows: each warp streams its weights through a ring of its own.
//
// x [T][K]; w in the layout of linear.cuh; bias [N] or null; add [T][N] or null, may be y; y [T][N].
// A tile is M = THREAD_M*ROW_LANES rows by W outputs; a warp is BLOCK_LANES x ROW_LANES x LX lanes, LX the
// rest of 32, and W = LX*THREAD_N. Lanes of another block lane work on the next block of 256 k, which is a
// chain of its own; the groups of BLOCK_LANES blocks go round the warps. The blocks' sums meet in shared
// memory, where they are added in order.
// Grid: (at most ceil(N/W): blocks stride over the tiles, ceil(T/M)); block 32 x (1 to 8, at most the number
// of groups). Dynamic shared memory: see rows_bytes in crucible/linear/gpu_f32.py.
// RAGGED 0 needs K a multiple of STEP and x 16-byte aligned; RAGGED 1 takes any.
// Contract section: 6. Verdict: fastest up to about 32 rows; see linear_f32.md.
#include "linear.cuh"
#include "ptx.cuh"

#ifndef THREAD_M
#define THREAD_M 1
#endif
#ifndef ROW_LANES
#define ROW_LANES 1
#endif
#ifndef BLOCK_LANES
#define BLOCK_LANES 4
#endif
#ifndef THREAD_N
#define THREAD_N 1
#endif
#ifndef STEP
#define STEP 32
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef RAGGED
#define RAGGED 0
#endif

namespace {

constexpr int kLX = 32 / (ROW_LANES * BLOCK_LANES), kM = THREAD_M * ROW_LANES, kW = kLX * THREAD_N;
constexpr int kChunks = STEP / 4;
constexpr int kSize = sizeof(Weight);
// Floats of a stage: weights [block lane][STEP][kW] and pieces of x [block lane][STEP/4][kM]; block lanes lie
// apart by what keeps their loads in different banks.
constexpr int kRow = kW * kSize / 4, kWeights = STEP * kRow + (BLOCK_LANES > 1 ? kRow : 0);
constexpr int kX = STEP * kM + (BLOCK_LANES > 1 ? 4 : 0);
constexpr int kStage = BLOCK_LANES * (kWeights + kX);
constexpr int kRowPieces = kW / kPiece, kAside = kRowPieces < 8 ? kRowPieces : 8;
constexpr int kGroups = kRowPieces / kAside, kPassesW = STEP * kRowPieces / 32;  // of a block lane
constexpr int kPiecesX = BLOCK_LANES * kChunks * kM, kPassesX = (kPiecesX + 31) / 32, kRowPassX = 32 / kM;
static_assert(STEP * kAside % 32 == 0 && kBlock % STEP == 0, "whole passes");
static_assert(kW % kPanel == 0 && 32 % kM == 0, "whole panels, rows within a pass");
static_assert(BLOCK_LANES == 1 || ROW_LANES == 1, "lanes share rows or blocks");

// k that a thread loads from shared memory at once; where few fma hide the next loads, those go ahead of
// them.
constexpr int kEach = THREAD_M * THREAD_N, kBatch = kEach <= 2 ? 16 : kEach <= 4 ? 8 : 4;
constexpr bool kAhead = kEach <= 8;

struct Batch {
  float a[THREAD_M][kBatch], b[kBatch][THREAD_N];
};

__device__ __forceinline__ int lane_row(int lane) {
  return ROW_LANES == 1 ? 0 : ROW_LANES == 2 ? (lane >> 1) & 1 : ((lane >> 1) & 1) | ((lane >> 3) & 2);
}
// Lanes that differ in bit 0 share rows, in bit 1 outputs, as in linear_tile.
__device__ __forceinline__ int lane_column(int lane) {
  return ROW_LANES == 1   ? lane % kLX
         : ROW_LANES == 2 ? (lane & 1) | ((lane >> 1) & 14)
                          : (lane & 1) | ((lane >> 1) & 6);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 1)
    linear_rows(const float* __restrict__ x, const Weight* __restrict__ w, const float* __restrict__ bias,
                const float* add, float* y, int T, int N, int K) {
  extern __shared__ float4 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int blocks = (K + kBlock - 1) / kBlock, groups = (blocks + BLOCK_LANES - 1) / BLOCK_LANES;
  const int tiles = (N + kW - 1) / kW, m0 = blockIdx.y * kM, last_panel = panels_of(N) - 1;
  float* ring = reinterpret_cast<float*>(memory) + warp * STAGES * kStage;
  float* parts = reinterpret_cast<float*>(memory) + warps * STAGES * kStage;  // [buffer][block][kM][kW]
  const SharedFloats ring_to = shared_floats(ring);
  const int ty = lane_row(lane), tx = lane_column(lane), block_lane = BLOCK_LANES == 1 ? 0 : lane / kLX;

  const auto limit_of = [&](int group) { return min(kBlock, K - group * BLOCK_LANES * kBlock); };

  // Copies: pieces of weights lie group by group of kAside a row; of x, row by row.
  const int w_k = lane / kAside, x_row = min(m0 + lane % kM, T - 1);
  const int x_chunk = kRowPassX >= kChunks ? lane / kM % kChunks : lane / kM;
  const int x_block = kRowPassX >= kChunks ? lane / kM / kChunks : 0;
  const float* x_row_from = x + static_cast<long long>(x_row) * K + x_block * kBlock + 4 * x_chunk;
  const SharedFloats w_to = ahead(ring_to, w_k * kRow + lane % kAside * 4);
  const SharedFloats x_to =
      ahead(ring_to, BLOCK_LANES * kWeights + x_block * kX + (x_chunk * kM + lane % kM) * 4);

  // Where the copies are: a tile, a group of blocks, the k of block lane 0, and how far it goes in the group.
  int copy_tile = blockIdx.x, copy_group = warp, copy_k, copy_end, filling = 0;
  const Weight* w_from[kGroups];
  const float* x_from;
  const auto enter = [&]() {
    copy_k = copy_group * BLOCK_LANES * kBlock;
    copy_end = copy_k + limit_of(copy_group);
    x_from = x_row_from + copy_k;
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      const int piece = g * kAside + lane % kAside;
      const int panel = min(copy_tile * (kW / kPanel) + piece / kPieces, last_panel);
      w_from[g] = w + (static_cast<long long>(panel) * K + copy_k + w_k) * kPanel + piece % kPieces * kPiece;
    }
  };
  const auto copy = [&]() {
    if (copy_tile < tiles) {
      const SharedFloats w_slot = ahead(w_to, filling), x_slot = ahead(x_to, filling);
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
#pragma unroll
        for (int b = 0; b < BLOCK_LANES; b++)
#pragma unroll
          for (int i = 0; i < kPassesW / kGroups; i++) {
            const int k_ahead = i * 32 / kAside;
            if (copy_k + b * kBlock + (RAGGED ? w_k + k_ahead : 0) < K)
              copy16_async_ahead(ahead(w_slot, b * kWeights + k_ahead * kRow + g * kAside * 4),
                                 reinterpret_cast<const float*>(w_from[g] + (b * kBlock + k_ahead) * kPanel));
          }
        w_from[g] += STEP * kPanel;
      }
#pragma unroll
      for (int i = 0; i < kPassesX; i++) {
        constexpr bool kManyBlocks = kRowPassX >= kChunks;
        const int chunk = kManyBlocks ? 0 : i * kRowPassX % kChunks;
        const int block = kManyBlocks ? i * (kRowPassX / kChunks) : i * kRowPassX / kChunks;
        const SharedFloats to = ahead(x_slot, block * kX + chunk * kM * 4);
        const float* from = x_from + block * kBlock + 4 * chunk;
        const int at = copy_k + (x_block + block) * kBlock;
        if (kPiecesX % 32 && i * 32 + lane >= kPiecesX) continue;
#if RAGGED
        const int end = min(K, (copy_group * BLOCK_LANES + x_block + block + 1) * kBlock);
#pragma unroll
        for (int q = 0; q < 4; q++)
          if (at + 4 * (x_chunk + chunk) + q < end) copy4_async(ahead(to, q), from + q);
#else
        if (at < K) copy16_async(to, from);
#endif
      }
      x_from += STEP;
      copy_k += STEP;
      if (copy_k >= copy_end) {
        copy_group += warps;
        if (copy_group >= groups) {
          copy_group = warp;
          copy_tile += gridDim.x;
        }
        if (copy_tile < tiles) enter();
      }
    }
    filling = filling == (STAGES - 1) * kStage ? 0 : filling + kStage;
    copies_commit();
  };

  enter();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) copy();
  int slot = 0, buffer = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float* part = parts + buffer * blocks * kM * kW;
    for (int group = warp; group < groups; group += warps) {
      const int block = group * BLOCK_LANES + block_lane, limit = limit_of(group);
      float sum[THREAD_M][THREAD_N];
#pragma unroll
      for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) sum[i][j] = 0.0f;
      for (int k = 0; k < limit; k += STEP) {
        copies_wait<STAGES - 2>();
        __syncwarp();  // this stage has landed for the warp, and the one to be filled is no longer read
        copy();
        const int left = K - (block * kBlock + k);
        if (left > 0) {
          const float* here = ring + slot;
          const Weight* weights =
              reinterpret_cast<const Weight*>(here + block_lane * kWeights) + tx * THREAD_N;
          const float4* pieces =
              reinterpret_cast<const float4*>(here + BLOCK_LANES * kWeights + block_lane * kX) + ty;
          const auto load = [&](Batch& to, int first) {
#pragma unroll
            for (int q = 0; q < kBatch; q += 4)
#pragma unroll
              for (int i = 0; i < THREAD_M; i++) {
                const float4 v = pieces[(first + q) / 4 * kM + i * ROW_LANES];
                to.a[i][q] = v.x, to.a[i][q + 1] = v.y, to.a[i][q + 2] = v.z, to.a[i][q + 3] = v.w;
              }
#pragma unroll
            for (int q = 0; q < kBatch; q++) widen_some<THREAD_N>(weights + (first + q) * kW, to.b[q]);
          };
          Batch held[2];
          load(held[0], 0);
#pragma unroll
          for (int first = 0; first < STEP; first += kBatch) {
            const Batch& now = held[first / kBatch % 2];
            Batch& next = held[(first / kBatch + 1) % 2];
            if (kAhead && first + kBatch < STEP) load(next, first + kBatch);
#pragma unroll
            for (int q = 0; q < kBatch; q++) {
              if (RAGGED && first + q >= left) continue;
#pragma unroll
              for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) sum[i][j] = __fmaf_rn(now.a[i][q], now.b[q][j], sum[i][j]);
            }
            if (!kAhead && first + kBatch < STEP) load(next, first + kBatch);
          }
        }
        slot = slot == (STAGES - 1) * kStage ? 0 : slot + kStage;
      }
      if (block < blocks) {
#pragma unroll
        for (int i = 0; i < THREAD_M; i++)
#pragma unroll
          for (int j = 0; j < THREAD_N; j++)
            part[(block * kM + i * ROW_LANES + ty) * kW + tx * THREAD_N + j] = sum[i][j];
      }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < kM * kW; at += blockDim.x) {
      float total = part[at];
      for (int b = 1; b < blocks; b++) total = __fadd_rn(total, part[b * kM * kW + at]);
      const int row = m0 + at / kW, n = tile * kW + at % kW;
      const long long place = static_cast<long long>(row) * N + n;
      if (row < T && n < N) y[place] = finished(total, bias, add, place, n);
    }
    buffer ^= 1;
  }
}
