// The second phase of attention_fast_tile.cu, half of its warps: weights exp(s_j - m), their sum, and the
// staging of V for the other half.
#pragma once
#include "attention_fast_tile.cuh"

namespace {

// sums[kFirst + h][i] += e[h][i]: the place of a tile in 256 keys must be a constant to index registers.
template <int kFirst>
__device__ __forceinline__ void add_at(float (&sums)[8][8], const float (&e)[2][8]) {
  stand_apart<kFirst>();
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 8; i++) sums[kFirst + h][i] = __fadd_rn(sums[kFirst + h][i], e[h][i]);
}

// All weights, a tile of 64 keys at a time, and at last 1/Z into `maxima`.
__device__ __forceinline__ void weigh(const Block& b, const float* __restrict__ vpool, int role, int lane) {
  const int tiles = (b.end + 63) / 64;
  // thread = distribution and residue of the key modulo 4; sums[v][i] is a[32v + 4i + residue]
  const int member = (role - kValueWarps) * 32 + lane;
  const int dist = member & (TILE - 1), residue = member / TILE;
  const int column = member % (D / 4), first_key = member / (D / 4);
  constexpr int kKeyStep = kWeightThreads / (D / 4);
  const int value_column = b.kv_head * D + column * 4 + first_key * b.kv_dim;
  auto stage_values = [&](int tile) {
    const SharedFloats to = ahead(shared_floats(b.staging), (tile & 1) * kStage + first_key * D + column * 4);
    int slot[4];
#pragma unroll
    for (int p = 0; p < 4; p++) slot[p] = b.slots[tile * 4 + p];
#pragma unroll
    for (int p = 0; p < 4; p++) {
      const float* from = vpool + static_cast<long long>(slot[p]) * b.kv_dim + value_column;
#pragma unroll
      for (int i = 0; i < kPage; i += kKeyStep)
        copy16_async(ahead(to, (p * kPage + i) * D), from + i * b.kv_dim);
    }
    copies_commit();
  };
  const int ends = b.L0 + min(dist / G, b.rows - 1) - residue;
  float* even = b.scores + score_at(residue, dist);
  float* odd = b.scores + score_at(residue + 4, dist) - 4 * TILE;
  float* weight = b.weights + residue * TILE + dist;
  float sums[8][8], e[2][8];
#pragma unroll
  for (int v = 0; v < 8; v++)
#pragma unroll
    for (int i = 0; i < 8; i++) sums[v][i] = 0.0f;
  auto load = [&](int tile) {
    const bool whole = tile * 64 + 64 <= b.end;
    const float *from_even = even + tile * 64 * TILE, *from_odd = odd + tile * 64 * TILE;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        // Past the end nobody wrote: harmless in shared memory, an uninitialised read in scratch memory.
        const bool written = !GLOBAL || whole || tile * 64 + h * 32 + i * 4 + residue < b.end;
        e[h][i] = written ? (i & 1 ? from_odd : from_even)[(h * 32 + i * 4) * TILE] : 0.0f;
      }
  };
  stage_values(0);
  if (GLOBAL) load(0);
  float m = minus_infinity();
#pragma unroll
  for (int w = 0; w < kWarps; w++) m = fmaxf(m, b.maxima[w * TILE + dist]);
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    if (!GLOBAL) load(tile);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 8; i++) e[h][i] = exp_selected(__fsub_rn(e[h][i], m));
    if (tile * 64 + 64 > b.L0) {
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) e[h][i] = tile * 64 + h * 32 + i * 4 < ends ? e[h][i] : 0.0f;
    }
    float* to_even = (GLOBAL ? weight : even) + (GLOBAL ? tile & 1 : tile) * 64 * TILE;
    float* to_odd = (GLOBAL ? weight : odd) + (GLOBAL ? tile & 1 : tile) * 64 * TILE;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 8; i++) (i & 1 ? to_odd : to_even)[(h * 32 + i * 4) * TILE] = e[h][i];
    switch (tile & 3) {
      case 0:
        add_at<0>(sums, e);
        break;
      case 1:
        add_at<2>(sums, e);
        break;
      case 2:
        add_at<4>(sums, e);
        break;
      default:
        add_at<6>(sums, e);
    }
    if (GLOBAL && tile + 1 < tiles) load(tile + 1);  // long before its use: it comes from memory
    copies_wait<0>();
    meet<kThreads>();  // weights and values of this tile are there; the tile before is chained
    if (tile + 1 < tiles) stage_values(tile + 1);
  }
  // Z: tree32 over 32v … 32v + 31, whose strides 16, 8, 4 lie in one thread and 2, 1 across residues
#pragma unroll
  for (int v = 0; v < 8; v++) {
    float* a = sums[v];
#pragma unroll
    for (int o = 4; o; o >>= 1)
#pragma unroll
      for (int i = 0; i < o; i++) a[i] = __fadd_rn(a[i], a[i + o]);
    b.queries[(v * 4 + residue) * TILE + dist] = a[0];
  }
  meet<kThreads>();
  if (member < TILE) {
    float w[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
      const float* a = b.queries + v * 4 * TILE + member;
      w[v] = __fadd_rn(__fadd_rn(a[0], a[2 * TILE]), __fadd_rn(a[TILE], a[3 * TILE]));
    }
    b.maxima[member] = __fdiv_rn(1.0f, tree8(w));
  }
  meet<kThreads>();
}

}  // namespace
