// Linear layers in f32 on the GPU: how weights lie in memory, how they widen, how a result is finished.
//
// Weights: [ceil(N/8)][ceil(K/E)][8] pieces of 16 bytes; a piece holds E consecutive k of one output: four
// f32 or eight bf16. Eight outputs (a panel) are one contiguous run over all of K. Outputs past N and k past
// K are zeros that no arithmetic of a stored result reads: a chain ends at K. Contract section: 6.
#pragma once

#include "contract.cuh"

#ifndef STORAGE
#define STORAGE 0
#endif

namespace {

constexpr int kBlock = 256;              // k of a block's chain
constexpr int kPanel = 8;                // outputs of a panel
constexpr int kPiece = STORAGE ? 8 : 4;  // k of a piece of 16 bytes

struct Piece {
  float k[kPiece];
};

// The f32 weights that a piece stands for.
__device__ __forceinline__ Piece widen(const uint4& v) {
  Piece w;
#if STORAGE
  const unsigned u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    w.k[2 * i] = __uint_as_float(u[i] << 16);
    w.k[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
  }
#else
  w.k[0] = __uint_as_float(v.x), w.k[1] = __uint_as_float(v.y);
  w.k[2] = __uint_as_float(v.z), w.k[3] = __uint_as_float(v.w);
#endif
  return w;
}

// Pieces of a row of K weights.
__host__ __device__ __forceinline__ int pieces_of(int K) { return (K + kPiece - 1) / kPiece; }

// Bias and residual after the blocks' sum y, each with its own rounding; bias [N] and add [T][N] may be null.
__device__ __forceinline__ float finished(float y, const float* bias, const float* add, long long at, int n) {
  if (bias) y = __fadd_rn(y, bias[n]);
  return add ? __fadd_rn(add[at], y) : y;
}

}  // namespace
