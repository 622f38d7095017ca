// `fast-cluster`: few rows over a history of any length in one launch (sm_90), a cluster of blocks an item.
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [n], one
// of no rows is passed over; weights [n][DISTS][C] is scratch, C a multiple of 128. Grid: CLUSTER blocks an
// item. Block: 128 threads. All blocks of an item take a share of its keys and then one of its dimensions:
//   scores   block r has keys 128r ..., 128(r + CLUSTER) ...; thread = one key with its K in registers
//   softmax  maxima of the blocks meet in the shared memory of each; a thread turns its own scores into
//            weights, which meet in scratch, read from L2 by all blocks of the item
//   values   block r has dimensions r*D/CLUSTER ...; thread = one chain (distribution, dimension) over
//            ascending keys, in as few warps as hold them; the others sum the weights. V is on its way from
//            the start
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif
#ifndef CLUSTER
#define CLUSTER 8
#endif
#ifndef TILE
#define TILE 128
#endif
#ifndef STAGES
#define STAGES 8
#endif

namespace {

constexpr int kThreads = 128, kKeys = 128, kTile = TILE, kStages = STAGES;
constexpr int kKeyStride = D + 4, kWeightStride = kTile + 4;
constexpr int kDims = D / CLUSTER;                  // of a block
constexpr int kParts = kDims / 4;                   // 16-byte pieces of a key's V
constexpr int kCopies = kTile * kParts / kThreads;  // of a thread for a tile of V
constexpr int kWarpKeys = 32 / kParts;              // keys that a warp's copy covers
constexpr int kChains = DISTS * kDims;
constexpr int kEach = (kChains + kThreads - 1) / kThreads;  // chains of a thread
constexpr int kChainWarps = kChains < kThreads ? (kChains + 31) / 32 : 4;
constexpr int kSumWarps = kChainWarps <= 2 ? 4 - kChainWarps : 4;
constexpr int kSums = (DISTS + kSumWarps - 1) / kSumWarps;  // distributions that a warp sums
static_assert(kPage % kWarpKeys == 0 || kWarpKeys % kPage == 0, "a warp's copy stays inside pages");
static_assert(kWarpKeys <= kPage && kTile * kParts % kThreads == 0 && kTile % kKeys == 0, "tiles of V");

// Keys during the scores, then the ring of weights.
constexpr int kKeyFloats = kKeys * kKeyStride, kWeightFloats = kStages * DISTS * kWeightStride;
constexpr int kAreaFloats = kKeyFloats > kWeightFloats ? kKeyFloats : kWeightFloats;
constexpr int kValueFloats = kStages * kTile * kDims;
constexpr int kQueryFloats = (DISTS + 3) / 4 * 4 * D;
constexpr int kMaximaFloats = DISTS * CLUSTER;
constexpr int kFixedFloats = kAreaFloats + kValueFloats + kQueryFloats + kMaximaFloats + 20;

}  // namespace

