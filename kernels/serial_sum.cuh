// The running f64 sum of contract section 8, c = c + e element by element, with its roundings, by a block.
//
// A chain of V dependent additions takes V latencies. Segments can be walked at once, because rounding knows
// little of its past: while c stays between two powers of two it is an integer multiple of one ulp, and the
// number of ulps that an addition makes it grow depends on e and, where e falls halfway, on whether that
// integer is even, on nothing else. So a thread walks its segment twice, from the power of two below and from
// one ulp above it, with plain additions; what it grew by is what the true sum grows by from any even or odd
// start. Such growths compose: a warp joins its 32 segments to a group, and one warp joins the groups. Where
// an estimate of the sum leaves the power of two in doubt, that warp walks the segment itself: a few dozen at
// most, as a sum of V numbers up to 1 passes few powers of two.
#pragma once

#include "sampling.cuh"

constexpr int kSegments = 1024;

struct SerialSum {
  double start[kSegments + 1];  // exact sum before each segment; the last entry is the whole sum
  double grown[2][kSegments];   // by how much a segment grows an even and an odd sum
  double group[2][32];          // the same of 32 segments, where one power of two holds them
  unsigned doubtful[32];        // a bit a segment
  int whole[32];                // whether `group` holds
  double warps[32];
};

// Elements of a segment: whole vectors of eight, and no shorter than a warp.
__device__ __forceinline__ int segment_length(int n) {
  const int length = (n + kSegments - 1) / kSegments;
  return length < 32 ? 32 : (length + 7) / 8 * 8;
}
__device__ __forceinline__ bool is_odd(double c) { return __double_as_longlong(c) & 1; }

// f(e[i]) for i in [first, end) in order, with eight loads ahead of the chain; first is a multiple of 4.
template <class F>
__device__ __forceinline__ void in_order(const float* e, int first, int end, const F& f) {
  int i = first;
  for (; i + 8 <= end; i += 8) {
    const float4 a = *reinterpret_cast<const float4*>(e + i), b = *reinterpret_cast<const float4*>(e + i + 4);
    f(static_cast<double>(a.x));
    f(static_cast<double>(a.y));
    f(static_cast<double>(a.z));
    f(static_cast<double>(a.w));
    f(static_cast<double>(b.x));
    f(static_cast<double>(b.y));
    f(static_cast<double>(b.z));
    f(static_cast<double>(b.w));
  }
  for (; i < end; i++) f(static_cast<double>(e[i]));
}

// c after e[first..end-1], by a warp: all lanes hold the same chain. Padding with +0 changes no c.
__device__ __forceinline__ double walked_by_warp(const float* e, int first, int end, double c) {
  const int lane = threadIdx.x & 31;
  for (int base = first; base < end; base += 32) {
    const float mine = base + lane < end ? e[base + lane] : 0.0f;
#pragma unroll
    for (int j = 0; j < 32; j++) c = __dadd_rn(c, static_cast<double>(__shfl_sync(kAllLanes, mine, j)));
  }
  return c;
}

// s.start of each group, and of each segment in a group that is not whole; one warp.
__device__ __forceinline__ void join_groups(SerialSum& s, const float* e, int n, int length, int segments) {
  const bool writes = (threadIdx.x & 31) == 0;
  double c = 0.0;
  for (int g = 0; g < segments;) {
    const int group = g / 32;
    if (s.whole[group]) {
      if (writes) s.start[g] = c;
      c = __dadd_rn(c, s.group[is_odd(c)][group]);
      g += 32;
      continue;
    }
    const unsigned doubtful = s.doubtful[group];
    for (const int stop = min(segments, g + 32); g < stop; g++) {
      if (writes) s.start[g] = c;
      c = doubtful >> (g & 31) & 1 ? walked_by_warp(e, g * length, min(n, (g + 1) * length), c)
                                   : __dadd_rn(c, s.grown[is_odd(c)][g]);
    }
  }
  if (writes) s.start[segments] = c;
}

