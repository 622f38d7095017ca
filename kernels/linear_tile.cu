// Linear layer in f32 for many rows: register tiles of 8 rows x THREAD_N outputs over shared memory.
//
// x [T][K]; w in the layout of linear.cuh; bias [N] or null; add [T][N] or null, may be y; y [T][N].
// Grid: (ceil(T/M), ceil(N/W)) with M = 32*WARPS_M rows and W = 8*THREAD_N*WARPS_N outputs; block
// 32*WARPS_M*WARPS_N threads, a multiple of 128. A warp is 4 x 8 threads; a thread owns two quads of rows and
// THREAD_N/4 quads of outputs. Stages of 16 k: weights by asynchronous copies, x through registers, since it
// is turned k by k on the way. An accumulator sees ascending k.
// SPLIT 0: the sums of finished blocks of 256 wait in shared memory. SPLIT 1: blockIdx.z names one block of
// 256 and y is partial sums for linear_fold (bias and add are not read): quads [blocks][T][ceil(N/4)], each
// in reverse. TURN 1 brings x through registers; TURN 0 by 4-byte copies. RAGGED 0 needs K a multiple of 16
// and x 16-byte aligned; RAGGED 1 takes any. EARLY 1 loads the first factors of a stage behind the last
// products of the one before. Dynamic shared memory: STAGES * 16 * (4*M + sizeof(weight)*W) bytes, and 4*M*W
// more where SPLIT is 0 and K > 256. Contract section: 6. Verdict: fastest for prefill; see linear_f32.md.
#include "linear.cuh"
#include "ptx.cuh"

#ifndef THREAD_N
#define THREAD_N 8
#endif
#ifndef WARPS_M
#define WARPS_M 4
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef RAGGED
#define RAGGED 0
#endif
#ifndef EARLY
#define EARLY 0
#endif
#ifndef TURN
#define TURN 1
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2
#endif