extern "C" __global__ void BLOCKS_OF_CLUSTER(CLUSTER) __launch_bounds__(128, 256 / D)
    attention_fast_cluster(const float* __restrict__ q, const float* __restrict__ kpool,
                           const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                           const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv,
                           float scale, int C, float* weights, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  const int own_tiles = (C / kKeys + CLUSTER - 1) / CLUSTER;
  const int floats = kFixedFloats + own_tiles * DISTS * kKeys;
  float* area = own_shared<CLUSTER>(memory, floats);
  float* values = area + kAreaFloats;                 // [kStages][kTile][kDims]
  float* queries = values + kValueFloats;             // [DISTS, to a multiple of 4][D], by query_place
  float* maxima = queries + kQueryFloats;             // [DISTS][CLUSTER]
  float* inverses = maxima + kMaximaFloats;           // [16]
  int* turn = reinterpret_cast<int*>(inverses + 16);  // [4], one used
  float* own = inverses + 20;                         // [own_tiles][DISTS][128] scores

  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, rank = cluster_rank();
  const Item item = items[cluster_number()];
  const int end = item.end();
  if (end <= 0) return;  // all blocks of the cluster
  if (t == 0) *turn = resident_number();
  cluster_arrive();
  const int kv_head = item.kv_head(), kv_dim = Hkv * D, count = item.rows() * G;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  float* const mine = weights + static_cast<long long>(cluster_number()) * DISTS * C;

  // K of 128 keys, 16 bytes a copy.
  auto stage_keys = [&](int base) {
    constexpr int kColumns = D / 4, kStep = kThreads / kColumns;
    const int column = t % kColumns * 4, first = t / kColumns;
    const SharedFloats to = ahead(shared_floats(area), first * kKeyStride + column);
    int page[kKeys / kPage];
#pragma unroll
    for (int i = 0; i < kKeys / kPage; i++) page[i] = base + i * kPage < end ? table[base / kPage + i] : 0;
#pragma unroll
    for (int i = 0; i < kKeys; i += kStep) {
      const int slot = (page[i / kPage] * layers + layer) * kPage + ((first + i) & (kPage - 1));
      if (base + first + i < end)
        copy16_async(ahead(to, i * kKeyStride),
                     kpool + static_cast<long long>(slot) * kv_dim + kv_head * D + column);
    }
  };
  // Pages that the thread's copies of a tile of V lie in, and the copies.
  auto value_pages = [&](int tile, int (&page)[kCopies]) {
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int key = tile * kTile + (i * 4 + warp) * kWarpKeys;
      page[i] = key < end ? table[key / kPage] : 0;
    }
  };
  auto stage_values = [&](int tile, const int (&page)[kCopies]) {
    const SharedFloats to = ahead(shared_floats(values), tile % kStages * (kTile * kDims) + t * 4);
    const int column = kv_head * D + rank * kDims + lane % kParts * 4;
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int key = tile * kTile + (i * 4 + warp) * kWarpKeys + lane / kParts;
      const int slot = (page[i] * layers + layer) * kPage + (key & (kPage - 1));
      if (key < end)
        copy16_async(ahead(to, i * kThreads * 4), vpool + static_cast<long long>(slot) * kv_dim + column);
    }
  };
  auto stage_weights = [&](int tile) {
    const SharedFloats to = shared_floats(area);
    constexpr int kRow = kTile / 4;  // copies a distribution
#pragma unroll
    for (int i = 0; i < DISTS * kRow; i += kThreads) {
      const int dist = (i + t) / kRow, column = (i + t) % kRow * 4;
      if (dist < count && tile * kTile + column < (end + kKeys - 1) / kKeys * kKeys)
        copy16_async(ahead(to, (tile % kStages * DISTS + dist) * kWeightStride + column),
                     mine + static_cast<long long>(dist) * C + tile * kTile + column);
    }
  };

  {
    int pages[kStages][kCopies];
#pragma unroll
    for (int s = 0; s < kStages; s++) value_pages(s, pages[s]);
    if (rank * kKeys < end) stage_keys(rank * kKeys);
    copies_commit();
#pragma unroll
    for (int s = 0; s < kStages; s++) {
      stage_values(s, pages[s]);
      copies_commit();
    }
  }
  for (int i = t; i < count * D; i += kThreads) {
    const int d = i % D, dist = i / D, row = item.first_row + dist / G, head = kv_head * G + dist % G;
    queries[dist * D + query_place(d)] = q[(static_cast<long long>(row) * Hq + head) * D + d];
  }
  copies_wait<kStages>();

  int taken = 0;  // own tiles
#pragma unroll 1
  for (int base = rank * kKeys; base < end; base += CLUSTER * kKeys, taken++) {
    if (taken) copies_wait<0>();
    meet_block<kThreads>();
    float k[D];
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
      const float4 four = load4(area + t * kKeyStride + 4 * i);
      k[4 * i] = four.x, k[4 * i + 1] = four.y, k[4 * i + 2] = four.z, k[4 * i + 3] = four.w;
    }
    if (base + CLUSTER * kKeys < end) {
      meet_block<kThreads>();  // everybody has its key
      stage_keys(base + CLUSTER * kKeys);
      copies_commit();
    }
#pragma unroll 1
    for (int first = 0; first < count; first += 4) {
      float score[4];
      score_key<4>(queries + first * D, k, score);
#pragma unroll
      for (int a = 0; a < 4; a++)
        if (first + a < count)  // a key that the row does not see weighs +0
          own[(taken * DISTS + first + a) * kKeys + t] =
              base + t < item.length + (first + a) / G ? __fmul_rn(score[a], scale) : minus_infinity();
    }
  }
  meet_block<kThreads>();

  cluster_wait();  // every block of the cluster runs
#pragma unroll 1
  for (int dist = warp; dist < count; dist += 4) {
    float m = minus_infinity();
    for (int i = 0; i < taken; i++) {
      const float4 s = load4(own + (i * DISTS + dist) * kKeys + lane * 4);
      m = fmaxf(m, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, o));
    if (lane < CLUSTER) store_in_block(shared_floats(maxima + dist * CLUSTER + rank), lane, floats, m);
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll 4
  for (int dist = 0; dist < count; dist++) {
    float m = minus_infinity();
#pragma unroll
    for (int i = 0; i < CLUSTER; i += 4) {
      const float4 four = load4(maxima + dist * CLUSTER + i);
      m = fmaxf(m, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
    }
    for (int i = 0; i < taken; i++)
      mine[static_cast<long long>(dist) * C + (rank + i * CLUSTER) * kKeys + t] =
          exp_selected(__fsub_rn(own[(i * DISTS + dist) * kKeys + t], m));
  }
  cluster_arrive();
  cluster_wait();  // the weights of all blocks are there, and nobody needs this block's keys

  // Warps that chain differ among the blocks of a multiprocessor, whose schedulers each issue for one of
  // them.
  const int role = (warp - *turn) & 3, chain = role * 32 + lane;
  const int tiles = (end + kTile - 1) / kTile;
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    if (s < tiles) stage_weights(s);
    copies_commit();
  }
  float acc[kEach], sums[kSums][2][4];
  int lengths[kEach];
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = chain / kDims + a * (kThreads / kDims);
    acc[a] = 0.0f, lengths[a] = dist < count ? item.length + dist / G : 0;
  }
