// Fast exact attention for tiles of TILE = 32 or 16 distributions (rows x heads of one KV head).
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
// items [grid]. Grid: one block an item, longest history first. Block: TILE/4 warps, 8 for TILE 32 and
// 4 for TILE 16. All scores of the item stay in shared memory, [C][TILE], C a multiple of 64; with GLOBAL
// they go to `scratch` [grid][C][TILE] in global memory instead, so that any history fits and two blocks
// share a multiprocessor, and only two tiles of weights are in shared memory.
//   scores   a warp takes 16 (TILE 16: 32) keys, a thread 4 distributions x 4 keys; the whole tree32 runs
//            inside the thread, so q and K values are reused from registers and nothing is shuffled
//   weights  half of the warps: exp and sum256, thread = one distribution and one key in four
//   values   the other half: a thread chains 4 distributions x D/16 dimensions over ascending keys, one
//            tile of 64 keys behind the weights
// K comes by 4-byte asynchronous copies that transpose it, a private chunk a warp, two when DOUBLE; V by
// 16-byte copies, two tiles. A key beyond a row's own end may be scored, but its score, weight and value
// are dropped by selection, never multiplied by zero.
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
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
// A chunk of K is [D][kChunk], key x of dimension d at x ^ exchange(d): 32 dimensions of one key then fall
// into 32 banks, and the four keys of a group stay one float4 whose members are exchanged.
// The group depends on low bits of d, which score_tile visits last, so its address seldom changes.
__host__ __device__ constexpr int exchange(int d) {
  return TILE == 32 ? ((d << 1) & 12) | ((d >> 3) & 3) : ((d << 2) & 28) | ((d >> 3) & 3);
}

// r[a][c] = tree32 of distribution 4*quad + a and key c of this thread's key group.
__device__ __forceinline__ void score_tile(const float* q, const float* chunk, int group, float (&r)[4][4]) {
  constexpr int kBits = 5 - ROLLED;
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int c = 0; c < 4; c++) r[a][c] = -0.0f;  // x + -0 is x for every x, so a rolled sum may start here
#pragma unroll 1
  for (int half = 0; half < (1 << ROLLED); half++) {
    float partial[kBits + 1][4][4];
    const float* base[8];
#pragma unroll
    for (int x = 0; x < 8; x++)
      base[x] = chunk + half * kChunk + ((group ^ x ^ (exchange(half) >> 2)) & (kKeyGroups - 1)) * 4;
#pragma unroll
    for (int n = 0; n < (1 << kBits); n++) {
      const int lane = reversed(n, kBits) << ROLLED;
      const float* k = base[exchange(lane) >> 2] + lane * kChunk;
      const float* query = q + (half + lane) * kQueryStride;
      float sum[4][4];
#pragma unroll
      for (int e = 0; e < D; e += 32) {
        const float4 q4 = load4(query + e * kQueryStride), k4 = load4(k + e * kChunk);
        const float qs[4] = {q4.x, q4.y, q4.z, q4.w}, members[4] = {k4.x, k4.y, k4.z, k4.w};
        const int x = exchange(lane) & 3;  // exchange(half) permutes groups only
        const float ks[4] = {members[x], members[1 ^ x], members[2 ^ x], members[3 ^ x]};
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
          for (int c = 0; c < 4; c++)
            sum[a][c] = e == 0 ? __fmul_rn(qs[a], ks[c]) : __fmaf_rn(qs[a], ks[c], sum[a][c]);
      }
#pragma unroll
      for (int level = 0; level < kBits; level++)
        if (level < carries(n))
#pragma unroll
          for (int a = 0; a < 4; a++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[a][c] = __fadd_rn(partial[level][a][c], sum[a][c]);
#pragma unroll
      for (int a = 0; a < 4; a++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if (carries(n) < kBits)
            partial[carries(n)][a][c] = sum[a][c];
          else
            r[a][c] = ROLLED ? __fadd_rn(r[a][c], sum[a][c]) : sum[a][c];
        }
    }
  }
}