namespace {

constexpr int kThreads = 32 * WARPS_M * WARPS_N, kThreadM = 8, kQuads = THREAD_N / 4;
constexpr int kM = 32 * WARPS_M, kW = 8 * THREAD_N * WARPS_N;
constexpr int kStep = 16, kChunks = kStep / 4, kStepsOfBlock = kBlock / kStep;
constexpr int kStage = kStep * kM + kStep * kW * static_cast<int>(sizeof(Weight)) / 4;  // floats of a stage
constexpr int kPiecesX = kM * kChunks / kThreads;  // of a thread and stage
constexpr int kAside = 8 / kPieces;                // panels whose pieces fill 128 bytes of a row
constexpr int kPiecesW = kStep * kW / kPiece / kThreads;
constexpr int kPass = 8 * kStep;  // pieces of kAside panels
static_assert(kPiecesX * kThreads == kM * kChunks && kThreads % kPass == 0, "whole passes");

// In the i-th copy of a thread: groups of kAside panels, and k, after those of its first.
__device__ constexpr int group_ahead(int i) { return i * kThreads / kPass; }
__device__ constexpr int k_ahead(int i) { return i * kThreads / 8 % kStep; }

// v + parked sums. A quad waits (and leaves a split layer) in reverse: its registers then come in the order
// that puts each sum and its factor of w into different banks of the register file.
__device__ __forceinline__ void add_parked(float* v, const float4& before) {
  v[3] = __fadd_rn(before.x, v[3]), v[2] = __fadd_rn(before.y, v[2]);
  v[1] = __fadd_rn(before.z, v[1]), v[0] = __fadd_rn(before.w, v[0]);
}

// What a thread brings in: pieces of x by row, of weights by panel; both advance by a stage at a time.
struct Source {
  const float* x[kPiecesX];
  const Weight* w[kPiecesW];
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    linear_tile(const float* __restrict__ x, const Weight* __restrict__ w, const float* __restrict__ bias,
                const float* add, float* y, int T, int N, int K, int wide) {
  extern __shared__ float4 memory[];
  float* stages = reinterpret_cast<float*>(memory);
  float4* parked = memory + STAGES * kStage / 4;  // [i][quad][thread]
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  // Lanes that differ in bit 0 share rows, in bit 1 outputs: 16-byte loads of such pairs need one access.
  const int tx = (lane & 1) | ((lane >> 1) & 6), ty = ((lane >> 1) & 1) | ((lane >> 3) & 2);
  const int row0 = warp / WARPS_N * 32 + 4 * ty, column0 = warp % WARPS_N * 8 * THREAD_N + 4 * tx;
  const int m0 = blockIdx.x * kM, n0 = blockIdx.y * kW;
  const int first = SPLIT ? blockIdx.z * kBlock : 0, last = SPLIT ? min(K, first + kBlock) : K;

  const int x_row = (t >> 5) * 8 + (t & 7), x_chunk = (t >> 3) & 3;
  const int w_group = t / kPass, w_k = (t >> 3) & (kStep - 1), w_piece = t & 7;
  Source from;
#pragma unroll
  for (int i = 0; i < kPiecesX; i++) {
    const int row = min(m0 + x_row + i * kThreads / kChunks, T - 1);
    from.x[i] = x + static_cast<long long>(row) * K + first + 4 * x_chunk;
  }
#pragma unroll
  for (int i = 0; i < kPiecesW; i++) {
    const int group = n0 / kPanel + (w_group + group_ahead(i)) * kAside;
    const int panel = min(group + w_piece / kPieces, panels_of(N) - 1);
    from.w[i] = w + (static_cast<long long>(panel) * K + first + w_k + k_ahead(i)) * kPanel +
                w_piece % kPieces * kPiece;
  }
  const SharedFloats base = shared_floats(stages);
  float* x_to = stages + 4 * x_chunk * kM + (x_row ^ 8 * x_chunk);
  constexpr int kRowFloats = kW * static_cast<int>(sizeof(Weight)) / 4;  // of weights at one k
  const SharedFloats w_to = ahead(base, kStep * kM + w_k * kRowFloats + w_group * 32 + w_piece * 4);
#if TURN
  float held[kPiecesX][4];
  const auto fetch = [&](int k) {
#pragma unroll
    for (int i = 0; i < kPiecesX; i++) {
#if RAGGED
#pragma unroll
      for (int q = 0; q < 4; q++) held[i][q] = k + 4 * x_chunk + q < last ? from.x[i][q] : 0.0f;
#else
      widen_some<4>(from.x[i], held[i]);
#endif
      from.x[i] += kStep;
    }
  };
  const auto turn = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kPiecesX; i++)
#pragma unroll
      for (int q = 0; q < 4; q++) x_to[stage * kStage + q * kM + i * kThreads / kChunks] = held[i][q];
  };
#else
  const SharedFloats x_at = shared_floats(x_to);
  const auto fetch = [&](int) {};
  const auto turn = [&](int) {};
#endif
  const auto copy = [&](int stage, int k) {
#if !TURN
#pragma unroll
    for (int i = 0; i < kPiecesX; i++) {
#pragma unroll
      for (int q = 0; q < 4; q++)
        if (!RAGGED || k + 4 * x_chunk + q < last)
          copy4_async(ahead(x_at, stage * kStage + q * kM + i * kThreads / kChunks), from.x[i] + q);
      from.x[i] += kStep;
    }
#endif
#pragma unroll
    for (int i = 0; i < kPiecesW; i++) {
      const SharedFloats to = ahead(w_to, stage * kStage + group_ahead(i) * 32 + k_ahead(i) * kRowFloats);
      if (!RAGGED || k + w_k + k_ahead(i) < last) copy16_async(to, reinterpret_cast<const float*>(from.w[i]));
      from.w[i] += kStep * kPanel;
    }
  };

  float sum[kThreadM][THREAD_N];
#pragma unroll
  for (int i = 0; i < kThreadM; i++)
#pragma unroll
    for (int j = 0; j < THREAD_N; j++) sum[i][j] = 0.0f;

