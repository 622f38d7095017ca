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
#include "serial_sum.cuh"

constexpr int kThreads = 1024;
constexpr int kBuckets = 16384, kFewBuckets = 4096;  // for many ranks, and for up to kSmall
constexpr int kSmall = 1024;                         // candidates that stay in shared memory
constexpr int kQuadratic = 512;                      // candidates up to which counting is faster than sorting
constexpr int kBoundedRanks = 128;

struct __align__(16) Shared {
  float e[kSmall];
  u64 slots[kSmall], order[kSmall];
  SerialSum sums;
  u64 wide[32];
  int narrow[32];
  Partial row;
  double sum;
  int found, end, cut, candidates;
  float bound;
};

// Buckets of distance to the largest z: the number never descends as z does, whatever the rounding.
struct Buckets {
  float top, scale;
  int last;  // holds the dead
  bool all;  // rank the dead, too
  __device__ __forceinline__ int of(float z) const {
    const float distance = __fsub_rn(top, z);
    const float place = fminf(__fmul_rn(distance, scale), static_cast<float>(last - 1));
    // Adding 2^23 rounds to an integer, the low bits of the sum: the conversion instruction is slower.
    const int bucket = __float_as_int(__fadd_rn(place, 8388608.0f)) & 0x7fffff;
    return distance <= 88.0f ? bucket : last;
  }
  __device__ __forceinline__ bool counts(int bucket) const { return all || bucket < last; }
};

__device__ __forceinline__ Buckets make_buckets(Partial row, int buckets, bool all) {
  const float top = z_of(row.best), range = fminf(__fsub_rn(top, row.low), 88.0f);
  const float scale = range > 1e-30f ? __fdiv_rn(static_cast<float>(buckets - 2), range) : 0.0f;
  return {top, scale, buckets - 1, all};
}

// f(z, id) for every id of a row; eight loads in flight.
template <class F>
__device__ __forceinline__ void each_id(const float* z, int V, const F& f) {
  constexpr int kFlight = 8;
  for (int base = threadIdx.x; base < V; base += kFlight * kThreads) {
    float value[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) value[i] = base + i * kThreads < V ? z[base + i * kThreads] : 0.0f;
#pragma unroll
    for (int i = 0; i < kFlight; i++)
      if (base + i * kThreads < V) f(value[i], base + i * kThreads);
  }
}

// Candidates for the first k ranks by a bound: of disjoint groups of ids, k have a maximum at or above the
// k-th largest maximum, so rank k - 1 lies there, too. False if the bound is no help; s.candidates of them
// are in s.slots otherwise, unordered.
__device__ __forceinline__ bool collect_above_bound(Shared& s, const unsigned* maxima, int groups,
                                                    const float* z, int V, int k, unsigned* keys) {
  groups = min(groups, kThreads);
  if (k > kBoundedRanks || groups < 2 * k) return false;
  const int t = threadIdx.x, padded = (groups + 3) / 4 * 4;
  const unsigned mine = t < groups ? maxima[t] : ~0u;
  if (t < padded) keys[t] = mine;
  if (t == 0) s.candidates = 0;
  __syncthreads();
  if (t < groups) {
    int rank = 0;
    for (int j = 0; j < padded; j += 4) {
      const uint4 other = *reinterpret_cast<const uint4*>(keys + j);
      rank += (other.x < mine) + (other.y < mine) + (other.z < mine) + (other.w < mine);
      rank += (other.x == mine && j < t) + (other.y == mine && j + 1 < t) + (other.z == mine && j + 2 < t) +
              (other.w == mine && j + 3 < t);
    }
    // A group without ids has the key ~0, beyond that of -inf.
    if (rank == k - 1) s.bound = mine == ~0u ? minus_infinity() : z_of(static_cast<u64>(mine) << 32);
  }
  __syncthreads();
  const float bound = s.bound;
  each_id(z, V, [&](float value, int id) {
    if (value >= bound) {
      const int at = atomicAdd(&s.candidates, 1);
      if (at < kQuadratic) s.slots[at] = ranked(value, id);
    }
  });
  __syncthreads();
  return s.candidates <= kQuadratic;
}

