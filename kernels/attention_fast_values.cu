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

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    attention_fast_values(const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                          const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, int C,
                          const float* __restrict__ weights, const float* __restrict__ inverses,
                          float* __restrict__ out) {
  extern __shared__ float4 memory[];
  float* stages = reinterpret_cast<float*>(memory);                 // [kStages][kFloats]
  int* slots = reinterpret_cast<int*>(stages + kStages * kFloats);  // [C/16] first slot row of each page
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const Item item = items[blockIdx.x];
  const int kv_head = item.kv_head(), end = item.end(), kv_dim = Hkv * D, count = item.rows() * G;
  const int tiles = (end + kTile - 1) / kTile, column = kv_head * D + blockIdx.y * 32 + (t & 7) * 4;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  const float* own = weights + static_cast<long long>(blockIdx.x) * DISTS * C;

  for (int i = t; i < tiles * (kTile / kPage); i += 128)
    slots[i] = i * kPage < end ? (table[i] * layers + layer) * kPage : 0;
  __syncthreads();

  const int key = t >> 3;
  auto stage = [&](int tile) {
    if (tile < tiles) {
      const SharedFloats v = ahead(shared_floats(stages), tile % kStages * kFloats);
      int slot[kTile / kPage];
#pragma unroll
      for (int i = 0; i < kTile / kPage; i++) slot[i] = slots[tile * (kTile / kPage) + i] + key;
#pragma unroll
      for (int i = 0; i < kTile / kPage; i++)
        if (tile * kTile + i * kPage + key < end)
          copy16_async(ahead(v, (i * kPage + key) * 32 + (t & 7) * 4),
                       vpool + static_cast<long long>(slot[i]) * kv_dim + column);
#pragma unroll
      for (int i = t; i < DISTS * (kTile / 4); i += 128)
        if (i / (kTile / 4) < count)
          copy16_async(ahead(v, kTile * 32 + i * 4), own + static_cast<long long>(i / (kTile / 4)) * C +
                                                         tile * kTile + i % (kTile / 4) * 4);
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
    auto chain8 = [&](int j) {
      float x[8];
      float4 w[2][kEach];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = v[(j + i) * 32];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int a = 0; a < kEach; a++)
          if (DISTS % kEach == 0 || warp * kEach + a < DISTS) w[i][a] = load4(e + a * kTile + j + i * 4);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int a = 0; a < kEach; a++) {
          acc[a] = __fmaf_rn(w[i][a].x, x[i * 4], acc[a]);
          acc[a] = __fmaf_rn(w[i][a].y, x[i * 4 + 1], acc[a]);
          acc[a] = __fmaf_rn(w[i][a].z, x[i * 4 + 2], acc[a]);
          acc[a] = __fmaf_rn(w[i][a].w, x[i * 4 + 3], acc[a]);
        }
    };
    if (common == kTile) {
#pragma unroll
      for (int j = 0; j < kTile; j += 8) chain8(j);
    } else {
#pragma unroll 1
      for (int j = 0; j < common; j += 8) chain8(j);
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
