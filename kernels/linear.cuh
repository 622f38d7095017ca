// Linear layers in f32 on the GPU: how weights lie in memory, how they widen, how a result is finished.
//
// Weights: [ceil(N/8)][K][8] numbers, f32 (STORAGE 0) or bf16 (STORAGE 1), read in pieces of 16 bytes: four
// or eight outputs at one k. Eight outputs (a panel) are one contiguous run over all of K. K is not padded,
// since fma(0, 0, -0) would change a bit; outputs past N are zeros whose results nobody stores. Contract
// section: 6.
#pragma once

#include "contract.cuh"

#ifndef STORAGE
#define STORAGE 0
#endif

namespace {

#if STORAGE
using Weight = unsigned short;
#else
using Weight = float;
#endif

constexpr int kBlock = 256;                  // k of a block's chain
constexpr int kPanel = 8;                    // outputs of a panel
constexpr int kPiece = 16 / sizeof(Weight);  // outputs of a piece
constexpr int kPieces = kPanel / kPiece;     // pieces of a panel at one k

__device__ __forceinline__ int panels_of(int N) { return (N + kPanel - 1) / kPanel; }

__device__ __forceinline__ float widen(float w) { return w; }
__device__ __forceinline__ float widen(unsigned short w) { return __uint_as_float(unsigned{w} << 16); }

// kCount neighbouring weights (a power of two, aligned to their size) in one load.
template <int kCount>
__device__ __forceinline__ void widen_some(const float* from, float* to) {
  if constexpr (kCount == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (kCount == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    static_assert(kCount == 1, "one, two or four");
    to[0] = *from;
  }
}
template <int kCount>
__device__ __forceinline__ void widen_some(const unsigned short* from, float* to) {
  if constexpr (kCount == 1) {
    to[0] = widen(*from);
  } else {
    unsigned words[kCount / 2];
    if constexpr (kCount == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      words[0] = v.x, words[1] = v.y;
    } else {
      static_assert(kCount == 2, "one, two or four");
      words[0] = *reinterpret_cast<const unsigned*>(from);
    }
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

// Bias and residual after the blocks' sum y, each with its own rounding; bias [N] and add [T][N] may be null.
__device__ __forceinline__ float finished(float y, const float* bias, const float* add, long long at, int n) {
  if (bias) y = __fadd_rn(y, bias[n]);
  return add ? __fadd_rn(add[at], y) : y;
}

// Four neighbouring outputs, stored at once where `wide` (N a multiple of 4, all pointers 16-byte aligned).
__device__ __forceinline__ void finish4(const float* sums, const float* bias, const float* add, float* y,
                                        int row, int n, int N, bool wide) {
  const long long at = static_cast<long long>(row) * N + n;
  if (wide) {
    if (n >= N) return;
    float4 v = make_float4(sums[0], sums[1], sums[2], sums[3]);
    if (bias) {
      const float4 b = *reinterpret_cast<const float4*>(bias + n);
      v = make_float4(__fadd_rn(v.x, b.x), __fadd_rn(v.y, b.y), __fadd_rn(v.z, b.z), __fadd_rn(v.w, b.w));
    }
    if (add) {
      const float4 a = *reinterpret_cast<const float4*>(add + at);
      v = make_float4(__fadd_rn(a.x, v.x), __fadd_rn(a.y, v.y), __fadd_rn(a.z, v.z), __fadd_rn(a.w, v.w));
    }
    *reinterpret_cast<float4*>(y + at) = v;
    return;
  }
#pragma unroll
  for (int q = 0; q < 4; q++)
    if (n + q < N) y[at + q] = finished(sums[q], bias, add, at + q, n + q);
}

}  // namespace
