// What the tiled kernels share: who owns which query rows, and how a K or V tile reaches shared memory.
//
// A CTA owns one segment (blockIdx.z), Q adjacent rows of it (blockIdx.y) and one KV head (blockIdx.x).
// It has Q*G warps: warp w owns row w / G and query head w % G of the group, for the whole kernel.
// A tile holds K_TILE history positions of that KV head, [K_TILE][D] floats in position order.
//
// Compile-time: Q in {1, 2, 4}, K_TILE in {16, 32, 64}, D in {64, 128}, HYBRID and CACHE in {0, 1}.
//   HYBRID  positions of the current slice are read from the packed rows kcur, vcur [T][Hkv*D], not the pool
//   CACHE   the request's page indices are copied to shared memory once
#pragma once

#include "paged.cuh"

#ifndef Q  // a file compiled without its defines, to see what the compiler makes of it, is q4-k64
#define Q 4
#define K_TILE 64
#define HYBRID 0
#define CACHE 0
#define D 64
#endif

constexpr int kLaneDims = D / 32;  // dimensions of q, and of the output, in one lane: lane, lane + 32, …

struct Paged {
  const float *kpool, *vpool, *kcur, *vcur;
  const int* tables;
  int stride, layer, layers, kv_dim;
};

// The rows of a CTA. `rows` counts those that exist and whose history fits in `capacity`; `end` is the
// longest of their histories, 0 if there is none. Every value is the same in all threads.
struct Rows {
  Segment segment;
  int first, end;
  bool empty;
};

__device__ __forceinline__ Rows own_rows(const Segment* desc, int capacity) {
  Rows r;
  r.segment = desc[blockIdx.z];
  r.first = static_cast<int>(blockIdx.y) * Q;
  r.empty = r.first >= r.segment.chunk_len;
  const int last = min(r.first + Q, r.segment.chunk_len) - 1;
  r.end = min(r.segment.absolute_start + last + 1, capacity);
  return r;
}

// Address of position p of one KV head: `pages` is the request's table, in global or shared memory.
__device__ __forceinline__ const float* position(const float* pool, const float* current, const int* pages,
                                                 const Paged& a, const Segment& s, int p, int column) {
  if (HYBRID && p >= s.absolute_start) {
    const long long row = s.packed_start + (p - s.absolute_start);
    return current + row * a.kv_dim + column;
  }
  return pool + slot_offset(pages, p, a.layer, a.layers, a.kv_dim) + column;
}

// Copies positions [base, min(base + K_TILE, end)) to the tile. All threads of the CTA take part; each
// position is translated by itself, so no two pages need be adjacent. No barrier inside.
__device__ __forceinline__ void load_tile(float* tile, const float* pool, const float* current,
                                          const int* pages, const Paged& a, const Segment& s, int base,
                                          int end, int column) {
  constexpr int kVectors = D / 4;
  const int count = min(K_TILE, end - base) * kVectors;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int j = i / kVectors, c = i % kVectors * 4;
    const float* from = position(pool, current, pages, a, s, base + j, column) + c;
    *reinterpret_cast<float4*>(tile + j * D + c) = *reinterpret_cast<const float4*>(from);
  }
}

// With CACHE, copies the page indices of [0, end) to `cached` and returns it, else returns the table.
// One barrier, taken by all threads, only with CACHE.
__device__ __forceinline__ const int* page_indices(const Paged& a, const Segment& s, int end, int* cached) {
  const int* table = a.tables + static_cast<long long>(s.table_index) * a.stride;
  if (!CACHE) return table;
  for (int i = threadIdx.x; i * kPage < end; i += blockDim.x) cached[i] = table[i];
  __syncthreads();
  return cached;
}

// Contract section 4: the score of one key, in lane 0 (other lanes hold partial sums). q is in registers,
// lane d holds dimensions d, d + 32, …; the key is in shared memory.
__device__ __forceinline__ float score(const float (&q)[kLaneDims], const float* key, int lane, float scale) {
  float c = __fmul_rn(q[0], key[lane]);
#pragma unroll
  for (int i = 1; i < kLaneDims; i++) c = __fmaf_rn(q[i], key[lane + 32 * i], c);
  return __fmul_rn(tree32(c), scale);
}

// Maximum over the lanes of a warp, in every lane; exact in any order.
__device__ __forceinline__ float warp_max(float m) {
  for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, o));
  return m;
}
