// Third of the three kernels of `fast-split`: the value chains, parallel over distributions and dimensions.
//
// vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [grid.x]; weights
// [grid.x][DISTS][C] = exp(s_j - max); inverses [grid.x][DISTS]; out [T][Hq][D]. Grid: (items, D/32).
// Block: 128 threads. All of them copy tiles of 64 keys, V and weights, four tiles deep; then lane =
// dimension, and one, two or four warps share the distributions, a chain each over ascending keys.
// Contract sections: 1, 4, 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

namespace {

constexpr int kTile = 64, kStages = 4;
constexpr int kShare = DISTS <= 4 ? 1 : DISTS <= 8 ? 2 : 4;
constexpr int kEach = (DISTS + kShare - 1) / kShare;  // chains of a thread
constexpr int kChainWarps = (DISTS + kEach - 1) / kEach;
constexpr int kFloats = kTile * 32 + DISTS * kTile;  // one stage: V [64][32], weights [DISTS][64]
static_assert(kChainWarps <= 4 && DISTS <= 32, "four warps chain");

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    attention_fast_values(const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                          const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, int C,
                          const float* __restrict__ weights, const float* __restrict__ inverses,
                          float* __restrict__ out) {
  extern __shared__ float4 memory[];
  float* stages = reinterpret_cast<float*>(memory);
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const Item item = items[blockIdx.x];
  const int kv_head = item.kv_head(), end = item.end(), kv_dim = Hkv * D, count = item.rows() * G;
  const int tiles = (end + kTile - 1) / kTile, column = kv_head * D + blockIdx.y * 32 + (t & 7) * 4;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  const float* own = weights + static_cast<long long>(blockIdx.x) * DISTS * C;

  auto stage = [&](int tile) {
    if (tile < tiles) {
      float* v = stages + tile % kStages * kFloats;
      float* e = v + kTile * 32;
#pragma unroll
      for (int i = 0; i < kTile; i += 16) {
        const int j = tile * kTile + i + (t >> 3);
        if (j < end)
          copy16_async(v + (i + (t >> 3)) * 32 + (t & 7) * 4,
                       vpool + slot_offset(table, j, layer, layers, kv_dim) + column);
      }
#pragma unroll
      for (int i = t; i < DISTS * (kTile / 4); i += 128)
        if (i / (kTile / 4) < count)
          copy16_async(e + i * 4, own + static_cast<long long>(i / (kTile / 4)) * C + tile * kTile +
                                      i % (kTile / 4) * 4);
    }
    copies_commit();
  };
#pragma unroll
  for (int tile = 0; tile < kStages - 1; tile++) stage(tile);

  float acc[kEach];
  int lengths[kEach], shortest = end;
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = warp * kEach + a;
    acc[a] = 0.0f;
    lengths[a] = dist < count ? item.length + dist / G : 0;
    if (dist < count) shortest = min(shortest, lengths[a]);
  }
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    copies_wait<kStages - 2>();
    __syncthreads();  // this tile is there, and everybody has left the one whose place comes next
    stage(tile + kStages - 1);
    if (warp >= kChainWarps) continue;
    const float* v = stages + tile % kStages * kFloats + lane;
    const float* e = stages + tile % kStages * kFloats + kTile * 32 + warp * kEach * kTile;
    const int base = tile * kTile, common = max(0, min(kTile, shortest - base)) & ~7;
#pragma unroll 1
    for (int j = 0; j < common; j += 8) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = v[(j + i) * 32];
#pragma unroll
      for (int i = 0; i < 8; i += 4)
#pragma unroll
        for (int a = 0; a < kEach; a++) {
          if (DISTS % kEach && warp * kEach + a >= DISTS) continue;
          const float4 four = load4(e + a * kTile + j + i);
          acc[a] = __fmaf_rn(four.x, x[i], acc[a]);
          acc[a] = __fmaf_rn(four.y, x[i + 1], acc[a]);
          acc[a] = __fmaf_rn(four.z, x[i + 2], acc[a]);
          acc[a] = __fmaf_rn(four.w, x[i + 3], acc[a]);
        }
    }
    for (int j = common; j < min(kTile, end - base); j++)
#pragma unroll
      for (int a = 0; a < kEach; a++)
        if (base + j < lengths[a]) acc[a] = __fmaf_rn(e[a * kTile + j], v[j * 32], acc[a]);
  }
  if (warp >= kChainWarps) return;
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = warp * kEach + a;
    if (dist >= count) continue;
    const int row = item.first_row + dist / G, head = kv_head * G + dist % G;
    out[(static_cast<long long>(row) * Hq + head) * D + blockIdx.y * 32 + lane] =
        __fmul_rn(acc[a], inverses[static_cast<long long>(blockIdx.x) * DISTS + dist]);
  }
}
