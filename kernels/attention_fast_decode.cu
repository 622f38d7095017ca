// Second of the two kernels of `fast-decode`, after attention_fast_scores: softmax and value chains of few
// rows.
//
// vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [grid.x]; scores
// [grid.x][DISTS][C], C a multiple of 128; out [T][Hq][D]. Grid: (items, D/32): the blocks of an item share
// its dimensions, 32 each, and repeat its softmax, which is little work beside another launch. Block: four
// warps.
//   softmax  a warp takes every fourth distribution; a lane has keys 128i + 4 lane + c, c < 4, so that the
//            strides 16, 8, 4 of tree32 lie across lanes, 2 and 1 in c, and the last tree across the rest
//   values   lane = dimension, a warp chains the same distributions over ascending keys; V comes in tiles of
//            128 keys by asynchronous copies, which start before the softmax
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

namespace {

constexpr int kTile = 128, kStages = 3;
constexpr int kHeld = 8;                // float4 of scores that a lane holds
constexpr int kEach = (DISTS + 3) / 4;  // chains of a thread: distributions warp, warp + 4, …

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    attention_fast_decode(const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                          const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, int C,
                          const float* __restrict__ scores, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  float* stages = reinterpret_cast<float*>(memory);          // [kStages][kTile][32]
  float* weights = stages + kStages * kTile * 32;            // [DISTS][C]
  int* slots = reinterpret_cast<int*>(weights + DISTS * C);  // [C/16] first slot row of each page
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const Item item = items[blockIdx.x];
  const int kv_head = item.kv_head(), end = item.end(), kv_dim = Hkv * D, count = item.rows() * G;
  const int tiles = (end + kTile - 1) / kTile, column = kv_head * D + blockIdx.y * 32 + (t & 7) * 4;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  // The first 1,024 scores of the warp's first distribution are asked for before anything waits.
  float4 held[kHeld];
  auto load_scores = [&](int dist, int base, int L) {
    const float* s = scores + (static_cast<long long>(blockIdx.x) * DISTS + dist) * C + base + lane * 4;
#pragma unroll
    for (int i = 0; i < kHeld; i++)
      if (base + i * 128 < L) held[i] = load4(s + i * 128);
  };
  if (warp < count) load_scores(warp, 0, item.length + warp / G);

  for (int i = t; i < C / kPage; i += 128)
    slots[i] = i * kPage < end ? (table[i] * layers + layer) * kPage : 0;
  __syncthreads();

  auto stage = [&](int tile) {
    if (tile < tiles) {
      const SharedFloats to = ahead(shared_floats(stages), tile % kStages * (kTile * 32) + t * 4);
      int slot[kTile / kPage];
#pragma unroll
      for (int i = 0; i < kTile / kPage; i++) slot[i] = slots[tile * (kTile / kPage) + i] + (t >> 3);
#pragma unroll
      for (int i = 0; i < kTile / kPage; i++)
        if (tile * kTile + i * kPage + (t >> 3) < end)
          copy16_async(ahead(to, i * kPage * 32), vpool + static_cast<long long>(slot[i]) * kv_dim + column);
    }
    copies_commit();
  };
#pragma unroll
  for (int tile = 0; tile < kStages - 1; tile++) stage(tile);

  float acc[kEach], inverse[kEach];
  int lengths[kEach], shortest = end;
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = warp + a * 4;
    acc[a] = 0.0f, inverse[a] = 0.0f, lengths[a] = 0;
    if (dist >= count) continue;
    const int L = lengths[a] = item.length + dist / G;
    shortest = min(shortest, L);
    float* e = weights + dist * C + lane * 4;
    float m = minus_infinity();
    for (int base = 0; base < L; base += kHeld * 128) {
      if (a || base) load_scores(dist, base, L);
#pragma unroll
      for (int i = 0; i < kHeld; i++) {
        const int left = L - base - i * 128 - lane * 4;  // beyond L: another row's scores, or none
        if (left > 0) m = fmaxf(m, held[i].x);
        if (left > 1) m = fmaxf(m, held[i].y);
        if (left > 2) m = fmaxf(m, held[i].z);
        if (left > 3) m = fmaxf(m, held[i].w);
      }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, o));
    float sums[2][4];
#pragma unroll
    for (int c = 0; c < 4; c++) sums[0][c] = sums[1][c] = 0.0f;
    for (int base = 0; base < L; base += kHeld * 128) {
      if (L > kHeld * 128) load_scores(dist, base, L);
#pragma unroll
      for (int i = 0; i < kHeld; i++) {
        if (base + i * 128 >= L) continue;
        const int left = L - base - i * 128 - lane * 4;
        float x[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
          x[c] = exp_selected(__fsub_rn(x[c], m));
          x[c] = c < left ? x[c] : 0.0f;  // + 0 changes no sum of numbers >= +0
          sums[i & 1][c] = __fadd_rn(sums[i & 1][c], x[c]);
        }
        *reinterpret_cast<float4*>(e + base + i * 128) = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
#pragma unroll
    for (int o = 4; o; o >>= 1)  // strides 16, 8, 4 of a virtual warp, which is eight lanes
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
          sums[i][c] = __fadd_rn(sums[i][c], __shfl_xor_sync(kAllLanes, sums[i][c], o));
#pragma unroll
    for (int i = 0; i < 2; i++)
      sums[i][0] = __fadd_rn(__fadd_rn(sums[i][0], sums[i][2]), __fadd_rn(sums[i][1], sums[i][3]));
    float z = __fadd_rn(sums[0][0], sums[1][0]);  // virtual warps v and v + 4, then + 2, + 1
    z = __fadd_rn(z, __shfl_xor_sync(kAllLanes, z, 16));
    z = __fadd_rn(z, __shfl_xor_sync(kAllLanes, z, 8));
    inverse[a] = __fdiv_rn(1.0f, z);
    __syncwarp();
  }

#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    copies_wait<kStages - 2>();
    __syncthreads();  // this tile is there, and everybody has left the one whose place comes next
    stage(tile + kStages - 1);
    const float* v = stages + tile % kStages * (kTile * 32) + lane;
    const int base = tile * kTile, common = max(0, min(kTile, shortest - base)) & ~15;
    if (warp >= count) continue;
    // Eight keys are loaded while the eight before are chained: a chain waits 4 cycles a key, not for memory.
    float x[2][8];
    float4 w[2][kEach][2];
    auto load = [&](int buffer, int j) {
#pragma unroll
      for (int i = 0; i < 8; i++) x[buffer][i] = v[(j + i) * 32];
#pragma unroll
      for (int a = 0; a < kEach; a++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (DISTS % 4 == 0 || warp + a * 4 < DISTS)
            w[buffer][a][i] = load4(weights + (warp + a * 4) * C + base + j + i * 4);
    };
    auto chain = [&](int buffer) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int a = 0; a < kEach; a++) {
          acc[a] = __fmaf_rn(w[buffer][a][i].x, x[buffer][i * 4], acc[a]);
          acc[a] = __fmaf_rn(w[buffer][a][i].y, x[buffer][i * 4 + 1], acc[a]);
          acc[a] = __fmaf_rn(w[buffer][a][i].z, x[buffer][i * 4 + 2], acc[a]);
          acc[a] = __fmaf_rn(w[buffer][a][i].w, x[buffer][i * 4 + 3], acc[a]);
        }
    };
    if (common) load(0, 0);
#pragma unroll 1
    for (int j = 0; j < common; j += 16) {
      load(1, j + 8);
      chain(0);
      load(0, min(j + 16, kTile - 8));
      chain(1);
    }
    for (int j = common; j < min(kTile, end - base); j++)
#pragma unroll
      for (int a = 0; a < kEach; a++)
        if (base + j < lengths[a])
          acc[a] = __fmaf_rn(weights[(warp + a * 4) * C + base + j], v[j * 32], acc[a]);
  }
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = warp + a * 4;
    if (dist >= count) continue;
    const int row = item.first_row + dist / G, head = kv_head * G + dist % G;
    out[(static_cast<long long>(row) * Hq + head) * D + blockIdx.y * 32 + lane] =
        __fmul_rn(acc[a], inverse[a]);
  }
}
