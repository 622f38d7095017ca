// Causal attention over paged K/V, one block per packed row and query head: the plain form of contract
// section 4, which every faster variant is held to.
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
// desc int32 [S][4]. D is a multiple of 32, Hq a multiple of Hkv.
// Grid (T, Hq), block 256 = eight warps. Dynamic shared memory: C scores, then D floats of q.
//   scores   warp w takes keys w, w+8, …; lane d chains dimensions d, d+32, …; tree32 joins the lanes
//   softmax  thread t takes keys t, t+256, …: maximum, then exp and the sum256 order
//   output   thread d takes dimension d (and d+256, …): one fma chain over ascending keys
// Contract sections: 1, 2, 3, 4, 5. Verdict: the reference. Each block rereads its request's whole K/V
// history and three quarters of it idle in the output loop; the bits are what counts here.
#include "paged.cuh"

// Four blocks on a multiprocessor leave 64 registers a thread; five would spill.
extern "C" __global__ void __launch_bounds__(256, 4)
    attention_reference(const float* __restrict__ q, const float* __restrict__ kpool,
                        const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                        const Segment* __restrict__ desc, int S, int layer, int layers, int Hq, int Hkv,
                        int D, float scale, int C, float* __restrict__ out) {
  extern __shared__ float scores[];
  __shared__ float warps[8];
  __shared__ float row_max, inverse;
  __shared__ int found;
  const int row = blockIdx.x, head = blockIdx.y;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;

  const int segment = find_segment(desc, S, row, found);
  if (segment < 0) return;  // a padding row: the whole block leaves
  const Segment s = desc[segment];
  const int L = s.absolute_start + (row - s.packed_start) + 1;
  const int* table = tables + static_cast<long long>(s.table_index) * stride;
  const int kv_dim = Hkv * D, column = head / (Hq / Hkv) * D;
  const long long at = (static_cast<long long>(row) * Hq + head) * D;
  float* query = scores + C;
  if (L > C) {  // the host sized C too small: NaN, which no comparison lets pass, instead of a stray write
    for (int d = t; d < D; d += 256) out[at + d] = __int_as_float(0x7fc00000);
    return;
  }
  for (int d = t; d < D; d += 256) query[d] = q[at + d];
  __syncthreads();

  // s_j = tree32(per-lane fma chains) * scale
  for (int j = warp; j < L; j += 8) {
    const float* k = kpool + slot_offset(table, j, layer, layers, kv_dim) + column;
    float c = __fmul_rn(query[lane], k[lane]);
    for (int e = lane + 32; e < D; e += 32) c = __fmaf_rn(query[e], k[e], c);
    c = tree32(c);
    if (lane == 0) scores[j] = __fmul_rn(c, scale);
  }
  __syncthreads();

  // m = max_j s_j
  float m = minus_infinity();
  for (int j = t; j < L; j += 256) m = fmaxf(m, scores[j]);
  m = max256(m, warps);
  if (t == 0) row_max = m;
  __syncthreads();
  m = row_max;

  // e_j = exp(s_j - m), Z = sum256(e), inverse = 1/Z
  float z = 0.0f;
  for (int j = t; j < L; j += 256) {
    const float e = contract_exp(__fsub_rn(scores[j], m));
    scores[j] = e;
    z = __fadd_rn(z, e);
  }
  z = sum256(z, warps);
  if (t == 0) inverse = __fdiv_rn(1.0f, z);
  __syncthreads();

  // out_d = (fma chain over ascending j) * inverse; keys with e_j = +0 take part
  for (int d = t; d < D; d += 256) {
    float acc = 0.0f;
    for (int j = 0; j < L; j += kPage) {  // a page at a time, so that its sixteen loads are in flight
      const float* v = vpool + slot_offset(table, j, layer, layers, kv_dim) + column + d;
      const auto add = [&](int i) { acc = __fmaf_rn(scores[j + i], v[i * kv_dim], acc); };
      if (L - j >= kPage) {
#pragma unroll
        for (int i = 0; i < kPage; i++) add(i);
      } else {
        for (int i = 0; i < L - j; i++) add(i);
      }
    }
    out[at + d] = __fmul_rn(acc, inverse);
  }
}
