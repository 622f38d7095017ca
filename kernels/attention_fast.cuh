// What the fast exact attention kernels share: their work item, the score tree of one thread, exp.
//
// A distribution is one (row, query head) pair. A KV head's G heads of R adjacent rows make R*G
// distributions, numbered row-major: distribution i is row i / G, head i % G.
// GROUP (G, 1 to 8) and HEAD_DIM (D, 64 or 128) are defined by whoever compiles.
// Contract sections: 2, 3, 4.
#pragma once

#include "paged.cuh"
#include "ptx.cuh"

#ifndef GROUP
#define GROUP 4
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif

constexpr int G = GROUP, D = HEAD_DIM;
static_assert(G >= 1 && G <= 8 && (D == 64 || D == 128), "a geometry without a fast kernel");

// Adjacent rows of one segment for one KV head. `length` (L) is the history of the first row, the
// next ones see one key more each. In memory int32[4]; `packed` is rows + 256 * KV head.
struct alignas(16) Item {
  int first_row, packed, length, table_index;
  __device__ __forceinline__ int rows() const { return packed & 255; }
  __device__ __forceinline__ int kv_head() const { return packed >> 8; }
  // Keys that some row of the item sees.
  __device__ __forceinline__ int end() const { return length + rows() - 1; }
};

// tree32 inside one thread: leaves come in the order n = 0, 1, 2, …, leaf n being lane reversed<bits>(n),
// and after leaf n the partial sums that its trailing one bits complete are joined, as a binary counter
// carries. Every addition of section 3 takes place, with the same operands.
// Both are expressions rather than loops, so that an unrolled loop over n has constants for certain.
__host__ __device__ constexpr int reversed(int n, int bits) {
  return (((n & 1) << 4) | ((n & 2) << 2) | (n & 4) | ((n & 8) >> 2) | ((n & 16) >> 4)) >> (5 - bits);
}
// Number of partial sums that leaf n completes.
__host__ __device__ constexpr int carries(int n) {
  return !(n & 1) ? 0 : !(n & 2) ? 1 : !(n & 4) ? 2 : !(n & 8) ? 3 : !(n & 16) ? 4 : 5;
}

// tree32 over the eight entries of w and 24 empty lanes: their +0 changes no sum of numbers >= +0.
__device__ __forceinline__ float tree8(const float (&w)[8]) {
  const float a = __fadd_rn(__fadd_rn(w[0], w[4]), __fadd_rn(w[2], w[6]));
  const float b = __fadd_rn(__fadd_rn(w[1], w[5]), __fadd_rn(w[3], w[7]));
  return __fadd_rn(a, b);
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// `rows` rows of `bytes` further: one multiplication, where signed numbers would take a 64-bit product.
__device__ __forceinline__ const float* rows_ahead(const float* p, unsigned rows, unsigned bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(p) +
                                        static_cast<unsigned long long>(rows) * bytes);
}

// The layout of a query for score_key: lanes i and i + 16 side by side, [16][D/16].
__device__ __forceinline__ int query_place(int d) { return (d & 15) * (D / 16) + (d >> 4); }

// tree32 of N queries (laid out by query_place, D floats each) with the key k[D] of this thread.
template <int N>
__device__ __forceinline__ void score_key(const float* queries, const float (&k)[D], float (&score)[N]) {
  float partial[4][N];
#pragma unroll
  for (int n = 0; n < 16; n++) {  // after the stride of 16, which joins the two chains of a leaf
    const int i = reversed(n, 4);
    float sum[N];
#pragma unroll
    for (int a = 0; a < N; a++) {
      const float4 q = load4(queries + a * D + i * (D / 16));
      float low = __fmul_rn(q.x, k[i]), high = __fmul_rn(q.y, k[i + 16]);
      low = __fmaf_rn(q.z, k[i + 32], low);
      high = __fmaf_rn(q.w, k[i + 48], high);
      if (D == 128) {
        const float4 r = load4(queries + a * D + i * (D / 16) + D / 16 - 4);
        low = __fmaf_rn(r.x, k[i + D - 64], low);
        high = __fmaf_rn(r.y, k[i + D - 48], high);
        low = __fmaf_rn(r.z, k[i + D - 32], low);
        high = __fmaf_rn(r.w, k[i + D - 16], high);
      }
      sum[a] = __fadd_rn(low, high);
    }
#pragma unroll
    for (int level = 0; level < 4; level++)
      if (level < carries(n))
#pragma unroll
        for (int a = 0; a < N; a++) sum[a] = __fadd_rn(partial[level][a], sum[a]);
    if (n == 15) {
#pragma unroll
      for (int a = 0; a < N; a++) score[a] = sum[a];
    } else {
#pragma unroll
      for (int a = 0; a < N; a++) partial[carries(n) & 3][a] = sum[a];
    }
  }
}