#pragma unroll
  for (int s = 0; s < kSums; s++)
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) sums[s][i][c] = 0.0f;
  auto add = [](float (&sum)[4], const float4& w) {
    sum[0] = __fadd_rn(sum[0], w.x), sum[1] = __fadd_rn(sum[1], w.y);
    sum[2] = __fadd_rn(sum[2], w.z), sum[3] = __fadd_rn(sum[3], w.w);
  };
  const int summer = kSumWarps == 4 ? role : role - kChainWarps;  // negative: sums nothing

#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    copies_wait<kStages - 1>();
    meet_block<kThreads>();  // this tile is there, and everybody has left the one before
    if (tile && tile - 1 + kStages < tiles) {
      int page[kCopies];
      value_pages(tile - 1 + kStages, page);
      stage_values(tile - 1 + kStages, page);
      stage_weights(tile - 1 + kStages);
    }
    copies_commit();
    const float* w_tile = area + tile % kStages * (DISTS * kWeightStride);
    const int base = tile * kTile;
    if (summer >= 0)
#pragma unroll
      for (int h = 0; h < kTile / kKeys; h++)
#pragma unroll
        for (int s = 0; s < kSums; s++) {
          const int dist = summer + s * kSumWarps;
          if (dist >= count || base + h * kKeys >= end) continue;
          const float4 w = load4(w_tile + dist * kWeightStride + h * kKeys + lane * 4);
          if ((base / kKeys + h) & 1) {
            add(sums[s][1], w);
          } else {
            add(sums[s][0], w);
          }
        }
    if (role >= kChainWarps) continue;
    // Eight keys are loaded while the eight before are chained: a chain waits 4 cycles a key, not for memory.
    const float* v = values + tile % kStages * (kTile * kDims) + chain % kDims;
    const int common = max(0, min(kTile, item.length - base)) & ~15;
    int row[kEach];
#pragma unroll
    for (int a = 0; a < kEach; a++)
      row[a] = min(chain / kDims + a * (kThreads / kDims), DISTS - 1) * kWeightStride;
    float x[2][8];
    float4 w[2][kEach][2];
    auto load = [&](int buffer, int j) {
#pragma unroll
      for (int i = 0; i < 8; i++) x[buffer][i] = v[(j + i) * kDims];
#pragma unroll
      for (int a = 0; a < kEach; a++)
#pragma unroll
        for (int i = 0; i < 2; i++) w[buffer][a][i] = load4(w_tile + row[a] + j + i * 4);
    };
    auto chain_keys = [&](int buffer) {
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
      chain_keys(0);
      load(0, min(j + 16, kTile - 8));
      chain_keys(1);
    }
#pragma unroll 1
    for (int j = common; j < min(kTile, end - base); j += 8) {
      load(0, j);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int a = 0; a < kEach; a++) {
          const int left = lengths[a] - base - j - i * 4;
          const float4 four = w[0][a][i];
          if (left > 0) acc[a] = __fmaf_rn(four.x, x[0][i * 4], acc[a]);
          if (left > 1) acc[a] = __fmaf_rn(four.y, x[0][i * 4 + 1], acc[a]);
          if (left > 2) acc[a] = __fmaf_rn(four.z, x[0][i * 4 + 2], acc[a]);
          if (left > 3) acc[a] = __fmaf_rn(four.w, x[0][i * 4 + 3], acc[a]);
        }
    }
  }

  if (summer >= 0)
#pragma unroll
    for (int s = 0; s < kSums; s++) {
      const int dist = summer + s * kSumWarps;
      if (dist >= count) continue;
#pragma unroll
      for (int o = 4; o; o >>= 1)  // strides 16, 8, 4 of a virtual warp, which is eight lanes
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int c = 0; c < 4; c++)
            sums[s][i][c] = __fadd_rn(sums[s][i][c], __shfl_xor_sync(kAllLanes, sums[s][i][c], o));
#pragma unroll
      for (int i = 0; i < 2; i++)
        sums[s][i][0] =
            __fadd_rn(__fadd_rn(sums[s][i][0], sums[s][i][2]), __fadd_rn(sums[s][i][1], sums[s][i][3]));
      float z = __fadd_rn(sums[s][0][0], sums[s][1][0]);  // virtual warps v and v + 4, then + 2, + 1
      z = __fadd_rn(z, __shfl_xor_sync(kAllLanes, z, 16));
      z = __fadd_rn(z, __shfl_xor_sync(kAllLanes, z, 8));
      if (lane == 0) inverses[dist] = __fdiv_rn(1.0f, z);
    }
  meet_block<kThreads>();
  if (role >= kChainWarps) return;
#pragma unroll
  for (int a = 0; a < kEach; a++) {
    const int dist = chain / kDims + a * (kThreads / kDims);
    if (dist >= count) continue;
    const int row = item.first_row + dist / G, head = kv_head * G + dist % G;
    out[(static_cast<long long>(row) * Hq + head) * D + rank * kDims + chain % kDims] =
        __fmul_rn(acc[a], inverses[dist]);
  }
}
