// Contract section 8: ranks of the ids of one row by a block of 1024 threads, for sample_rows.
//
// Few ranks come from candidates at or above a bound, others from buckets of distance to the largest z; what
// the ways cost is in small_ops.md.
#pragma once

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
