// Exact tiled attention over paged K/V: Q adjacent rows and the G query heads of one KV head share each
// K and V tile; the bits are those of attention_reference.cu.
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
// desc int32 [S][4]; kcur, vcur [T][Hkv*D] with HYBRID, else not read. G = Hq/Hkv, at most 32/Q.
// Grid (Hkv, ceil(longest chunk / Q), S), block 32*Q*G: attention_tile.cuh says who owns what.
// Dynamic shared memory: K_TILE*D floats of tile, Q*G*C scores and, with CACHE, ceil(C/16) page indices.
//   scores   every K tile is staged once; each warp chains D/32 dimensions per lane, tree32 joins them
//   softmax  a warp stands for the eight warps of the reference one after another: lane l of virtual
//            warp v sums keys 32v + l, + 256, …; a virtual warp without keys holds +0
//   output   every V tile is staged once, in ascending history; lane l takes dimensions l, l + 32, …
// An idle warp of a ragged tile takes every barrier; a CTA without rows leaves as a whole.
// Contract sections: 1, 2, 3, 4, 5. Verdict: exact; the full scores of Q*G rows bound the history, and
// five shuffles a score bound the speed.
#include "attention_tile.cuh"

extern "C" __global__ void __launch_bounds__(256 * Q)
    attention_exact(const float* __restrict__ q, const float* __restrict__ kpool,
                    const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                    const Segment* __restrict__ desc, const float* __restrict__ kcur,
                    const float* __restrict__ vcur, int layer, int layers, int Hq, int Hkv, float scale,
                    int C, float* __restrict__ out) {
  extern __shared__ float4 shared[];
  float* tile = reinterpret_cast<float*>(shared);
  const Paged paged{kpool, vpool, kcur, vcur, tables, stride, layer, layers, Hkv * D};
  const Rows rows = own_rows(desc, C);
  if (rows.empty) return;  // the whole CTA leaves
  const Segment s = rows.segment;
  const int G = Hq / Hkv, kv_head = blockIdx.x, column = kv_head * D;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = rows.first + warp / G, head = kv_head * G + warp % G;
  const bool exists = row < s.chunk_len;
  const int L = exists ? s.absolute_start + row + 1 : 0;
  const bool fits = L <= C;  // else NaN, which no comparison lets pass, instead of a stray write
  const int own = exists && fits ? L : 0;
  const long long at = (static_cast<long long>(s.packed_start + row) * Hq + head) * D + lane;
  float* scores = tile + K_TILE * D + warp * C;
  const int* pages = page_indices(paged, s, rows.end, reinterpret_cast<int*>(tile + K_TILE * D + Q * G * C));

  float query[kLaneDims];
#pragma unroll
  for (int i = 0; i < kLaneDims; i++) query[i] = exists ? q[at + 32 * i] : 0.0f;

  // s_j = tree32(per-lane fma chains) * scale
  for (int base = 0; base < rows.end; base += K_TILE) {
    load_tile(tile, kpool, kcur, pages, paged, s, base, rows.end, column);
    __syncthreads();
    const int visible = min(K_TILE, own - base);
#pragma unroll 4
    for (int j = 0; j < visible; j++) {
      const float c = score(query, tile + j * D, lane, scale);
      if (lane == 0) scores[base + j] = c;
    }
    __syncthreads();  // the next tile overwrites this one
  }

  // m = max_j s_j, e_j = exp(s_j - m), Z = sum256(e), inverse = 1/Z
  float m = minus_infinity();
  for (int j = lane; j < own; j += 32) m = fmaxf(m, scores[j]);
  m = warp_max(m);
  float mine = 0.0f;  // lane v holds the sum of virtual warp v
  for (int v = 0; v < 8; v++) {
    float a = 0.0f;
    for (int j = 32 * v + lane; j < own; j += 256) {
      const float e = contract_exp(__fsub_rn(scores[j], m));
      scores[j] = e;
      a = __fadd_rn(a, e);
    }
    const float w = __shfl_sync(kAllLanes, tree32(a), 0);
    if (lane == v) mine = w;
  }
  const float z = __shfl_sync(kAllLanes, tree32(mine), 0);
  const float inverse = __fdiv_rn(1.0f, z);

  // out_d = (fma chain over ascending j) * inverse; keys with e_j = +0 take part
  float acc[kLaneDims] = {};
  for (int base = 0; base < rows.end; base += K_TILE) {
    load_tile(tile, vpool, vcur, pages, paged, s, base, rows.end, column);
    __syncthreads();
    const int visible = min(K_TILE, own - base);
    for (int j = 0; j < visible; j++) {
#pragma unroll
      for (int i = 0; i < kLaneDims; i++)
        acc[i] = __fmaf_rn(scores[base + j], tile[j * D + lane + 32 * i], acc[i]);
    }
    __syncthreads();
  }
  if (!exists) return;
#pragma unroll
  for (int i = 0; i < kLaneDims; i++)
    out[at + 32 * i] = fits ? __fmul_rn(acc[i], inverse) : __int_as_float(0x7fc00000);
}
