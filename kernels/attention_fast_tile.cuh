// What the phases of attention_fast_tile.cu share: its macros, its sizes, and where things lie.
#pragma once
#include "attention_fast.cuh"

#ifndef TILE
#define TILE 32
#endif
#ifndef DOUBLE
#define DOUBLE 0
#endif
#ifndef ROLLED
#define ROLLED 1
#endif
#ifndef GLOBAL
#define GLOBAL 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2
#endif

namespace {

constexpr int kWarps = TILE / 4, kThreads = 32 * kWarps;
constexpr int kQuads = TILE / 4, kKeyGroups = 32 / kQuads, kChunk = 4 * kKeyGroups;
constexpr int kStep = kWarps * kChunk;  // keys that the warps score at a time: 128
constexpr int kPages = kChunk / kPage;
constexpr int kValueWarps = kWarps / 2, kWeightThreads = kThreads / 2;
constexpr int kWide = D / 64;           // float4 of V that a thread chains per distribution
constexpr int kQueryStride = TILE + 4;  // floats a dimension of q
constexpr int kKeyFloats = kChunk * D;  // one chunk of K
constexpr int kStage = 64 * D;          // one tile of V
constexpr int kStaging = kWarps * kKeyFloats * (1 + DOUBLE);
static_assert(kStaging >= 2 * kStage && D * kQueryStride >= 32 * TILE, "buffers that share memory");

// Where the score of key j and distribution `dist` lies: TILE floats a key, in shared memory with quads
// exchanged so that neither rows nor columns meet in a bank.
__device__ __forceinline__ int score_at(int j, int dist) {
  if (GLOBAL) return j * TILE + dist;
  if (TILE == 32) return j * 32 + (((dist >> 2) ^ (j & 7)) << 2) + (dist & 3);
  return (j >> 1) * 32 + (((j ^ (j >> 2)) & 1) << 4) + dist;
}

// One block's work and its shared memory.
struct Block {
  Item item;
  int rows, kv_head, L0, end, kv_dim;
  float* queries;  // [D][kQueryStride], then partial sums of Z [8][4][TILE]
  float* staging;  // K chunks, then V tiles [2][64][D]
  float* maxima;   // [kWarps][TILE], then 1/Z [TILE]
  int* slots;      // first slot row of each page
  float* weights;  // [C][TILE], GLOBAL [2][64][TILE]
  float* scores;   // [C][TILE]: where the weights are, GLOBAL in this block's scratch
};

}  // namespace
