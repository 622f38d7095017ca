// The running f64 sum of contract section 8, c = c + e element by element, with its roundings, by a block.
//
// A chain of V dependent additions takes V latencies. Segments can be walked at once, because rounding knows
// little of its past: while c stays between two powers of two it is an integer multiple of one ulp, and the
// number of ulps that an addition makes it grow depends on e and, where e falls halfway, on whether that
// integer is even, on nothing else. So a thread walks its segment twice, from the power of two below and from
// one ulp above it, with plain additions; what it grew by is what the true sum grows by from any even or odd
// start. One thread then joins the segments. Where an estimate of the sum leaves the power of two in doubt,
// that thread walks the segment itself: at most a few dozen of them, as a sum of V numbers up to 1 passes
// few.
#pragma once

#include "sampling.cuh"

constexpr int kSegments = 256;

struct SerialSum {
  double start[kSegments + 1];  // exact sum before each segment; the last entry is the whole sum
  double grown[2][kSegments];   // by how much a segment grows an even and an odd sum
  int doubtful[kSegments];
  double warps[32];
};

// Elements of a segment; short ones are not worth sharing.
__device__ __forceinline__ int segment_length(int n) {
  const int length = (n + kSegments - 1) / kSegments;
  return length < 16 ? 16 : length;
}

// f(e_i) for i in [first, end) in order, with eight loads ahead of the chain.
template <class E, class F>
__device__ __forceinline__ void in_order(int first, int end, const E& element, const F& f) {
  constexpr int kAhead = 8;
  int i = first;
  for (; i + kAhead <= end; i += kAhead) {
    double e[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; j++) e[j] = static_cast<double>(element(i + j));
#pragma unroll
    for (int j = 0; j < kAhead; j++) f(e[j]);
  }
  for (; i < end; i++) f(static_cast<double>(element(i)));
}

// s.start out of what the segments grow by; one thread.
template <class E>
__device__ __forceinline__ void join_segments(SerialSum& s, int n, int length, int segments,
                                              const E& element) {
  constexpr int kAhead = 4;
  double c = 0.0;
  for (int base = 0; base < segments; base += kAhead) {
    double even[kAhead], odd[kAhead];
    bool doubtful[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      const int g = min(base + j, segments - 1);
      even[j] = s.grown[0][g];
      odd[j] = s.grown[1][g];
      doubtful[j] = s.doubtful[g];
    }
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      const int g = base + j;
      if (g >= segments) break;
      s.start[g] = c;
      if (doubtful[j])
        in_order(g * length, min(n, (g + 1) * length), element, [&](double e) { c = __dadd_rn(c, e); });
      else
        c = __dadd_rn(c, __double_as_longlong(c) & 1 ? odd[j] : even[j]);
    }
  }
  s.start[segments] = c;
}

// Fills s.start for e[0..n-1] = element(i), each in [0, 1]. All 1024 threads call it; ends with a barrier.
template <class E>
__device__ __forceinline__ void serial_sums(SerialSum& s, int n, const E& element) {
  const int length = segment_length(n), segments = (n + length - 1) / length, t = threadIdx.x;
  const int first = t * length, end = t < segments ? min(n, first + length) : 0;
  double sum = 0.0, total;
  in_order(first, end, element, [&](double e) { sum = __dadd_rn(sum, e); });
  const double before = block_scan(sum, s.warps, total), after = __dadd_rn(before, sum);
  if (t < segments) {
    // The estimate and the true sum differ by less than n ulps each; n < 2^20.
    const u64 low = static_cast<u64>(__double_as_longlong(__dmul_rn(before, 1.0 - 0x1p-30))) >> 52;
    const u64 high = static_cast<u64>(__double_as_longlong(__dmul_rn(after, 1.0 + 0x1p-30))) >> 52;
    const bool doubtful = low != high || low < 64;
    s.doubtful[t] = doubtful;
    s.grown[0][t] = s.grown[1][t] = 0.0;
    if (!doubtful) {
      const double even = __longlong_as_double(static_cast<long long>(low << 52));
      const double odd = __longlong_as_double(static_cast<long long>(low << 52 | 1));
      double a = even, b = odd;
      in_order(first, end, element, [&](double e) {
        a = __dadd_rn(a, e);
        b = __dadd_rn(b, e);
      });
      s.grown[0][t] = __dsub_rn(a, even);
      s.grown[1][t] = __dsub_rn(b, odd);
    }
  }
  __syncthreads();
  if (t == 0) join_segments(s, n, length, segments, element);
  __syncthreads();
}

__device__ __forceinline__ double serial_total(const SerialSum& s, int n) {
  const int length = segment_length(n);
  return s.start[(n + length - 1) / length];
}

// First i with c_i > target, or with kOrEqual c_i >= target; n - 1 if none. The sum c_i comes in `sum`.
// `found` and `sum` are shared. All threads call it; ends with a barrier.
template <bool kOrEqual, class F>
__device__ __forceinline__ int first_beyond(const SerialSum& s, int n, const F& element, double target,
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
    in_order(i, min(n, i + length), element, [&](double e) {
      c = __dadd_rn(c, e);
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