// sums[kFirst + h][i] += e[h][i]: the place of a tile in 256 keys must be a constant to index registers.
template <int kFirst>
__device__ __forceinline__ void add_at(float (&sums)[8][8], const float (&e)[2][8]) {
  stand_apart<kFirst>();
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 8; i++) sums[kFirst + h][i] = __fadd_rn(sums[kFirst + h][i], e[h][i]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    attention_fast_tile(const float* __restrict__ q, const float* __restrict__ kpool,
                        const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                        const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, float scale,
                        int C, float* scratch, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  float* queries = reinterpret_cast<float*>(memory);  // [D][kQueryStride], then partial sums [8][4][TILE]
  float* staging = queries + D * kQueryStride;        // K chunks, then V tiles [2][64][D]
  float* maxima = staging + kStaging;                 // [kWarps][TILE], then 1/Z [TILE]
  int* slots = reinterpret_cast<int*>(maxima + kWarps * TILE);  // first slot row of each page
  float* weights =
      reinterpret_cast<float*>(slots + ((C / kPage + 31) & ~31));  // [C][TILE], GLOBAL [2][64][TILE]
  float* scores = GLOBAL ? scratch + static_cast<long long>(blockIdx.x) * C * TILE : weights;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;

  const Item item = items[blockIdx.x];
  const int rows = item.rows(), kv_head = item.kv_head(), L0 = item.length, end = item.end();
  const int pages = (end + kPage - 1) / kPage, kv_dim = Hkv * D;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;

  // K, a chunk at a time: lane = dimension modulo 32
  float* chunk = staging + warp * kKeyFloats * (1 + DOUBLE);
  const SharedFloats chunk_lane = ahead(shared_floats(chunk), lane * kChunk);
  auto stage_keys = [&](const int (&slot)[kPages], int buffer) {
    const SharedFloats to = ahead(chunk_lane, buffer * kKeyFloats);
#pragma unroll
    for (int p = 0; p < kPages; p++) {
      const float* from = kpool + static_cast<long long>(slot[p]) * kv_dim + kv_head * D + lane;
#pragma unroll 1
      for (int y = 0; y < kPage; y += 4) {
#pragma unroll
        for (int z = 0; z < 4; z++) {
          const SharedFloats key_lane = exchanged(to, exchange(lane) ^ (p * kPage + y), z);
#pragma unroll
          for (int x = 0; x < D; x += 32)
            copy4_async(ahead(key_lane, x * kChunk), from + static_cast<long long>(z) * kv_dim + x);
        }
        from += 4 * kv_dim;
      }
    }
  };
  int key = warp * kChunk;
  if (key < end) {
    int slot[kPages];
#pragma unroll
    for (int i = 0; i < kPages; i++)
      slot[i] = (table[min((key >> 4) + i, pages - 1)] * layers + layer) * kPage;
    stage_keys(slot, 0);
  }
  copies_commit();

#pragma unroll 1
  for (int i = t; i < C / kPage; i += kThreads)
    slots[i] = (table[min(i, pages - 1)] * layers + layer) * kPage;
  constexpr int kQueryLoads = kQuads * (D / 8) / kWarps;  // of a lane: dimension mod 8, distribution mod 4
  float held[kQueryLoads];
#pragma unroll
  for (int i = 0; i < kQueryLoads; i++) {
    const int u = warp + i * kWarps, dist = u / (D / 8) * 4 + (lane >> 3), d = u % (D / 8) * 8 + (lane & 7);
    const int row = item.first_row + min(dist / G, rows - 1), head = kv_head * G + dist % G;
    held[i] = q[(static_cast<long long>(row) * Hq + head) * D + d];
  }
#pragma unroll
  for (int i = 0; i < kQueryLoads; i++) {
    const int u = warp + i * kWarps, dist = u / (D / 8) * 4 + (lane >> 3), d = u % (D / 8) * 8 + (lane & 7);
    queries[d * kQueryStride + dist] = held[i];
  }
  __syncthreads();

  // s_j = tree32 * scale, and the maximum over the keys that each row sees
  {
    const int quad = TILE == 32 ? ((lane >> 1) & 3) | ((lane >> 2) & 4) : (lane >> 1) & 3;
    const int group = TILE == 32 ? (lane & 1) | ((lane >> 2) & 2) : (lane & 1) | ((lane >> 2) & 6);
    float most[4];
#pragma unroll
    for (int a = 0; a < 4; a++) most[a] = minus_infinity();
    int buffer = 0;
#pragma unroll 1
    for (; key < end; key += kStep) {
      const bool more = key + kStep < end;
      auto stage_next = [&](int to) {
        if (more) {
          int slot[kPages];
#pragma unroll
          for (int i = 0; i < kPages; i++) slot[i] = slots[((key + kStep) >> 4) + i];
          stage_keys(slot, to);
        }
        copies_commit();
      };
      if (DOUBLE) stage_next(buffer ^ 1);
      copies_wait<DOUBLE>();
      __syncwarp();
      float r[4][4];
      score_tile(queries + quad * 4, chunk + buffer * kKeyFloats, group, r);
      __syncwarp();
      if (DOUBLE)
        buffer ^= 1;
      else
        stage_next(0);
      const int first = key + group * 4;
#pragma unroll
      for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int a = 0; a < 4; a++) r[a][c] = __fmul_rn(r[a][c], scale);
        *reinterpret_cast<float4*>(scores + score_at(first + c, quad * 4)) =
            make_float4(r[0][c], r[1][c], r[2][c], r[3][c]);
      }
      if (key + kChunk <= L0) {
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
          for (int c = 0; c < 4; c++) most[a] = fmaxf(most[a], r[a][c]);
      } else {
#pragma unroll
        for (int a = 0; a < 4; a++) {
          const int L = L0 + min((G % 4 ? quad * 4 + a : quad * 4) / G, rows - 1);
#pragma unroll
          for (int c = 0; c < 4; c++)
            if (first + c < L) most[a] = fmaxf(most[a], r[a][c]);
        }
      }
    }
#pragma unroll
    for (int a = 0; a < 4; a++) {
      most[a] = fmaxf(most[a], __shfl_xor_sync(kAllLanes, most[a], 1));
      most[a] = fmaxf(most[a], __shfl_xor_sync(kAllLanes, most[a], 8));
      if (TILE == 16) most[a] = fmaxf(most[a], __shfl_xor_sync(kAllLanes, most[a], 16));
    }
    if (group == 0)
      *reinterpret_cast<float4*>(maxima + warp * TILE + quad * 4) =
          make_float4(most[0], most[1], most[2], most[3]);
  }
  __syncthreads();

  // Two roles from here. TILE 16 alternates them over the warps, since two of its warps fill only half of
  // a multiprocessor's schedulers.
  const int role = TILE == 32 ? warp : warp ^ ((blockIdx.x & 1) * 2);
  const bool weighs = role >= kValueWarps;
  const int tiles = (end + 63) / 64;

  float* parts = queries;  // [8][4][TILE] partial sums of Z

  if (weighs) {
    // thread = distribution and residue of the key modulo 4; sums[v][i] is a[32v + 4i + residue]
    const int member = (role - kValueWarps) * 32 + lane;
    const int dist = member & (TILE - 1), residue = member / TILE;
    const int column = member % (D / 4), first_key = member / (D / 4);
    constexpr int kKeyStep = kWeightThreads / (D / 4);
    const int value_column = kv_head * D + column * 4 + first_key * kv_dim;
    auto stage_values = [&](int tile) {
      const SharedFloats to = ahead(shared_floats(staging), (tile & 1) * kStage + first_key * D + column * 4);
      int slot[4];
#pragma unroll
      for (int p = 0; p < 4; p++) slot[p] = slots[tile * 4 + p];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        const float* from = vpool + static_cast<long long>(slot[p]) * kv_dim + value_column;
#pragma unroll
        for (int i = 0; i < kPage; i += kKeyStep)
          copy16_async(ahead(to, (p * kPage + i) * D), from + i * kv_dim);
      }
      copies_commit();
    };
    const int ends = L0 + min(dist / G, rows - 1) - residue;
    float* even = scores + score_at(residue, dist);
    float* odd = scores + score_at(residue + 4, dist) - 4 * TILE;
    float* weight = weights + residue * TILE + dist;
    float sums[8][8], e[2][8];
