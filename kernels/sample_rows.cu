// Second step of sampling: choose a token for each row by the row's own parameters, all of them data.
//
// partials [R][chunks], maxima u32 [R][8 chunks] and z [R][stride] from sample_scan (z is overwritten);
// slots, order u64 [R][stride] scratch, stride a multiple of 4; temperature f32 [R] (0 = greedy), top_k i32
// [R] (0 = V), top_p f64 [R], seed u64 [R], draw u32 [R], sampler i32 [R] (0 inverse-cdf, 1 gumbel-id),
// given_u f64 [R] or null (replaces the draw where >= 0). token, kept, status i32 [R], u f64 [R]: as on the
// cpu device; a refused row (status 1, 2, 3, see status_of) has token -1 and kept 0; u is -1 where no uniform
// draw was used. ids i32 [R][V] or null: the ids of the first top_k ranks, for ranking alone.
//
// Grid (R), block 1024, dynamic shared memory for kBuckets ints and `room` u64. Ranks in one of two ways
// (small_ops.md): few by a lower bound out of the warps' maxima, else by buckets. Ids whose e is +0 (max - z
// beyond 88) are counted as kept but need no rank: they change no sum and win no draw. Contract sections:
// 2, 8. Verdict: the only variant.
#include "sample_rank.cuh"

__device__ __forceinline__ double noise(u64 seed, unsigned draw, unsigned token) {
  const u64 w = philox_word(seed, draw, token, 1);
  return __dmul_rn(__dadd_rn(static_cast<double>(w >> 12), 0.5), 0x1p-52);
}

// The id with the smallest (-ln v)/e among n places, lowest id among equals; id_at(i) and e_at(i) describe
// place i. `bound` is the score of one of them.
template <class Id, class E>
__device__ __forceinline__ int gumbel_id(Shared& s, int n, u64 seed, unsigned draw, double bound,
                                         const Id& id_at, const E& e_at) {
  double least = 0x1.fffffffffffffp1023;
  u64 id = ~0ull;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float e = e_at(i);
    if (!(e > 0.0f)) continue;
    const unsigned token = static_cast<unsigned>(id_at(i));
    const double v = noise(seed, draw, token), weight = static_cast<double>(e);
    // -ln v is at least 1 - v: most noise is beaten before its logarithm is taken.
    if (__dsub_rn(1.0, v) > __dmul_rn(__dmul_rn(bound, weight), 1.0 + 0x1p-40)) continue;
    const double score = __ddiv_rn(-contract_ln(v), weight);
    if (score < least || (score == least && token < id)) {
      least = score;
      id = token;
    }
  }
  const u64 best = block_min(static_cast<u64>(__double_as_longlong(least)), s.wide);
  const bool mine = static_cast<u64>(__double_as_longlong(least)) == best;
  return static_cast<int>(block_min(mine ? id : ~0ull, s.wide));
}

