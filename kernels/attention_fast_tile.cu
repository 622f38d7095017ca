// Fast exact attention for tiles of TILE = 32 or 16 distributions (rows x heads of one KV head).
//
// q, out [T][Hq][D]; kpool, vpool [pages][layers][16][Hkv*D]; tables int32 [requests][stride];
// items [grid]. Grid: one block an item, longest history first. Block: TILE/4 warps, 8 for TILE 32 and
// 4 for TILE 16. All scores of the item stay in shared memory, [C][TILE], C a multiple of 64; with GLOBAL
// they go to `scratch` [grid][C][TILE] in global memory instead, so that any history fits and two blocks
// share a multiprocessor, and only two tiles of weights are in shared memory.
//   scores   a warp takes 16 (TILE 16: 32) keys, a thread 4 distributions x 4 keys; the whole tree32 runs
//            inside the thread, so q and K values are reused from registers and nothing is shuffled
//   weights  half of the warps: exp and sum256, thread = one distribution and one key in four
//   values   the other half: a thread chains 4 distributions x D/16 dimensions over ascending keys, one
//            tile of 64 keys behind the weights
// K comes by 4-byte asynchronous copies that transpose it, a private chunk a warp, two when DOUBLE; V by
// 16-byte copies, two tiles. A key beyond a row's own end may be scored, but its score, weight and value
// are dropped by selection, never multiplied by zero.
// Contract sections: 1 to 5. Verdict: see attention_fast.md.
#include "attention_fast_chain.cuh"
#include "attention_fast_scores.cuh"
#include "attention_fast_tile_weights.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    attention_fast_tile(const float* __restrict__ q, const float* __restrict__ kpool,
                        const float* __restrict__ vpool, const int* __restrict__ tables, int stride,
                        const Item* __restrict__ items, int layer, int layers, int Hq, int Hkv, float scale,
                        int C, float* scratch, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  Block b;
  b.item = items[blockIdx.x];
  b.rows = b.item.rows(), b.kv_head = b.item.kv_head(), b.L0 = b.item.length, b.end = b.item.end();
  b.kv_dim = Hkv * D;
  b.queries = reinterpret_cast<float*>(memory);
  b.staging = b.queries + D * kQueryStride;
  b.maxima = b.staging + kStaging;
  b.slots = reinterpret_cast<int*>(b.maxima + kWarps * TILE);
  b.weights = reinterpret_cast<float*>(b.slots + ((C / kPage + 31) & ~31));
  b.scores = GLOBAL ? scratch + static_cast<long long>(blockIdx.x) * C * TILE : b.weights;
  const int pages = (b.end + kPage - 1) / kPage;
  const int* table = tables + static_cast<long long>(b.item.table_index) * stride;

  const Keys keys(b, kpool, warp, lane);
  const int key = warp * kChunk;
  if (key < b.end) {
    int slot[kPages];
#pragma unroll
    for (int i = 0; i < kPages; i++)
      slot[i] = (table[min((key >> 4) + i, pages - 1)] * layers + layer) * kPage;
    keys.stage(slot, 0);
  }
  copies_commit();

#pragma unroll 1
  for (int i = t; i < C / kPage; i += kThreads)
    b.slots[i] = (table[min(i, pages - 1)] * layers + layer) * kPage;
  constexpr int kQueryLoads = kQuads * (D / 8) / kWarps;  // of a lane: dimension mod 8, distribution mod 4
  float held[kQueryLoads];
#pragma unroll
  for (int i = 0; i < kQueryLoads; i++) {
    const int u = warp + i * kWarps, dist = u / (D / 8) * 4 + (lane >> 3), d = u % (D / 8) * 8 + (lane & 7);
    const int row = b.item.first_row + min(dist / G, b.rows - 1), head = b.kv_head * G + dist % G;
    held[i] = q[(static_cast<long long>(row) * Hq + head) * D + d];
  }
#pragma unroll
  for (int i = 0; i < kQueryLoads; i++) {
    const int u = warp + i * kWarps, dist = u / (D / 8) * 4 + (lane >> 3), d = u % (D / 8) * 8 + (lane & 7);
    b.queries[d * kQueryStride + dist] = held[i];
  }
  __syncthreads();

  score_keys(b, keys, key, scale, warp, lane);
  __syncthreads();

  // Two roles from here. TILE 16 alternates them over the warps, since two of its warps fill only half of
  // a multiprocessor's schedulers.
  const int role = TILE == 32 ? warp : warp ^ ((blockIdx.x & 1) * 2);
  if (role >= kValueWarps)
    weigh(b, vpool, role, lane);
  else
    chain_values(b, out, Hq, role, lane);
}