#pragma unroll
    for (int v = 0; v < 8; v++)
#pragma unroll
      for (int i = 0; i < 8; i++) sums[v][i] = 0.0f;
    auto load = [&](int tile) {
      const bool whole = tile * 64 + 64 <= end;
      const float *from_even = even + tile * 64 * TILE, *from_odd = odd + tile * 64 * TILE;
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
          // Past the end nobody wrote: harmless in shared memory, an uninitialised read in scratch memory.
          const bool written = !GLOBAL || whole || tile * 64 + h * 32 + i * 4 + residue < end;
          e[h][i] = written ? (i & 1 ? from_odd : from_even)[(h * 32 + i * 4) * TILE] : 0.0f;
        }
    };
    stage_values(0);
    if (GLOBAL) load(0);
    float m = minus_infinity();
#pragma unroll
    for (int w = 0; w < kWarps; w++) m = fmaxf(m, maxima[w * TILE + dist]);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
      if (!GLOBAL) load(tile);
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) e[h][i] = exp_selected(__fsub_rn(e[h][i], m));
      if (tile * 64 + 64 > L0) {
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
      parts[(v * 4 + residue) * TILE + dist] = a[0];
    }
    meet<kThreads>();
    if (member < TILE) {
      float w[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float* a = parts + v * 4 * TILE + member;
        w[v] = __fadd_rn(__fadd_rn(a[0], a[2 * TILE]), __fadd_rn(a[TILE], a[3 * TILE]));
      }
      maxima[member] = __fdiv_rn(1.0f, tree8(w));
    }
    meet<kThreads>();
    return;
  }

  // values: out_d of 4 distributions
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
    lengths[a] = row < rows ? L0 + row : 0;
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
    const float* v = staging + (tile & 1) * kStage + d;
    const float* e = weights + (GLOBAL ? tile & 1 : tile) * 64 * TILE;
    const int base = tile * 64;
    const int common = max(0, min(64, L0 - base)) & ~15, stop = min(64, longest - base);
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
    const int row = (quad * 4 + a) / G, head = kv_head * G + (quad * 4 + a) % G;
    if (row >= rows) continue;
    const float inverse = maxima[quad * 4 + a];
    float* to = out + (static_cast<long long>(item.first_row + row) * Hq + head) * D + d;
#pragma unroll
    for (int w = 0; w < kWide; w++) {
      const float* o = acc[a] + w * 4;
      *reinterpret_cast<float4*>(to + w * 64) =
          make_float4(__fmul_rn(o[0], inverse), __fmul_rn(o[1], inverse), __fmul_rn(o[2], inverse),
                      __fmul_rn(o[3], inverse));
    }
  }
}
