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

__device__ __forceinline__ int lane_row(int lane) {
  return ROW_LANES == 1 ? 0 : ROW_LANES == 2 ? (lane >> 1) & 1 : ((lane >> 1) & 1) | ((lane >> 3) & 2);
}
// Lanes that differ in bit 0 share rows, in bit 1 outputs, as in linear_tile.
__device__ __forceinline__ int lane_column(int lane) {
  return ROW_LANES == 1   ? lane % kLX
         : ROW_LANES == 2 ? (lane & 1) | ((lane >> 1) & 14)
                          : (lane & 1) | ((lane >> 1) & 6);
}

// Where a warp is in its work: a tile, a group of blocks, the k of a stage within each block.
struct Walk {
  int tile, group, k, limit;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
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
  Walk ahead_of = {static_cast<int>(blockIdx.x), warp, 0, limit_of(warp)};

  // Copies: pieces of weights lie group by group of kAside a row; of x, row by row.
  const int w_k = lane / kAside, x_row = min(m0 + lane % kM, T - 1);
  const int x_chunk = kRowPassX >= kChunks ? lane / kM % kChunks : lane / kM;
  const int x_block = kRowPassX >= kChunks ? lane / kM / kChunks : 0;
  const float* x_from = x + static_cast<long long>(x_row) * K + x_block * kBlock + 4 * x_chunk;
  const SharedFloats w_to = ahead(ring_to, w_k * kRow + lane % kAside * 4);
  const SharedFloats x_to =
      ahead(ring_to, BLOCK_LANES * kWeights + x_block * kX + (x_chunk * kM + lane % kM) * 4);
  const auto copy = [&](int slot) {
    if (ahead_of.tile < tiles) {
      const int k = ahead_of.group * BLOCK_LANES * kBlock + ahead_of.k;  // of block lane 0
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
        const int piece = g * kAside + lane % kAside;
        const int panel = min(ahead_of.tile * (kW / kPanel) + piece / kPieces, last_panel);
        const Weight* from =
            w + (static_cast<long long>(panel) * K + k + w_k) * kPanel + piece % kPieces * kPiece;
#pragma unroll
        for (int b = 0; b < BLOCK_LANES; b++)
#pragma unroll
          for (int i = 0; i < kPassesW / kGroups; i++) {
            const int k_ahead = i * 32 / kAside;
            if (k + b * kBlock + (RAGGED ? w_k + k_ahead : 0) < K)
              copy16_async(ahead(w_to, slot * kStage + b * kWeights + k_ahead * kRow + g * kAside * 4),
                           reinterpret_cast<const float*>(from + (b * kBlock + k_ahead) * kPanel));
          }
      }
#pragma unroll
      for (int i = 0; i < kPassesX; i++) {
        constexpr bool kManyBlocks = kRowPassX >= kChunks;
        const int chunk = kManyBlocks ? 0 : i * kRowPassX % kChunks;
        const int block = kManyBlocks ? i * (kRowPassX / kChunks) : i * kRowPassX / kChunks;
        const int at = k + (x_block + block) * kBlock + (RAGGED ? 4 * (x_chunk + chunk) : 0);
        const SharedFloats to = ahead(x_to, slot * kStage + block * kX + chunk * kM * 4);
        const float* from = x_from + k + block * kBlock + 4 * chunk;
        if (kPiecesX % 32 && i * 32 + lane >= kPiecesX) continue;
#if RAGGED
        const int end = min(K, (ahead_of.group * BLOCK_LANES + x_block + block + 1) * kBlock);
#pragma unroll
        for (int q = 0; q < 4; q++)
          if (at + q < end) copy4_async(ahead(to, q), from + q);
#else
        if (at < K) copy16_async(to, from);
#endif
      }
      ahead_of.k += STEP;
      if (ahead_of.k >= ahead_of.limit) {
        ahead_of.k = 0;
        ahead_of.group += warps;
        if (ahead_of.group >= groups) {
          ahead_of.group = warp;
          ahead_of.tile += gridDim.x;
        }
        ahead_of.limit = limit_of(ahead_of.group);
      }
    }
    copies_commit();
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) copy(s);
  int slot = 0, filling = STAGES - 1, buffer = 0;
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
        copy(filling);
        const int left = K - (block * kBlock + k);
        if (left > 0) {
          const float* here = ring + slot * kStage;
          const Weight* weights =
              reinterpret_cast<const Weight*>(here + block_lane * kWeights) + tx * THREAD_N;
          const float4* pieces =
              reinterpret_cast<const float4*>(here + BLOCK_LANES * kWeights + block_lane * kX) + ty;
#pragma unroll
          for (int c = 0; c < kChunks; c++) {
            float a[THREAD_M][4];
#pragma unroll
            for (int i = 0; i < THREAD_M; i++) {
              const float4 v = pieces[c * kM + i * ROW_LANES];
              a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
              if (RAGGED && 4 * c + q >= left) continue;
              float b[THREAD_N];
              widen_some<THREAD_N>(weights + (4 * c + q) * kW, b);
#pragma unroll
              for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) sum[i][j] = __fmaf_rn(a[i][q], b[j], sum[i][j]);
            }
          }
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        filling = filling + 1 == STAGES ? 0 : filling + 1;
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
