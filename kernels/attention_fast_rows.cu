// Fast exact attention for short histories: two rows of one KV head a block, all K and V in shared memory.
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
// items [grid], at most two rows each and histories up to CAPACITY (64 or 128). Block: 128 threads,
// two warps a row.
//   scores   thread = one row, one key in 64: its K in registers, tree32 inside the thread, G heads at once
//   weights  a warp takes every second head of its row, lane = key; the trees by shuffles, as in the
//   reference values   thread = one row and dimension d (and d + 64): a chain for each head
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef CAPACITY
#define CAPACITY 64
#endif

namespace {

constexpr int kRows = 2, kKeyStride = D + 4;
constexpr int kVirtualWarps = CAPACITY / 32;

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    attention_fast_rows(const float* __restrict__ q, const float* __restrict__ kpool,
                        const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                        const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, float scale,
                        float* __restrict__ out) {
  extern __shared__ float4 memory[];
  float* queries = reinterpret_cast<float*>(memory);  // [row][G][D], by query_place
  float* inverses = queries + kRows * G * D;          // [row][8]
  float* scores = inverses + kRows * 8;               // [row][G][CAPACITY]
  float* keys = scores + kRows * G * CAPACITY;        // [CAPACITY][D + 4]
  float* values = keys + CAPACITY * kKeyStride;       // [CAPACITY][D]
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, row = warp >> 1;

  const Item item = items[blockIdx.x];
  const int rows = item.rows(), kv_head = item.kv_head(), end = item.end(), kv_dim = Hkv * D;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  {
    constexpr int kColumns = D / 4, kStep = 128 / kColumns;  // keys that the block copies at a time
    const int column = t % kColumns * 4, first = t / kColumns;
    int page[CAPACITY / kPage];
#pragma unroll
    for (int i = 0; i < CAPACITY / kPage; i++) page[i] = i * kPage < end ? table[i] : 0;
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
      const float* pool = pass ? vpool : kpool;
      const int to_stride = pass ? D : kKeyStride;
      const SharedFloats to = ahead(shared_floats(pass ? values : keys), first * to_stride + column);
#pragma unroll
      for (int i = 0; i < CAPACITY / kStep; i++) {
        const int j = first + i * kStep;
        const int slot = (page[i * kStep / kPage] * layers + layer) * kPage + (j & (kPage - 1));
        if (j < end)
          copy16_async(ahead(to, i * kStep * to_stride),
                       pool + static_cast<long long>(slot) * kv_dim + kv_head * D + column);
      }
      copies_commit();
    }
  }
#pragma unroll
  for (int u = 0; u < kRows * G * D / 128; u++) {
    const int i = t + u * 128, d = i % D, dist = i / D;
    const int from = item.first_row + min(dist / G, rows - 1), head = kv_head * G + dist % G;
    queries[dist * D + query_place(d)] = q[(static_cast<long long>(from) * Hq + head) * D + d];
  }
  copies_wait<1>();
  __syncthreads();

#pragma unroll
  for (int base = 0; base < CAPACITY; base += 64) {
    const int j = base + (t & 63);
    if (base + (warp & 1) * 32 >= end) continue;
    float k[D];
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
      const float4 four = load4(keys + j * kKeyStride + 4 * i);
      k[4 * i] = four.x, k[4 * i + 1] = four.y, k[4 * i + 2] = four.z, k[4 * i + 3] = four.w;
    }
    float score[G];
    score_key<G>(queries + row * G * D, k, score);
#pragma unroll
    for (int h = 0; h < G; h++) scores[(row * G + h) * CAPACITY + j] = __fmul_rn(score[h], scale);
  }
  __syncthreads();

  const int L = item.length + min(row, rows - 1);
  {
    constexpr int kHeads = (G + 1) / 2;  // heads warp & 1, + 2, …: their shuffles overlap
    float e[kHeads][kVirtualWarps], m[kHeads];
    const int odd = warp & 1;
    float* s = scores + (row * G + odd) * CAPACITY + lane;
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      m[h] = minus_infinity();
#pragma unroll
      for (int v = 0; v < kVirtualWarps; v++) {
        e[h][v] = 2 * h + odd < G && v * 32 + lane < L ? s[2 * h * CAPACITY + v * 32] : minus_infinity();
        m[h] = fmaxf(m[h], e[h][v]);
      }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
      for (int h = 0; h < kHeads; h++) m[h] = fmaxf(m[h], __shfl_xor_sync(kAllLanes, m[h], o));
#pragma unroll
    for (int h = 0; h < kHeads; h++)
#pragma unroll
      for (int v = 0; v < kVirtualWarps; v++) {
        e[h][v] = v * 32 + lane < L ? exp_selected(__fsub_rn(e[h][v], m[h])) : 0.0f;
        if (2 * h + odd < G) s[2 * h * CAPACITY + v * 32] = e[h][v];
      }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
      for (int h = 0; h < kHeads; h++)
#pragma unroll
        for (int v = 0; v < kVirtualWarps; v++)
          e[h][v] = __fadd_rn(e[h][v], __shfl_down_sync(kAllLanes, e[h][v], o));
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      // tree32 over the virtual warps; the missing ones hold +0, which changes no sum here
#pragma unroll
      for (int o = kVirtualWarps / 2; o; o >>= 1)
#pragma unroll
        for (int v = 0; v < o; v++) e[h][v] = __fadd_rn(e[h][v], e[h][v + o]);
      if (lane == 0 && 2 * h + odd < G) inverses[row * 8 + 2 * h + odd] = __fdiv_rn(1.0f, e[h][0]);
    }
  }
  copies_wait<0>();
  __syncthreads();
  if (row >= rows) return;

#pragma unroll
  for (int d = t & 63; d < D; d += 64) {
    float acc[G];
#pragma unroll
    for (int h = 0; h < G; h++) acc[h] = 0.0f;
    const float* e = scores + row * G * CAPACITY;
    int j = 0;
#pragma unroll 2
    for (; j + 4 <= L; j += 4) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = values[(j + i) * D + d];
#pragma unroll
      for (int h = 0; h < G; h++) {
        const float4 four = load4(e + h * CAPACITY + j);
        acc[h] = __fmaf_rn(four.x, v[0], acc[h]);
        acc[h] = __fmaf_rn(four.y, v[1], acc[h]);
        acc[h] = __fmaf_rn(four.z, v[2], acc[h]);
        acc[h] = __fmaf_rn(four.w, v[3], acc[h]);
      }
    }
    for (; j < L; j++)
#pragma unroll
      for (int h = 0; h < G; h++) acc[h] = __fmaf_rn(e[h * CAPACITY + j], values[j * D + d], acc[h]);
    float* to = out + (static_cast<long long>(item.first_row + row) * Hq + kv_head * G) * D + d;
#pragma unroll
    for (int h = 0; h < G; h++) to[h * D] = __fmul_rn(acc[h], inverses[row * 8 + h]);
  }
}
