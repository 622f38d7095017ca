// Contract section 5: where a packed row belongs and where a position of a request lives.
#pragma once

#include "contract.cuh"

// A descriptor of a packed segment, int32[4] in memory.
struct Segment {
  int packed_start, chunk_len, absolute_start, table_index;
};

// Index of the segment that holds packed row `row`, or -1. All threads of the block call it and all
// get the answer; `found` is shared. Segments are disjoint, so at most one thread writes.
__device__ __forceinline__ int find_segment(const Segment* desc, int S, int row, int& found) {
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int s = threadIdx.x; s < S; s += blockDim.x)
    if (row >= desc[s].packed_start && row - desc[s].packed_start < desc[s].chunk_len) found = s;
  __syncthreads();
  return found;
}

// Offset, in floats, of position p of the request with page table `table` in
// pool[physical_page][layers][16][kv_dim].
__device__ __forceinline__ long long slot_offset(const int* table, int p, int layer, int layers, int kv_dim) {
  const long long page = table[p >> 4];
  return ((page * layers + layer) * kPage + (p & (kPage - 1))) * kv_dim;
}