// Fills s.start for e[0..n-1], each in [0, 1], e aligned to 16 bytes, in shared or global memory. All 1024
// threads call it; ends with a barrier.
__device__ __forceinline__ void serial_sums(SerialSum& s, const float* e, int n) {
  const int length = segment_length(n), segments = (n + length - 1) / length, t = threadIdx.x;
  const int lane = t & 31, warp = t >> 5;
  const int first = t * length, end = t < segments ? min(n, first + length) : 0;
  double sum = 0.0, total;
  in_order(e, first, end, [&](double v) { sum = __dadd_rn(sum, v); });
  const double before = block_scan(sum, s.warps, total), after = __dadd_rn(before, sum);
  // The estimate and the true sum differ by less than n ulps each; n < 2^20.
  const u64 low = static_cast<u64>(__double_as_longlong(__dmul_rn(before, 1.0 - 0x1p-30))) >> 52;
  const u64 high = static_cast<u64>(__double_as_longlong(__dmul_rn(after, 1.0 + 0x1p-30))) >> 52;
  const bool exists = t < segments, doubtful = exists && (low != high || low < 64);

  double even = __longlong_as_double(static_cast<long long>(low << 52));
  double odd = __longlong_as_double(static_cast<long long>(low << 52 | 1));
  double a = even, b = odd;
  in_order(e, first, doubtful ? first : end, [&](double v) {
    a = __dadd_rn(a, v);
    b = __dadd_rn(b, v);
  });
  a = __dsub_rn(a, even);
  b = __dsub_rn(b, odd);
  s.grown[0][t] = a;
  s.grown[1][t] = b;

  // Lane i of every 2*o takes over the segments of lane i + o. A segment that does not exist grows nothing.
  const u64 power = __shfl_sync(kAllLanes, low, 0);
  const unsigned doubts = __ballot_sync(kAllLanes, doubtful);
  const bool whole = __all_sync(kAllLanes, !exists || low == power) && doubts == 0;
  even = __longlong_as_double(static_cast<long long>(power << 52));
  odd = __longlong_as_double(static_cast<long long>(power << 52 | 1));
  for (int o = 1; o < 32; o <<= 1) {
    const double from_even = __shfl_down_sync(kAllLanes, a, o), from_odd = __shfl_down_sync(kAllLanes, b, o);
    a = __dadd_rn(a, is_odd(__dadd_rn(even, a)) ? from_odd : from_even);
    b = __dadd_rn(b, is_odd(__dadd_rn(odd, b)) ? from_odd : from_even);
  }
  if (lane == 0) {
    s.group[0][warp] = a;
    s.group[1][warp] = b;
    s.doubtful[warp] = doubts;
    s.whole[warp] = whole;
  }
  __syncthreads();
  if (warp == 0) join_groups(s, e, n, length, segments);
  __syncthreads();
  if (lane == 0 && t < segments && whole) {
    double c = s.start[t];
    for (int g = t; g + 1 < min(segments, t + 32); g++) {
      c = __dadd_rn(c, s.grown[is_odd(c)][g]);
      s.start[g + 1] = c;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ double serial_total(const SerialSum& s, int n) {
  const int length = segment_length(n);
  return s.start[(n + length - 1) / length];
}

// First i with c_i > target, or with kOrEqual c_i >= target; n - 1 if none. The sum c_i comes in `sum`.
// `found` and `sum` are shared. All threads call it; ends with a barrier.
template <bool kOrEqual>
__device__ __forceinline__ int first_beyond(const SerialSum& s, const float* e, int n, double target,
                                            int& found, double& sum) {
  const int length = segment_length(n), segments = (n + length - 1) / length, t = threadIdx.x;
  const auto beyond = [=](double c) { return kOrEqual ? c >= target : c > target; };
  if (t == 0) {
    found = n - 1;
    sum = s.start[segments];
  }
  __syncthreads();
  if (t < segments && beyond(s.start[t + 1]) && (t == 0 || !beyond(s.start[t]))) {
    double c = s.start[t], reached = c;
    int i = t * length, at = -1;
    in_order(e, i, min(n, i + length), [&](double v) {
      c = __dadd_rn(c, v);
      if (at < 0 && beyond(c)) {
        at = i;
        reached = c;
      }
      i++;
    });
    found = at;
    sum = reached;
  }
  __syncthreads();
  return found;
}
