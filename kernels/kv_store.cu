// Scatter of freshly computed K (rotated) and V rows into the paged pools.
//
// k, v [T][kv_dim]; kpool, vpool [pages][layers][16][kv_dim]; tables int32 [requests][stride];
// desc int32 [S][4]. Grid (T), block 256: one block per packed row, threads over kv_dim.
// Contract section: 5. Verdict: the only variant; moves bytes, computes nothing.
#include "paged.cuh"

extern "C" __global__ void __launch_bounds__(256)
    kv_store(const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ kpool,
             float* __restrict__ vpool, const int* __restrict__ tables, int stride,
             const Segment* __restrict__ desc, int S, int layer, int layers, int kv_dim) {
  __shared__ int found;
  const int row = blockIdx.x;
  const int segment = find_segment(desc, S, row, found);
  if (segment < 0) return;  // a padding row
  const Segment s = desc[segment];
  const int* table = tables + static_cast<long long>(s.table_index) * stride;
  const long long from = static_cast<long long>(row) * kv_dim;
  const long long to = slot_offset(table, s.absolute_start + (row - s.packed_start), layer, layers, kv_dim);
  for (int d = threadIdx.x; d < kv_dim; d += 256) {
    kpool[to + d] = k[from + d];
    vpool[to + d] = v[from + d];
  }
}
