// Online softmax over paged K/V, a diagnostic: running maximum, sum and output, rescaled when the maximum
// moves, divided once at the end. It needs no full scores, and it is not the contract's arithmetic.
//
// Arguments, grid, block and ownership as attention_exact.cu (no C: history is not bounded).
// Dynamic shared memory: K_TILE*D floats of tile, Q*G*K_TILE scores and, with CACHE, ceil(end/16) indices.
// For each tile of K_TILE keys, per row and head, all f32:
//   s_j as contract section 4;  m' = max(m, max_j s_j);  alpha = exp(m - m');  p_j = exp(s_j - m')
//   l = l*alpha + tree32(a), a[i] = p_i (+ p_(i+32)), +0 beyond the row's end    (multiply, then add)
//   O_d = O_d*alpha, then O_d = fma(p_j, v_j[d], O_d) over ascending j of the tile
// out_d = O_d / l. A tile beyond a row's end leaves it alone. Only K_TILE changes this arithmetic: Q,
// HYBRID and CACHE do not. kernels/cpu/attention_diagnostics.cpp holds the same on the cpu device.
// Contract sections: 2, 5 (4 is broken on purpose). Verdict: a diagnostic, never a default.
#include "attention_tile.cuh"

extern "C" __global__ void __launch_bounds__(256 * Q)
    attention_online(const float* __restrict__ q, const float* __restrict__ kpool,
                     const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                     const Segment* __restrict__ desc, const float* __restrict__ kcur,
                     const float* __restrict__ vcur, int layer, int layers, int Hq, int Hkv, float scale,
                     float* __restrict__ out) {
  extern __shared__ float4 shared[];
  float* tile = reinterpret_cast<float*>(shared);
  const Paged paged{kpool, vpool, kcur, vcur, tables, stride, layer, layers, Hkv * D};
  const Rows rows = own_rows(desc, 0x7fffffff);
  if (rows.empty) return;  // the whole CTA leaves
  const Segment s = rows.segment;
  const int G = Hq / Hkv, kv_head = blockIdx.x, column = kv_head * D;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = rows.first + warp / G, head = kv_head * G + warp % G;
  const bool exists = row < s.chunk_len;
  const int L = exists ? s.absolute_start + row + 1 : 0;
  const long long at = (static_cast<long long>(s.packed_start + row) * Hq + head) * D + lane;
  float* scores = tile + K_TILE * D + warp * K_TILE;
  int* cached = reinterpret_cast<int*>(tile + K_TILE * D + Q * G * K_TILE);
  const int* pages = page_indices(paged, s, rows.end, cached);

  float query[kLaneDims], acc[kLaneDims] = {};
#pragma unroll
  for (int i = 0; i < kLaneDims; i++) query[i] = exists ? q[at + 32 * i] : 0.0f;
  float m = minus_infinity(), l = 0.0f;

  for (int base = 0; base < rows.end; base += K_TILE) {
    load_tile(tile, kpool, kcur, pages, paged, s, base, rows.end, column);
    __syncthreads();
    const int visible = min(K_TILE, L - base);
#pragma unroll 4
    for (int j = 0; j < visible; j++) {
      const float c = score(query, tile + j * D, lane, scale);
      if (lane == 0) scores[j] = c;
    }
    __syncthreads();  // V takes the tile's place
    load_tile(tile, vpool, vcur, pages, paged, s, base, rows.end, column);
    if (visible > 0) {  // the same for all lanes of a warp
      float top = minus_infinity();
      for (int j = lane; j < visible; j += 32) top = fmaxf(top, scores[j]);
      const float next = fmaxf(m, warp_max(top));
      const float alpha = contract_exp(__fsub_rn(m, next));
      float sum = 0.0f;
      for (int j = lane; j < visible; j += 32) {
        const float p = contract_exp(__fsub_rn(scores[j], next));
        scores[j] = p;
        sum = __fadd_rn(sum, p);
      }
      sum = __shfl_sync(kAllLanes, tree32(sum), 0);
      l = __fadd_rn(__fmul_rn(l, alpha), sum);
      m = next;
#pragma unroll
      for (int i = 0; i < kLaneDims; i++) acc[i] = __fmul_rn(acc[i], alpha);
    }
    __syncthreads();
    for (int j = 0; j < visible; j++) {
#pragma unroll
      for (int i = 0; i < kLaneDims; i++) acc[i] = __fmaf_rn(scores[j], tile[j * D + lane + 32 * i], acc[i]);
    }
    __syncthreads();
  }
  if (!exists) return;
#pragma unroll
  for (int i = 0; i < kLaneDims; i++) out[at + 32 * i] = __fdiv_rn(acc[i], l);
}