// Starts of the buckets out of their counts; s.cut: the bucket that holds rank k - 1 or the last one;
// s.candidates: how many ids lie in buckets 0..cut. True if one of these is too large for counting.
template <int kPerThread>
__device__ __forceinline__ bool cut_buckets(Shared& s, int* offset, int k) {
  int4* mine = reinterpret_cast<int4*>(offset) + kPerThread / 4 * threadIdx.x;
  int sum = 0, total;
#pragma unroll
  for (int i = 0; i < kPerThread / 4; i++) sum += mine[i].x + mine[i].y + mine[i].z + mine[i].w;
  int start = block_scan(sum, s.narrow, total);
  if (threadIdx.x == 0 && total < k) {
    s.cut = kPerThread * kThreads - 1;
    s.candidates = total;
  }
  bool large = false;
  const auto begin = [&](int& size, int bucket) {
    const int here = start, end = start + size;
    large |= here < k && size > kQuadratic;
    if (here < k && end >= k) {
      s.cut = bucket;
      s.candidates = end;
    }
    size = here;
    start = end;
  };
#pragma unroll
  for (int i = 0; i < kPerThread / 4; i++) {
    const int bucket = kPerThread * threadIdx.x + 4 * i;
    int4 four = mine[i];
    begin(four.x, bucket);
    begin(four.y, bucket + 1);
    begin(four.z, bucket + 2);
    begin(four.w, bucket + 3);
    mine[i] = four;
  }
  return __syncthreads_or(large);
}

// Ascending bitonic sort of a[0..n-1]: the first step of each merge mirrors, so every exchange goes the same
// way and places beyond n, as if holding the largest value, are never touched.
__device__ __forceinline__ void block_sort(u64* a, int n) {
  for (int size = 2; size < 2 * n; size <<= 1) {
    for (int step = size >> 1; step > 0; step >>= 1) {
      const int flip = step == size >> 1 ? size - 1 : step;
      for (int p = threadIdx.x; p < (n + 1) / 2 + size; p += kThreads) {
        const int i = (p / step) * 2 * step + p % step, j = i ^ flip;
        if (i < n && j < n && a[j] < a[i]) {
          const u64 kept = a[i];
          a[i] = a[j];
          a[j] = kept;
        }
      }
      __syncthreads();
    }
  }
}

// Ids of the buckets up to the cut to slots, bucket by bucket; offset[b] becomes the end of bucket b.
__device__ __forceinline__ void collect_buckets(Shared& s, int* offset, const float* z, int V,
                                                Buckets buckets, bool large, u64* slots) {
  const int cut = s.cut;
  each_id(z, V, [&](float value, int id) {
    const int b = buckets.of(value);
    if (b <= cut && buckets.counts(b)) slots[atomicAdd(&offset[b], 1)] = ranked(value, id);
  });
  __syncthreads();
  if (!large) return;
  for (int b = 0; b <= cut; b++) {
    const int start = b > 0 ? offset[b - 1] : 0, size = offset[b] - start;
    if (size > kQuadratic && start < s.candidates) block_sort(slots + start, size);
  }
}

// order[rank] and e[rank] for candidates of ranks base .. base + size - 1, those below `count`; slots[0] is
// the first. span(z, start, end) says which ranks those candidates share that can lie beside z; a span too
// large for counting is sorted. Ends with a barrier.
template <class F>
__device__ __forceinline__ void rank_candidates(int base, int size, int count, float top, const u64* slots,
                                                u64* order, float* e, const F& span) {
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const u64 mine = slots[i];
    int start, end, rank = base + i;
    span(z_of(mine), start, end);
    if (end - start <= kQuadratic) {
      rank = start;
      for (int j = start - base; j < end - base; j++) rank += slots[j] < mine;
    }
    if (rank < count) {
      order[rank] = mine;
      e[rank] = contract_exp(__fsub_rn(z_of(mine), top));
    }
  }
  __syncthreads();
}

// Collects and ranks as many buckets at a time as `window` in shared memory has room for: random stores to
// global memory cost more than reading z again.
template <class F>
__device__ __forceinline__ void rank_in_windows(Shared& s, int* offset, u64* window, int room, const float* z,
                                                int V, Buckets buckets, int count, u64* order, float* e,
                                                const F& span) {
  const int cut = s.cut, candidates = s.candidates;
  for (int base = 0, low = 0; base < candidates;) {
    // Ahead of the window offset[b] is still the start of bucket b, so the next one's start is its end.
    const auto end_of = [=](int b) { return b >= cut ? candidates : offset[b + 1]; };
    for (int b = low + threadIdx.x; b <= cut; b += kThreads)
      if (end_of(b) <= base + room && (b == cut || end_of(b + 1) > base + room)) {
        s.found = b + 1;
        s.end = end_of(b);
      }
    __syncthreads();
    const int high = s.found, end = s.end;
    each_id(z, V, [&](float value, int id) {
      const int b = buckets.of(value);
      if (b >= low && b < high && buckets.counts(b))
        window[atomicAdd(&offset[b], 1) - base] = ranked(value, id);
    });
    __syncthreads();
    rank_candidates(base, end - base, count, buckets.top, window, order, e, span);
    base = end;
    low = high;
  }
}

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
