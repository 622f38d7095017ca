// First of the three kernels of `fast-split`: scores of long histories, parallel over the keys.
//
// q [T][Hq][D]; kpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [grid.x];
// scores [grid.x][DISTS][C], C a multiple of 128. Grid: (items, blocks of 128 keys); a block beyond its
// item's end leaves. Block: 128 threads, thread = one key with its K in registers; tree32 inside the thread,
// four distributions at a time. Scores of keys that a row does not see are written and never read.
// Contract sections: 1, 3, 4, 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

namespace {

constexpr int kKeyStride = D + 4;

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    attention_fast_scores(const float* __restrict__ q, const float* __restrict__ kpool,
                          const int* __restrict__ tables, int stride, const Item* __restrict__ items,
                          int layer, int layers, int Hq, int Hkv, float scale, int C,
                          float* __restrict__ scores) {
  extern __shared__ float4 memory[];
  float* queries = reinterpret_cast<float*>(memory);  // [DISTS, a multiple of 4][16][D/16]: lanes i and i+16 side by side
  float* keys = queries + (DISTS + 3) / 4 * 4 * D;    // [128][D + 4]
  const int t = threadIdx.x;
  const Item item = items[blockIdx.x];
  const int base = blockIdx.y * 128, end = item.end();
  if (base >= end) return;
  const int rows = item.rows(), kv_head = item.kv_head(), kv_dim = Hkv * D, count = rows * G;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  {
    constexpr int kColumns = D / 4, kStep = 128 / kColumns;
    const int column = t % kColumns * 4, first = t / kColumns;
#pragma unroll
    for (int i = 0; i < 128 / kStep; i++) {
      const int j = base + first + i * kStep;
      if (j < end)
        copy16_async(keys + (j - base) * kKeyStride + column,
                     kpool + slot_offset(table, j, layer, layers, kv_dim) + kv_head * D + column);
    }
    copies_commit();
  }
  for (int i = t; i < count * D; i += 128) {
    const int d = i % D, dist = i / D, row = item.first_row + dist / G, head = kv_head * G + dist % G;
    queries[dist * D + (d & 15) * (D / 16) + (d >> 4)] = q[(static_cast<long long>(row) * Hq + head) * D + d];
  }
  copies_wait<0>();
  __syncthreads();

  const int j = base + t;
  if (j >= end) return;
  float k[D];
#pragma unroll
  for (int i = 0; i < D / 4; i++) {
    const float4 four = load4(keys + t * kKeyStride + 4 * i);
    k[4 * i] = four.x, k[4 * i + 1] = four.y, k[4 * i + 2] = four.z, k[4 * i + 3] = four.w;
  }
  float* to = scores + static_cast<long long>(blockIdx.x) * DISTS * C + j;
#pragma unroll 1
  for (int first = 0; first < count; first += 4) {
    float partial[5][4];
#pragma unroll
    for (int n = 0; n < 16; n++) {  // after the stride of 16, which joins the two chains of a leaf
      const int i = reversed(n, 4);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int e = 0; e < D / 64; e++) {
          const float4 four = load4(queries + (first + a) * D + i * (D / 16) + e * 4);
          low = e == 0 ? __fmul_rn(four.x, k[i]) : __fmaf_rn(four.x, k[i + e * 64], low);
          high = e == 0 ? __fmul_rn(four.y, k[i + 16]) : __fmaf_rn(four.y, k[i + 16 + e * 64], high);
          low = __fmaf_rn(four.z, k[i + 32 + e * 64], low);
          high = __fmaf_rn(four.w, k[i + 48 + e * 64], high);
        }
        float sum = __fadd_rn(low, high);
#pragma unroll
        for (int level = 0; level < 4; level++)
          if (level < carries(n)) sum = __fadd_rn(partial[level][a], sum);
        if (carries(n) < 4)
          partial[carries(n)][a] = sum;
        else if (first + a < count)
          to[static_cast<long long>(first + a) * C] = __fmul_rn(sum, scale);
      }
    }
  }
}