extern "C" __global__ void __launch_bounds__(1024)
    sample_rows(const Partial* __restrict__ partials, const unsigned* __restrict__ maxima, int chunks,
                float* z, int stride, u64* slots, u64* order, const float* __restrict__ temperature,
                const int* __restrict__ top_k, const double* __restrict__ top_p, const u64* __restrict__ seed,
                const unsigned* __restrict__ draw, const int* __restrict__ sampler,
                const double* __restrict__ given_u, int V, int room, int* __restrict__ token,
                int* __restrict__ kept, double* __restrict__ u_out, int* __restrict__ status,
                int* __restrict__ ids) {
  __shared__ Shared s;
  extern __shared__ __align__(16) int offset[];  // [kBuckets]: counts, then starts, then ends of the buckets
  const int row = blockIdx.x, t = threadIdx.x;
  const long long start = static_cast<long long>(row) * V;
  const auto finish = [=](int chosen, int n, double u, int refused) {
    if (t != 0) return;
    token[row] = chosen;
    kept[row] = n;
    u_out[row] = u;
    status[row] = refused;
  };
  join_partials(s.row, partials + static_cast<long long>(row) * chunks, chunks);
  const int refused = status_of(s.row.flags);
  if (refused != 0) return finish(-1, 0, -1.0, refused);
  if (is_greedy(temperature[row])) return finish(id_of(s.row.best), 1, -1.0, 0);

  const int k = top_k[row] <= 0 || top_k[row] > V ? V : top_k[row];
  const double p = top_p[row];
  const bool by_noise = sampler[row] != 0;
  const float top = z_of(s.row.best);
  z += static_cast<long long>(row) * stride;
  slots += static_cast<long long>(row) * stride;
  order += static_cast<long long>(row) * stride;
  // The score of the likeliest id, whose e is 1.
  const double bound = by_noise ? -contract_ln(noise(seed[row], draw[row], id_of(s.row.best))) : 0.0;
  if (by_noise && k == V && p >= 1.0 && ids == nullptr) {  // every id takes part, whatever its rank
    const auto e_at = [=](int i) { return contract_exp(__fsub_rn(z[i], top)); };
    const int chosen = gumbel_id(s, V, seed[row], draw[row], bound, [](int i) { return i; }, e_at);
    return finish(chosen, k, -1.0, 0);
  }

  u64 *slot = s.slots, *ranks = s.order;
  float* e = s.e;
  int count;  // ranks that matter; the others of the k are dead
  unsigned* keys = reinterpret_cast<unsigned*>(offset);
  if (collect_above_bound(s, maxima + 8ll * chunks * row, 8 * chunks, z, V, k, keys)) {
    const int candidates = s.candidates;
    count = k;
    rank_candidates(0, candidates, count, top, slot, ranks, e, [=](float, int& first, int& end) {
      first = 0;
      end = candidates;
    });
  } else {
    const bool many = k > kSmall;
    const Buckets buckets = make_buckets(s.row, many ? kBuckets : kFewBuckets, ids != nullptr);
    for (int b = t; b <= buckets.last; b += kThreads) offset[b] = 0;
    __syncthreads();
    each_id(z, V, [&](float value, int) {
      const int b = buckets.of(value);
      if (buckets.counts(b)) atomicAdd(&offset[b], 1);
    });
    __syncthreads();
    const bool large = many ? cut_buckets<kBuckets / kThreads>(s, offset, k)
                            : cut_buckets<kFewBuckets / kThreads>(s, offset, k);
    const int candidates = s.candidates;
    count = min(k, candidates);
    if (candidates > kSmall) slot = slots, ranks = order, e = z;
    const auto span = [=](float value, int& first, int& end) {
      const int b = buckets.of(value);
      first = b > 0 ? offset[b - 1] : 0;
      end = offset[b];
    };
    if (candidates > kSmall && !large && room > kQuadratic) {
      u64* window = reinterpret_cast<u64*>(offset + kBuckets);
      e = reinterpret_cast<float*>(slots);
      rank_in_windows(s, offset, window, room, z, V, buckets, count, ranks, e, span);
    } else {
      collect_buckets(s, offset, z, V, buckets, large, slot);
      rank_candidates(0, candidates, count, top, slot, ranks, e, span);
    }
  }
  if (ids != nullptr)
    for (int i = t; i < count; i += kThreads) ids[start + i] = id_of(ranks[i]);

  const auto e_at = [=](int i) { return e[i]; };
  double sum = 0.0;
  int n = k;
  if (p < 1.0 || !by_noise) {
    serial_sums(s.sums, e, count);
    sum = serial_total(s.sums, count);
  }
  if (p < 1.0) {
    n = first_beyond<true>(s.sums, e, count, __dmul_rn(p, sum), s.found, s.sum) + 1;
    sum = s.sum;
    __syncthreads();
  }
  if (by_noise) {
    const auto id_at = [=](int i) { return id_of(ranks[i]); };
    return finish(gumbel_id(s, min(n, count), seed[row], draw[row], bound, id_at, e_at), n, -1.0, 0);
  }
  const bool given = given_u != nullptr && given_u[row] >= 0.0;
  const double u = given ? given_u[row] : uniform53(philox_word(seed[row], draw[row], 0, 0));
  const int at = first_beyond<false>(s.sums, e, count, __dmul_rn(u, sum), s.found, s.sum);
  finish(id_of(ranks[at]), n, u, 0);
}
