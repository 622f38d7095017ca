// First step of sampling: z = logit/temperature, and what each chunk of a row amounts to.
//
// logits [R][V]; temperature [R], 0 = greedy, which needs no z; z [R][stride]; partials [R][chunks]; maxima
// u32 [R][8 chunks], the sort key of the largest z of each warp's 256 ids. Grid (chunks of 2048 ids, R),
// block 256: thread t takes ids t, t + 256, … of its chunk. Contract section: 8. Verdict: the only variant;
// bound by memory.
#include "sampling.cuh"

constexpr int kPerThread = 8, kChunk = 256 * kPerThread;

extern "C" __global__ void __launch_bounds__(256)
    sample_scan(const float* __restrict__ logits, const float* __restrict__ temperature,
                float* __restrict__ z, int stride, Partial* __restrict__ partials,
                unsigned* __restrict__ maxima, int V) {
  __shared__ Partial warps[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * kChunk + threadIdx.x;
  const long long start = static_cast<long long>(blockIdx.y) * V;
  const float t = temperature[blockIdx.y], infinity = -minus_infinity();
  const bool greedy = is_greedy(t);
  float x[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    const int id = first + 256 * i;
    x[i] = id < V ? logits[start + id] : -infinity;
  }
  Partial p = {~0ull, infinity, 0};
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    const int id = first + 256 * i;
    if (id >= V) break;
    const bool finite = fabsf(x[i]) < infinity;
    const float scaled = greedy ? x[i] : __fdiv_rn(x[i], t);
    const bool fits = fabsf(scaled) < infinity;
    if (!greedy) z[static_cast<long long>(blockIdx.y) * stride + id] = scaled;
    const int flags = (finite              ? kFinite
                       : x[i] == -infinity ? 0
                                           : kBadLogit) |
                      (finite && !fits ? kOverflow : 0);
    p = joined(p, {ranked(scaled, id), fits ? scaled : infinity, flags});
  }
  p = warp_joined(p);
  const long long chunk = blockIdx.y * static_cast<long long>(gridDim.x) + blockIdx.x;
  if (lane == 0) {
    warps[warp] = p;
    maxima[8 * chunk + warp] = static_cast<unsigned>(p.best >> 32);
  }
  __syncthreads();
  if (warp == 0) {
    p = warp_joined(lane < 8 ? warps[lane] : Partial{~0ull, infinity, 0});
    if (lane == 0) partials[chunk] = p;
  }
}
