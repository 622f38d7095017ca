// The third phase of attention_fast_tile.cu, half of its warps: out_d of a distribution as one chain of
// multiply-adds over ascending keys, a tile behind the weights.
#pragma once
#include "attention_fast_tile.cuh"

namespace {

// A thread chains 4 distributions x D/16 dimensions, and multiplies by 1/Z at the end.
__device__ __forceinline__ void chain_values(const Block& b, float* __restrict__ out, int Hq, int role,
                                             int lane) {
  const int tiles = (b.end + 63) / 64;
  const int quad = role * 2 + (lane & 1), d = (lane >> 1) * 4;
  float acc[4][4 * kWide];
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int c = 0; c < 4 * kWide; c++) acc[a][c] = 0.0f;
  int lengths[4], longest = 0;
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const int row = (quad * 4 + a) / G;
    lengths[a] = row < b.rows ? b.L0 + row : 0;
    longest = max(longest, lengths[a]);
  }
  auto chain = [&](const float* p, const float* v, bool whole, int j) {
    const float4 e4 = load4(p);
    const float e[4] = {e4.x, e4.y, e4.z, e4.w};
#pragma unroll
    for (int w = 0; w < kWide; w++) {
      const float4 v4 = load4(v + w * 64);
      const float x[4] = {v4.x, v4.y, v4.z, v4.w};
#pragma unroll
      for (int a = 0; a < 4; a++)
#pragma unroll
        for (int c = 0; c < 4; c++)
          if (whole || j < lengths[a]) acc[a][w * 4 + c] = __fmaf_rn(e[a], x[c], acc[a][w * 4 + c]);
    }
  };
  auto value_tile = [&](int tile) {
    const float* v = b.staging + (tile & 1) * kStage + d;
    const float* e = b.weights + (GLOBAL ? tile & 1 : tile) * 64 * TILE;
    const int base = tile * 64;
    const int common = max(0, min(64, b.L0 - base)) & ~15, stop = min(64, longest - base);
#pragma unroll 1
    for (int j0 = 0; j0 < common; j0 += 16) {
      const float* p = e + j0 * TILE;
#pragma unroll
      for (int j = 0; j < 16; j++) chain(p + score_at(j, quad * 4), v + (j0 + j) * D, true, 0);
    }
#pragma unroll 1
    for (int j = common; j < stop; j++) chain(e + score_at(j, quad * 4), v + j * D, G % 4 == 0, base + j);
  };

#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    meet<kThreads>();
    value_tile(tile);
  }
  meet<kThreads>();
  meet<kThreads>();  // 1/Z is there
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const int row = (quad * 4 + a) / G, head = b.kv_head * G + (quad * 4 + a) % G;
    if (row >= b.rows) continue;
    const float inverse = b.maxima[quad * 4 + a];
    float* to = out + (static_cast<long long>(b.item.first_row + row) * Hq + head) * D + d;
#pragma unroll
    for (int w = 0; w < kWide; w++) {
      const float* o = acc[a] + w * 4;
      *reinterpret_cast<float4*>(to + w * 64) =
          make_float4(__fmul_rn(o[0], inverse), __fmul_rn(o[1], inverse), __fmul_rn(o[2], inverse),
                      __fmul_rn(o[3], inverse));
    }
  }
}

}  // namespace