  // Factors of one k; those of the next are loaded while these are used.
  float a[2][kThreadM], b[2][THREAD_N];
  const auto load = [&](const float* stage, int k) {
    const float* rows = stage + k * kM + warp / WARPS_N * 32 + (4 * ty ^ (8 * (k / 4 % 2)));
    const Weight* weights = reinterpret_cast<const Weight*>(stage + kStep * kM) + k * kW + column0;
#pragma unroll
    for (int g = 0; g < kQuads; g++) widen_some<4>(weights + 32 * g, b[k % 2] + 4 * g);
#pragma unroll
    for (int g = 0; g < 2; g++) widen_some<4>(rows + (16 * g ^ (16 * (k / 8))), a[k % 2] + 4 * g);
  };
  // Rows outer and outputs inner, turning at the ends: a factor of the fma before is used again.
  const auto multiply = [&](int k) {
#pragma unroll
    for (int i = 0; i < kThreadM; i++)
#pragma unroll
      for (int j = 0; j < THREAD_N; j++) {
        const int jj = i & 1 ? THREAD_N - 1 - j : j;
        sum[i][jj] = __fmaf_rn(a[k % 2][i], b[k % 2][jj], sum[i][jj]);
      }
  };

  const int steps = (last - first + kStep - 1) / kStep;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) copy(s, first + s * kStep);
    copies_commit();
  }
  fetch(first);
  turn(0);
  int stage = 0, filling = STAGES - 1;
  bool parking = false;
  const auto arrive = [&]() {  // the next stage has landed for all, and the one before it is no longer read
    copies_wait<STAGES - 2>();
    __syncthreads();
  };
#if EARLY
  arrive();
  load(stages, 0);
#endif
  for (int s = 0; s < steps; s++) {
    const float* here = stages + stage * kStage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#if !EARLY
    arrive();
#endif
    if (s + STAGES - 1 < steps) copy(filling, first + (s + STAGES - 1) * kStep);
    copies_commit();
    filling = filling + 1 == STAGES ? 0 : filling + 1;
    if (s + 1 < steps) fetch(first + (s + 1) * kStep);
#if !EARLY
    load(here, 0);
#endif
    const int count = last - first - s * kStep;
#pragma unroll
    for (int k = 0; k < kStep; k++) {
      if (k + 1 < kStep) {
        load(here, k + 1);
      } else if (EARLY && s + 1 < steps) {
        turn(stage);
        arrive();
        load(stages + stage * kStage, 0);
      }
      if (!RAGGED || k < count) multiply(k);
    }
    if (!EARLY && s + 1 < steps) turn(stage);
    if (!SPLIT && s % kStepsOfBlock == kStepsOfBlock - 1 && s + 1 < steps) {
#pragma unroll
      for (int i = 0; i < kThreadM; i++)
#pragma unroll
        for (int g = 0; g < kQuads; g++) {
          float4* place = parked + (i * kQuads + g) * kThreads + t;
          float* v = sum[i] + 4 * g;
          if (parking) add_parked(v, *place);
          *place = make_float4(v[3], v[2], v[1], v[0]);
          v[0] = v[1] = v[2] = v[3] = 0.0f;
        }
      parking = true;
    }
  }

#pragma unroll
  for (int i = 0; i < kThreadM; i++) {
    const int row = m0 + row0 + i % 4 + 16 * (i / 4);
    if (row >= T) continue;
#pragma unroll
    for (int g = 0; g < kQuads; g++) {
      float* v = sum[i] + 4 * g;
#if SPLIT
      const int quad = (n0 + column0) / 4 + 8 * g, quads = (N + 3) / 4;
      if (quad < quads)
        reinterpret_cast<float4*>(y)[(static_cast<long long>(blockIdx.z) * T + row) * quads + quad] =
            make_float4(v[3], v[2], v[1], v[0]);
      continue;
#endif
      if (parking) add_parked(v, parked[(i * kQuads + g) * kThreads + t]);
      finish4(v, bias, add, y, row, n0 + column0 + 32 * g, N, wide);
    }
  }
}
