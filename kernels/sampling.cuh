// Contract section 8: sort keys, Philox draws and ln, and reductions over a block, for the sampling kernels.
#pragma once

#include "contract.cuh"

typedef unsigned long long u64;  // NVRTC has no <cstdint>

// Larger z first: a key that ascends as z descends, with -0 equal to +0. Joined with the token id it is
// unique, and ascending order is the contract's ranking.
__device__ __forceinline__ unsigned descending_key(float z) {
  const unsigned u = __float_as_uint(__fadd_rn(z, 0.0f));  // -0 + +0 is +0
  return u & 0x80000000u ? u : ~(u | 0x80000000u);
}
__device__ __forceinline__ u64 ranked(float z, unsigned id) {
  return static_cast<u64>(descending_key(z)) << 32 | id;
}
__device__ __forceinline__ int id_of(u64 ranked) { return static_cast<int>(ranked & 0xffffffffu); }
__device__ __forceinline__ float z_of(u64 ranked) {  // a -0 comes back as +0
  const unsigned key = static_cast<unsigned>(ranked >> 32);
  return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu);
}

// What one chunk of a row, and then the row, amounts to.
constexpr int kBadLogit = 1, kFinite = 2, kOverflow = 4;  // flags
struct Partial {
  u64 best;   // the smallest ranked(z, id)
  float low;  // the smallest finite z, or +inf
  int flags;
};

__device__ __forceinline__ bool is_greedy(float temperature) {  // +0 and -0; a subnormal is a temperature
  return (__float_as_uint(temperature) << 1) == 0;
}

// What the cpu device refuses: 1 a NaN or +inf, 2 no finite logit, 3 overflow by the temperature; 0 is fine.
__device__ __forceinline__ int status_of(int flags) {
  return flags & kBadLogit ? 1 : !(flags & kFinite) ? 2 : flags & kOverflow ? 3 : 0;
}

__device__ __forceinline__ Partial joined(Partial a, Partial b) {
  return {a.best < b.best ? a.best : b.best, fminf(a.low, b.low), a.flags | b.flags};
}

// `p` joined over a warp, in every lane.
__device__ __forceinline__ Partial warp_joined(Partial p) {
  for (int o = 16; o > 0; o >>= 1) {
    const Partial other = {__shfl_xor_sync(kAllLanes, p.best, o), __shfl_xor_sync(kAllLanes, p.low, o),
                           __shfl_xor_sync(kAllLanes, p.flags, o)};
    p = joined(p, other);
  }
  return p;
}

// The partials of a row joined by the block's first warp; `row` is shared. Ends with a barrier.
__device__ __forceinline__ void join_partials(Partial& row, const Partial* partials, int chunks) {
  if (threadIdx.x < 32) {
    Partial p = {~0ull, -minus_infinity(), 0};
    for (int i = threadIdx.x; i < chunks; i += 32) p = joined(p, partials[i]);
    p = warp_joined(p);
    if (threadIdx.x == 0) row = p;
  }
  __syncthreads();
}

// Words x0, x1 of Philox4x32-10 (Salmon et al., SC 2011) as one integer, or all four.
struct Counter {
  unsigned x[4];
};
__device__ __forceinline__ Counter philox4x32(Counter c, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned a = 0xD2511F53u, b = 0xCD9E8D57u;
    c = {{__umulhi(b, c.x[2]) ^ c.x[1] ^ k0, b * c.x[2], __umulhi(a, c.x[0]) ^ c.x[3] ^ k1, a * c.x[0]}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
__device__ __forceinline__ u64 philox_word(u64 seed, unsigned c0, unsigned c1, unsigned c2) {
  const Counter r =
      philox4x32({{c0, c1, c2, 0u}}, static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32));
  return static_cast<u64>(r.x[0]) << 32 | r.x[1];
}
__device__ __forceinline__ double uniform53(u64 word) {
  return __dmul_rn(static_cast<double>(word >> 11), 0x1p-53);
}

// ln of a positive finite f64 without fma: m in [sqrt(1/2), sqrt(2)), odd series to 1/23.
__device__ __forceinline__ double contract_ln(double v) {
  int k = -1023;
  if (v < 0x1p-1022) {  // subnormal: scaling by a power of two is exact
    v = __dmul_rn(v, 0x1p54);
    k -= 54;
  }
  const u64 u = static_cast<u64>(__double_as_longlong(v));
  k += static_cast<int>(u >> 52);
  double m = __longlong_as_double(static_cast<long long>((u & ((1ull << 52) - 1)) | 1023ull << 52));
  if (m >= 1.4142135623730951) {
    m = __dmul_rn(m, 0.5);
    k++;
  }
  const double t = __ddiv_rn(__dadd_rn(m, -1.0), __dadd_rn(m, 1.0)), s = __dmul_rn(t, t);
  constexpr double kOdd[12] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,  1.0 / 9.0,  1.0 / 11.0,
                               1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0, 1.0 / 23.0};
  double p = kOdd[11];
#pragma unroll
  for (int i = 10; i >= 0; i--) p = __dadd_rn(__dmul_rn(p, s), kOdd[i]);
  return __dadd_rn(__dmul_rn(static_cast<double>(k), 0.6931471805599453), __dmul_rn(__dmul_rn(2.0, t), p));
}

// Over a block of 1024 threads, the answer in every thread. `warps` is shared and free again at the return.
__device__ __forceinline__ u64 block_min(u64 v, u64 (&warps)[32]) {
  for (int o = 16; o > 0; o >>= 1) {
    const u64 other = __shfl_xor_sync(kAllLanes, v, o);
    v = other < v ? other : v;
  }
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
  __syncthreads();
  v = warps[threadIdx.x & 31];
  for (int o = 16; o > 0; o >>= 1) {
    const u64 other = __shfl_xor_sync(kAllLanes, v, o);
    v = other < v ? other : v;
  }
  __syncthreads();
  return v;
}

// Exclusive prefix sum over a block of 1024 threads; `total` is the sum. Exact for integers; for f64 an
// estimate.
template <class T>
__device__ __forceinline__ T block_scan(T v, T (&warps)[32], T& total) {
  const int lane = threadIdx.x & 31;
  T sum = v;
  for (int o = 1; o < 32; o <<= 1) {
    const T other = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum = sum + other;
  }
  if (lane == 31) warps[threadIdx.x >> 5] = sum;
  __syncthreads();
  T before = warps[lane];
  for (int o = 1; o < 32; o <<= 1) {
    const T other = __shfl_up_sync(kAllLanes, before, o);
    if (lane >= o) before = before + other;
  }
  total = __shfl_sync(kAllLanes, before, 31);
  const int warp = threadIdx.x >> 5;
  const T base = __shfl_sync(kAllLanes, before, warp > 0 ? warp - 1 : 0);
  __syncthreads();
  return (warp > 0 ? base : T(0)) + (sum - v);
}
