// Second of the two kernels of `fast-decode`, after attention_fast_scores: softmax and value chains of few
// rows.
//
// vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [grid.x], one of no rows is passed
// over; scores [grid.x][DISTS][C], C a multiple of 128, -infinity where a row does not see the key; out
// [T][Hq][D]. Grid: (items, D/32): the blocks of an item share its dimensions, 32 each, and repeat its
// softmax, which is little work beside another launch. Block: eight warps.
//   softmax  a warp takes the even or the odd 128s of a distribution's keys, which are the virtual warps 0 to
//   3
//            or 4 to 7 of sum256; a lane has keys 128i + 4 lane + c, c < 4, so that the strides 16, 8, 4 of
//            tree32 lie across lanes, 2 and 1 in c
//   values   warp = two distributions, half a warp = one, thread = two dimensions over ascending keys; the
//            last four warps bring V by asynchronous copies, which start before the softmax
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

namespace {

constexpr int kThreads = 256, kCopyWarp = 4;  // first of the warps that bring V
constexpr int kTile = 64, kStages = 5, kTileFloats = kTile * 32, kPages = kTile / kPage;
constexpr int kHeld = 4;  // float4 of scores that a lane holds
constexpr int kSpan = 2 * kHeld * 128;
constexpr int kAhead = 16, kGroups = kAhead / 4;  // keys in registers ahead of the chain
static_assert(DISTS <= 16, "a warp has two distributions");
static_assert((kStages - 1) * kPages <= 32, "a lane knows a page");

__device__ __forceinline__ float max8(const float4& a, const float4& b) {
  return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 3)
    attention_fast_decode(const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                          const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, int C,
                          const float* scores, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  const int row_floats = C + 4;                      // rows of weights in different banks
  float* stages = reinterpret_cast<float*>(memory);  // [kStages][kTile][32]
  float* weights = stages + kStages * kTileFloats;   // [DISTS][C + 4]
  float* totals = weights + DISTS * row_floats;      // [DISTS][8] tree32 of the virtual warps
  unsigned* slots = reinterpret_cast<unsigned*>(totals + DISTS * 8);  // [C/16] first slot of each page
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const Item item = items[blockIdx.x];
  const int kv_head = item.kv_head(), end = item.end(), kv_dim = Hkv * D, count = item.rows() * G;
  if (end <= 0) return;
  const int tiles = (end + kTile - 1) / kTile;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;

  const int key = (t & 127) >> 3;  // of a page, where this thread brings V
  const unsigned row_bytes = kv_dim * 4, slot_of_page = layers * kPage;
  const float* v_from = vpool + static_cast<long long>(layer * kPage + key) * kv_dim + kv_head * D +
                        blockIdx.y * 32 + (t & 7) * 4;
  const SharedFloats v_to = ahead(shared_floats(stages), (t & 127) * 4);
  auto stage = [&](int tile, int place, const unsigned (&slot)[kPages]) {
#pragma unroll
    for (int i = 0; i < kPages; i++)
      copy16_async_if(tile * kTile + i * kPage + key < end, ahead(v_to, place * kTileFloats + i * kPage * 32),
                      rows_ahead(v_from, slot[i], row_bytes));
    copies_commit();
  };
  const int last_page = (end - 1) / kPage;
  if (warp >= kCopyWarp) {
    const unsigned slots_of_lane = table[min(lane, last_page)] * slot_of_page;
#pragma unroll
    for (int tile = 0; tile < kStages - 1; tile++) {
      unsigned slot[kPages];
#pragma unroll
      for (int i = 0; i < kPages; i++) slot[i] = __shfl_sync(kAllLanes, slots_of_lane, tile * kPages + i);
      stage(tile, tile, slot);
    }
  }
#pragma unroll 1
  for (int i = t; i < C / kPage; i += kThreads) slots[i] = table[min(i, last_page)] * slot_of_page;

  await_previous();
  const float* s = scores + static_cast<long long>(blockIdx.x) * DISTS * C + lane * 4;
  float4 own[kHeld], other[kHeld];
  auto load_scores = [&](float4(&held)[kHeld], int dist, int from, int L) {
#pragma unroll
    for (int i = 0; i < kHeld; i++)  // past the end the first scores, which move no maximum
      held[i] = load4_fresh(s + dist * C + (from + i * 256 < L ? from + i * 256 : 0));
  };
  const int half = (warp & 1) * 128;
#pragma unroll 1
  for (int unit = warp; unit < 2 * count; unit += kThreads / 32) {
    const int dist = unit >> 1, L = item.length + dist / G;
    load_scores(own, dist, half, L);
    load_scores(other, dist, 128 - half, L);
    float m = max8(own[0], other[0]);
#pragma unroll
    for (int i = 1; i < kHeld; i++) m = fmaxf(m, max8(own[i], other[i]));
#pragma unroll 1
    for (int base = kSpan; base < L; base += kSpan) {
      load_scores(own, dist, base + half, L);
      load_scores(other, dist, base + 128 - half, L);
#pragma unroll
      for (int i = 0; i < kHeld; i++) m = fmaxf(m, max8(own[i], other[i]));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, o));
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float* e = weights + dist * row_floats + lane * 4;
#pragma unroll 1
    for (int base = half; base < L; base += kSpan) {
      if (L > kSpan) load_scores(own, dist, base, L);
#pragma unroll
      for (int i = 0; i < kHeld; i++) {
        if (base + i * 256 >= L) continue;
        float x[4] = {own[i].x, own[i].y, own[i].z, own[i].w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
          x[c] = exp_selected(__fsub_rn(x[c], m));  // +0 of an unseen key changes no sum of numbers >= +0
          sums[c] = __fadd_rn(sums[c], x[c]);
        }
        *reinterpret_cast<float4*>(e + base + i * 256) = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
#pragma unroll
    for (int o = 4; o; o >>= 1)  // strides 16, 8, 4 of a virtual warp, which is eight lanes
#pragma unroll
      for (int c = 0; c < 4; c++) sums[c] = __fadd_rn(sums[c], __shfl_xor_sync(kAllLanes, sums[c], o));
    if ((lane & 7) == 0)
      totals[dist * 8 + half / 32 + lane / 8] =
          __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
  }

  const int dist = warp * 2 + (lane >> 4), L = dist < count ? item.length + dist / G : 0;
  const bool chains = warp * 2 < count;
  const float* v = stages + (lane & 15) * 2;
  const float* w_row = weights + min(dist, DISTS - 1) * row_floats;
  float2 acc = make_float2(0.0f, 0.0f), x[kAhead];
  float4 w[kAhead / 4];
  // A group is four keys. Sixteen keys are in registers ahead of the chain, and a whole tile is one straight
  // line: over the back edge of a loop the compiler waits for every load at once.
  auto load = [&](int g, const float* from, int j) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      x[g % kGroups * 4 + i] = *reinterpret_cast<const float2*>(from + (g * 4 + i) * 32);
    w[g % kGroups] = load4(w_row + j + g * 4);
  };
  auto step = [&](float weight, const float2& value) {
    acc.x = __fmaf_rn(weight, value.x, acc.x);
    acc.y = __fmaf_rn(weight, value.y, acc.y);
  };
  auto chain_group = [&](int g, int left) {
    const int at = g % kGroups;
    if (left > 0) step(w[at].x, x[at * 4]);
    if (left > 1) step(w[at].y, x[at * 4 + 1]);
    if (left > 2) step(w[at].z, x[at * 4 + 2]);
    if (left > 3) step(w[at].w, x[at * 4 + 3]);
  };
  int place = 0;
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    // This tile and the next are there, and everybody has left the one before.
    copies_wait<kStages - 3>();
    __syncthreads();
    const int next = place + 1 < kStages ? place + 1 : 0;
    if (warp >= kCopyWarp) {
      if (tile + kStages - 1 < tiles) {
        unsigned slot[kPages];
#pragma unroll
        for (int i = 0; i < kPages; i++) slot[i] = slots[(tile + kStages - 1) * kPages + i];
        stage(tile + kStages - 1, place ? place - 1 : kStages - 1, slot);
      } else {
        copies_commit();
      }
    }
    if (chains) {
      const float *here = v + place * kTileFloats, *after = v + next * kTileFloats - kTileFloats;
      const int base = tile * kTile;
      if (tile == 0)
#pragma unroll
        for (int g = 0; g < kGroups; g++) load(g, here, base);
      if (base + kTile <= item.length) {
#pragma unroll
        for (int g = 0; g < kTile / 4; g++) {
          chain_group(g, 4);
          load(g + kGroups, g + kGroups < kTile / 4 ? here : after, base);
        }
      } else {
#pragma unroll
        for (int g = 0; g < kTile / 4; g++) {
          chain_group(g, L - base - g * 4);
          load(g + kGroups, g + kGroups < kTile / 4 ? here : after, base);
        }
      }
    }
    place = next;
  }
  if (dist >= count) return;
  const float4 low = load4(totals + dist * 8), high = load4(totals + dist * 8 + 4);
  const float z[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const float inverse = __fdiv_rn(1.0f, tree8(z));
  const int row = item.first_row + dist / G, head = kv_head * G + dist % G;
  float* to = out + (static_cast<long long>(row) * Hq + head) * D + blockIdx.y * 32 + (lane & 15) * 2;
  *reinterpret_cast<float2*>(to) = make_float2(__fmul_rn(acc.x, inverse), __fmul_rn(acc.y, inverse));
}
