// Second step of sampling: choose a token for each row by the row's own parameters, all of them data.
//
// partials [R][chunks] and z [R][V] from sample_scan (z is overwritten); slots, order u64 [R][V] scratch;
// temperature f32 [R] (0 = greedy), top_k i32 [R] (0 = V), top_p f64 [R], seed u64 [R], draw u32 [R],
// sampler i32 [R] (0 inverse-cdf, 1 gumbel-id), given_u f64 [R] or null (replaces the draw where >= 0).
// token, kept, status i32 [R], u f64 [R]: as on the cpu device; a refused row (status 1, 2, 3, see status_of)
// has token -1 and kept 0; u is -1 where no uniform draw was used. ids i32 [R][V] or null: the ids of the
// first top_k ranks, for ranking alone.
//
// Grid (R), block 1024. Ranks by buckets: bucket = floor((max - z) * scale), which never ascends with z, so
// only the members of one bucket need comparing. Ids whose e is +0 (max - z beyond 88) are counted as
// kept but not ranked: they change no sum and win no draw.
// Contract sections: 2, 8. Verdict: the only variant; notes in small_ops.md.
#include "serial_sum.cuh"

constexpr int kThreads = 1024, kBuckets = 4096, kPerThread = kBuckets / kThreads;
constexpr int kSmall = 1024;     // candidates that stay in shared memory
constexpr int kQuadratic = 512;  // members of a bucket up to which counting is faster than sorting

struct Shared {
  int offset[kBuckets];  // counts, then starts, then ends of the buckets
  u64 slots[kSmall], order[kSmall];
  float e[kSmall];
  SerialSum sums;
  u64 wide[32];
  int narrow[32];
  Partial row;
  double sum;
  int found, cut, candidates;
};

struct Buckets {
  float top, scale;
  bool all;  // rank the dead, too
  // The bucket of z, kBuckets - 1 for the dead.
  __device__ __forceinline__ int of(float z) const {
    const float distance = __fsub_rn(top, z);
    if (!(distance <= 88.0f)) return kBuckets - 1;
    return min(static_cast<int>(__fmul_rn(distance, scale)), kBuckets - 2);
  }
  __device__ __forceinline__ bool counts(int bucket) const { return all || bucket < kBuckets - 1; }
};

