// One fused step between the q/k/v layer and attention: optional per-head RMSNorm of q and k, RoPE on both,
// K (rotated) and V to their pages, q and, where asked for, k and v in rows of their own.
//
// qkv [T][(Hq + 2 Hkv) D]; positions int32 [T]; cos, sin [P][D/2]; kpool, vpool [pages][layers][16][Hkv D];
// tables int32 [requests][stride]; desc int32 [S][4]; q_norm, k_norm [D] or null (both or none);
// q_out [T][Hq D]; k_out, v_out [T][Hkv D] or null. D is even; a multiple of 32 where norms are given.
// Grid (T, heads/8 rounded up) with Hq + 2 Hkv heads, block 256: a warp a row and head, lane i rotates the
// pairs i, i + 32, …. A row of no segment (padding) is rotated and not stored. Contract sections: 3
// (sumsq256), 5, 7. Verdict: the only variant; bound by memory.
#include "norm.cuh"
#include "paged.cuh"

// Segment of `row`, found by one warp; -1 for a padding row.
__device__ __forceinline__ int warp_find_segment(const Segment* desc, int S, int row) {
  const int lane = threadIdx.x & 31;
  for (int base = 0; base < S; base += 32) {
    const int s = base + lane;
    const bool here = s < S && row >= desc[s].packed_start && row - desc[s].packed_start < desc[s].chunk_len;
    const unsigned found = __ballot_sync(kAllLanes, here);
    if (found) return base + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

// RMSNorm factor of one head by one warp: w[v] of sumsq256 is the tree over columns 32v..32v+31 (mod 256).
__device__ __forceinline__ float head_factor(const float* x, int D, float eps) {
  const int lane = threadIdx.x & 31;
  float joined = 0.0f;  // lane v < 8 gets w[v]
  for (int v = 0; v < 8 && 32 * v < D; v++) {
    float a = 0.0f;
    for (int j = 32 * v + lane; j < D; j += 256) a = __fmaf_rn(x[j], x[j], a);
    const float w = __shfl_sync(kAllLanes, tree32(a), 0);
    if (lane == v) joined = w;
  }
  return rms_factor(__shfl_sync(kAllLanes, tree32(joined), 0), D, eps);
}

extern "C" __global__ void __launch_bounds__(256)
    rope_store(const float* __restrict__ qkv, const int* __restrict__ positions,
               const float* __restrict__ cos_table, const float* __restrict__ sin_table,
               const float* __restrict__ q_norm, const float* __restrict__ k_norm, float eps,
               float* __restrict__ kpool, float* __restrict__ vpool, const int* __restrict__ tables,
               int stride, const Segment* __restrict__ desc, int S, int layer, int layers, int Hq, int Hkv,
               int D, float* __restrict__ q_out, float* __restrict__ k_out, float* __restrict__ v_out) {
  const int row = blockIdx.x, head = blockIdx.y * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  const int heads = Hq + 2 * Hkv, half = D / 2, kv_dim = Hkv * D;
  if (head >= heads) return;  // a whole warp
  const float* x = qkv + (static_cast<long long>(row) * heads + head) * D;
  const bool is_q = head < Hq, is_v = head >= Hq + Hkv;
  const int h = is_q ? head : is_v ? head - Hq - Hkv : head - Hq;

  // Where this head's row goes: its own buffer, and for K and V the page.
  float *own = nullptr, *slot = nullptr;
  if (is_q) {
    own = q_out + (static_cast<long long>(row) * Hq + h) * D;
  } else {
    float* out = is_v ? v_out : k_out;
    if (out != nullptr) own = out + static_cast<long long>(row) * kv_dim + h * D;
    const int found = warp_find_segment(desc, S, row);
    if (found >= 0) {
      const Segment s = desc[found];
      const int* table = tables + static_cast<long long>(s.table_index) * stride;
      const int position = s.absolute_start + (row - s.packed_start);
      slot = (is_v ? vpool : kpool) + slot_offset(table, position, layer, layers, kv_dim) + h * D;
    }
  }
  const auto put = [=](int i, float value) {
    if (own != nullptr) own[i] = value;
    if (slot != nullptr) slot[i] = value;
  };

  if (is_v) {
    for (int i = lane; i < D; i += 32) put(i, x[i]);
    return;
  }
  const float* norm = is_q ? q_norm : k_norm;
  const float r = norm != nullptr ? head_factor(x, D, eps) : 1.0f;
  const long long entry = static_cast<long long>(positions[row]) * half;
  for (int i = lane; i < half; i += 32) {
    float low = x[i], high = x[half + i];
    if (norm != nullptr) {
      low = __fmul_rn(__fmul_rn(low, r), norm[i]);
      high = __fmul_rn(__fmul_rn(high, r), norm[half + i]);
    }
    const float c = cos_table[entry + i], s = sin_table[entry + i];
    put(i, __fmaf_rn(-high, s, __fmul_rn(low, c)));
    put(half + i, __fmaf_rn(low, s, __fmul_rn(high, c)));
  }
}
