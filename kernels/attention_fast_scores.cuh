// The first phase of attention_fast_tile.cu: scores s_j = tree32 * scale of every key, and each row's
// maximum.
#pragma once
#include "attention_fast_tile.cuh"

namespace {

// A chunk of K is [D][kChunk], key x of dimension d at x ^ exchange(d): 32 dimensions of one key then fall
// into 32 banks, and the four keys of a group stay one float4 whose members are exchanged.
// The group depends on low bits of d, which score_tile visits last, so its address seldom changes.
__host__ __device__ constexpr int exchange(int d) {
  return TILE == 32 ? ((d << 1) & 12) | ((d >> 3) & 3) : ((d << 2) & 28) | ((d >> 3) & 3);
}

// The chunks of K that a warp stages for itself: lane = dimension modulo 32.
struct Keys {
  float* chunk;
  SharedFloats chunk_lane;
  const float* kpool;
  int lane, kv_dim, column;

  __device__ __forceinline__ Keys(const Block& b, const float* kpool, int warp, int lane)
      : chunk(b.staging + warp * kKeyFloats * (1 + DOUBLE)),
        chunk_lane(ahead(shared_floats(chunk), lane * kChunk)),
        kpool(kpool),
        lane(lane),
        kv_dim(b.kv_dim),
        column(b.kv_head * D + lane) {}

  // Start the copies of the pages whose first slot rows are given.
  __device__ __forceinline__ void stage(const int (&slot)[kPages], int buffer) const {
    const SharedFloats to = ahead(chunk_lane, buffer * kKeyFloats);
#pragma unroll
    for (int p = 0; p < kPages; p++) {
      const float* from = kpool + static_cast<long long>(slot[p]) * kv_dim + column;
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
  }
};

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

// Scores of the keys from `key` on, whose first chunk is under way, and into `maxima` the maximum over the
// keys that each row sees.
__device__ __forceinline__ void score_keys(const Block& b, const Keys& keys, int key, float scale, int warp,
                                           int lane) {
  const int quad = TILE == 32 ? ((lane >> 1) & 3) | ((lane >> 2) & 4) : (lane >> 1) & 3;
  const int group = TILE == 32 ? (lane & 1) | ((lane >> 2) & 2) : (lane & 1) | ((lane >> 2) & 6);
  float most[4];
#pragma unroll
  for (int a = 0; a < 4; a++) most[a] = minus_infinity();
  int buffer = 0;
#pragma unroll 1
  for (; key < b.end; key += kStep) {
    const bool more = key + kStep < b.end;
    auto stage_next = [&](int to) {
      if (more) {
        int slot[kPages];
#pragma unroll
        for (int i = 0; i < kPages; i++) slot[i] = b.slots[((key + kStep) >> 4) + i];
        keys.stage(slot, to);
      }
      copies_commit();
    };
    if (DOUBLE) stage_next(buffer ^ 1);
    copies_wait<DOUBLE>();
    __syncwarp();
    float r[4][4];
    score_tile(b.queries + quad * 4, keys.chunk + buffer * kKeyFloats, group, r);
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
      *reinterpret_cast<float4*>(b.scores + score_at(first + c, quad * 4)) =
          make_float4(r[0][c], r[1][c], r[2][c], r[3][c]);
    }
    if (key + kChunk <= b.L0) {
#pragma unroll
      for (int a = 0; a < 4; a++)
#pragma unroll
        for (int c = 0; c < 4; c++) most[a] = fmaxf(most[a], r[a][c]);
    } else {
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const int L = b.L0 + min((G % 4 ? quad * 4 + a : quad * 4) / G, b.rows - 1);
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
    *reinterpret_cast<float4*>(b.maxima + warp * TILE + quad * 4) =
        make_float4(most[0], most[1], most[2], most[3]);
}

}  // namespace
