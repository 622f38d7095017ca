// First of the three kernels of `fast-split`: scores of long histories, parallel over the keys.
//
// q [T][Hq][D]; kpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride]; items [grid.x];
// scores [grid.x][DISTS][C], C a multiple of 128. Grid: (items, blocks of 128 keys); a block beyond its
// item's end leaves. Block: 128 threads, thread = one key with its K in registers; tree32 inside the thread,
// four distributions at a time. A key that a row does not see scores -infinity.
// Contract sections: 1, 3, 4, 5. Verdict: see attention_fast.md.
#include "attention_fast.cuh"

#ifndef DISTS
#define DISTS 4
#endif

namespace {

constexpr int kKeyStride = D + 4;
// Distributions at a time, so that few of the last pass are beyond DISTS.
constexpr int kAtOnce = DISTS % 4 == 0   ? 4
                        : DISTS % 3 == 0 ? 3
                        : DISTS % 2 == 0 ? 2
                        : DISTS == 1     ? 1
                        : DISTS % 4 == 3 ? 4
                                         : 3;

}  // namespace

extern "C" __global__ void __launch_bounds__(128, D == 64 ? 5 : 3)
    attention_fast_scores(const float* __restrict__ q, const float* __restrict__ kpool,
                          const int* __restrict__ tables, int stride, const Item* __restrict__ items,
                          int layer, int layers, int Hq, int Hkv, float scale, int C,
                          float* __restrict__ scores) {
  extern __shared__ float4 memory[];
  float* queries = reinterpret_cast<float*>(memory);  // [DISTS, to a multiple of 4][D], by query_place
  float* keys = queries + (DISTS + 3) / 4 * 4 * D;    // [128][D + 4]
  const int t = threadIdx.x;
  let_next_start();
  const Item item = items[blockIdx.x];
  const int base = blockIdx.y * 128, end = item.end();
  if (base >= end) return;
  const int rows = item.rows(), kv_head = item.kv_head(), kv_dim = Hkv * D, count = rows * G;
  const int* table = tables + static_cast<long long>(item.table_index) * stride;
  {
    constexpr int kColumns = D / 4, kStep = 128 / kColumns;
    const int column = t % kColumns * 4, first = t / kColumns, last = (end - 1) / kPage;
    const unsigned row_bytes = kv_dim * 4;
    const SharedFloats to = ahead(shared_floats(keys), first * kKeyStride + column);
    const float* from = kpool + static_cast<long long>(layer * kPage + first) * kv_dim + kv_head * D + column;
    // A lane knows a page, so that no load of a page number stands between two copies.
    const unsigned page = table[min(base / kPage + (t & 7), last)] * (layers * kPage);
#pragma unroll
    for (int i = 0; i < 128; i += kStep) {
      const unsigned slot = __shfl_sync(kAllLanes, page, i / kPage) + (i & (kPage - 1));
      copy16_async_if(base + first + i < end, ahead(to, i * kKeyStride), rows_ahead(from, slot, row_bytes));
    }
  }
#pragma unroll 1
  for (int i = t; i < count * D; i += 128) {
    const int d = i % D, dist = i / D, row = item.first_row + dist / G, head = kv_head * G + dist % G;
    copy4_async(ahead(shared_floats(queries), dist * D + query_place(d)),
                q + (static_cast<long long>(row) * Hq + head) * D + d);
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();

  const int j = base + t;
  float* to = scores + static_cast<long long>(blockIdx.x) * DISTS * C + j;
  if (j >= end) {  // so that whoever reads four scores at a time reads no memory that nobody wrote
    for (int a = 0; a < count; a++) to[static_cast<long long>(a) * C] = minus_infinity();
    return;
  }
  float k[D];
#pragma unroll
  for (int i = 0; i < D / 4; i++) {
    const float4 four = load4(keys + t * kKeyStride + 4 * i);
    k[4 * i] = four.x, k[4 * i + 1] = four.y, k[4 * i + 2] = four.z, k[4 * i + 3] = four.w;
  }
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    float score[kAtOnce];
    score_key<kAtOnce>(queries + first * D, k, score);
#pragma unroll
    for (int a = 0; a < kAtOnce; a++)
      if (first + a < count)
        to[static_cast<long long>(first + a) * C] =
            j < item.length + (first + a) / G ? __fmul_rn(score[a], scale) : minus_infinity();
  }
}