__device__ __forceinline__ Buckets make_buckets(Partial row, bool all) {
  const float top = z_of(row.best), range = fminf(__fsub_rn(top, row.low), 88.0f);
  return {top, range > 1e-30f ? __fdiv_rn(static_cast<float>(kBuckets - 1), range) : 0.0f, all};
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

// Starts of the buckets out of their counts; s.cut: the bucket that holds rank k - 1 or the last one;
// s.candidates: how many ids lie in buckets 0..cut. True if one of these is too large for counting.
__device__ __forceinline__ bool cut_buckets(Shared& s, int k) {
  const int first = kPerThread * threadIdx.x;
  int size[kPerThread], mine = 0, total;
#pragma unroll
  for (int i = 0; i < kPerThread; i++) mine += size[i] = s.offset[first + i];
  int start = block_scan(mine, s.narrow, total);
  if (threadIdx.x == 0 && total < k) {
    s.cut = kBuckets - 1;
    s.candidates = total;
  }
  bool large = false;
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    s.offset[first + i] = start;
    large |= start < k && size[i] > kQuadratic;
    if (start < k && start + size[i] >= k) {
      s.cut = first + i;
      s.candidates = start + size[i];
    }
    start += size[i];
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

// Candidates to slots in bucket order, then to order[rank], with e[rank], for ranks below `count`.
__device__ __forceinline__ void rank_candidates(Shared& s, const float* z, int V, Buckets buckets, bool large,
                                                int count, u64* slots, u64* order, float* e) {
  const int cut = s.cut, candidates = s.candidates;
  each_id(z, V, [&](float value, int id) {
    const int b = buckets.of(value);
    if (b <= cut && buckets.counts(b)) slots[atomicAdd(&s.offset[b], 1)] = ranked(value, id);
  });
  __syncthreads();  // offset[b] is now the end of bucket b, the start of the next
  if (large) {
    for (int b = 0; b <= cut; b++) {
      const int start = b > 0 ? s.offset[b - 1] : 0, size = s.offset[b] - start;
      if (size > kQuadratic && start < candidates) block_sort(slots + start, size);
    }
  }
  for (int i = threadIdx.x; i < candidates; i += kThreads) {
    const u64 mine = slots[i];
    const int b = buckets.of(z_of(mine)), start = b > 0 ? s.offset[b - 1] : 0, end = s.offset[b];
    int rank = i;
    if (end - start <= kQuadratic) {
      rank = start;
      for (int j = start; j < end; j++) rank += slots[j] < mine;
    }
    if (rank < count) {
      order[rank] = mine;
      e[rank] = contract_exp(__fsub_rn(z_of(mine), buckets.top));
    }
  }
  __syncthreads();
}

// The id with the smallest (-ln v)/e among ranks 0..n-1, lowest id among equals.
__device__ __forceinline__ int gumbel_id(Shared& s, const u64* order, const float* e, int n, u64 seed,
                                         unsigned draw) {
  const double huge = 0x1.fffffffffffffp1023;
  double least = huge, bound = huge;
  u64 id = ~0ull;
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + threadIdx.x;
    if (i < n && e[i] > 0.0f) {
      const unsigned token = static_cast<unsigned>(id_of(order[i]));
      const u64 w = philox_word(seed, draw, token, 1);
      const double v = __dmul_rn(__dadd_rn(static_cast<double>(w >> 12), 0.5), 0x1p-52);
      const double weight = static_cast<double>(e[i]);
      // -ln v is at least 1 - v: most noise is beaten before its logarithm is taken.
      if (!(__dsub_rn(1.0, v) > __dmul_rn(__dmul_rn(bound, weight), 1.0 + 0x1p-40))) {
        const double score = __ddiv_rn(-contract_ln(v), weight);
        if (score < least || (score == least && token < id)) {
          least = score;
          id = token;
        }
        if (score < bound) bound = score;
      }
    }
    if (base == 0) bound = __longlong_as_double(block_min(__double_as_longlong(bound), s.wide));
  }
  const u64 best = block_min(__double_as_longlong(least), s.wide);
  const bool mine = static_cast<u64>(__double_as_longlong(least)) == best;
  return static_cast<int>(block_min(mine ? id : ~0ull, s.wide));
}

extern "C" __global__ void __launch_bounds__(1024)
    sample_rows(const Partial* __restrict__ partials, int chunks, float* z, u64* slots, u64* order,
                const float* __restrict__ temperature, const int* __restrict__ top_k,
                const double* __restrict__ top_p, const u64* __restrict__ seed,
                const unsigned* __restrict__ draw, const int* __restrict__ sampler,
                const double* __restrict__ given_u, int V, int* __restrict__ token, int* __restrict__ kept,
                double* __restrict__ u_out, int* __restrict__ status, int* __restrict__ ids) {
  __shared__ Shared s;
  const int row = blockIdx.x, t = threadIdx.x;
  const long long start = static_cast<long long>(row) * V;
  join_partials(s.row, partials + static_cast<long long>(row) * chunks, chunks);
  const int refused = status_of(s.row.flags);
  const bool greedy = is_greedy(temperature[row]);
  if (greedy || refused != 0) {
    if (t == 0) {
      token[row] = refused != 0 ? -1 : id_of(s.row.best);
      kept[row] = refused == 0;
      u_out[row] = -1.0;
      status[row] = refused;
    }
    return;
  }

  const int k = top_k[row] <= 0 || top_k[row] > V ? V : top_k[row];
  const Buckets buckets = make_buckets(s.row, ids != nullptr);
  for (int b = t; b < kBuckets; b += kThreads) s.offset[b] = 0;
  __syncthreads();
  each_id(z + start, V, [&](float value, int) {
    const int b = buckets.of(value);
    if (buckets.counts(b)) atomicAdd(&s.offset[b], 1);
  });
  __syncthreads();
  const bool large = cut_buckets(s, k);
  const int count = min(k, s.candidates);  // ranks that matter; the others of the k are dead
  const bool small = s.candidates <= kSmall;
  u64 *slot = small ? s.slots : slots + start, *ranks = small ? s.order : order + start;
  float* e = small ? s.e : z + start;
  rank_candidates(s, z + start, V, buckets, large, count, slot, ranks, e);
  if (ids != nullptr)
    for (int i = t; i < count; i += kThreads) ids[start + i] = id_of(ranks[i]);

  const auto element = [=](int i) { return e[i]; };
  const bool by_noise = sampler[row] != 0;
  const double p = top_p[row];
  int n = k;
  double u = -1.0;
  double sum = 0.0;
  if (p < 1.0 || !by_noise) {
    serial_sums(s.sums, count, element);
    sum = serial_total(s.sums, count);
  }
  if (p < 1.0) {
    n = first_beyond<true>(s.sums, count, element, __dmul_rn(p, sum), s.found, s.sum) + 1;
    sum = s.sum;
    __syncthreads();
  }
  int chosen;
  if (by_noise) {
    chosen = gumbel_id(s, ranks, e, min(n, count), seed[row], draw[row]);
  } else {
    u = given_u != nullptr && given_u[row] >= 0.0 ? given_u[row]
                                                  : uniform53(philox_word(seed[row], draw[row], 0, 0));
    chosen = id_of(ranks[first_beyond<false>(s.sums, count, element, __dmul_rn(u, sum), s.found, s.sum)]);
  }
  if (t == 0) {
    token[row] = chosen;
    kept[row] = n;
    u_out[row] = u;
    status[row] = 0;
  }
}
