// Contract section 6, activations: a row's largest magnitude, its integers, and their two digits.
#pragma once

#include "contract.cuh"
#include "linear_i8.cuh"

namespace {

constexpr unsigned kInfinityBits = 0x7f800000u;

// Magnitudes as integers: their order is that of the floats, infinity and NaN above every finite one.
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Largest value of a block of 32*kWarps threads, in every thread. `warps` may be used again after a barrier.
template <int kWarps>
__device__ __forceinline__ unsigned block_max(unsigned value, unsigned (&warps)[kWarps]) {
  for (int o = 16; o > 0; o >>= 1) value = max(value, __shfl_xor_sync(kAllLanes, value, o));
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = value;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; i++) value = max(value, warps[i]);
  return value;
}

// A of a row from its largest magnitude: +0 below 2^-100, NaN where a value was not finite.
__device__ __forceinline__ float row_top(unsigned largest) {
  const float A = largest < kInfinityBits ? __uint_as_float(largest) : __uint_as_float(0x7fc00000u);
  return A < 0x1p-100f ? 0.0f : A;
}
// The factor 32512/A; 0 where the integers of the row are 0, also where a value was not finite.
__device__ __forceinline__ float row_factor(float A) { return A > 0.0f ? __fdiv_rn(32512.0f, A) : 0.0f; }

__device__ __forceinline__ int quantized(float x, float factor) {
  return factor == 0.0f ? 0 : __float2int_rn(__fmul_rn(x, factor));
}
__device__ __forceinline__ int hi_digit(int q) { return (q + 128) >> 8; }
__device__ __forceinline__ int lo_digit(int q) { return q - 256 * hi_digit(q); }

// The digits of k..k+3 of row t, k a multiple of 4, into the layout of linear_i8.cuh.
__device__ __forceinline__ void store_digits(signed char* rows, int t, int k, int groups, const int (&q)[4]) {
  unsigned hi = 0, lo = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    hi |= static_cast<unsigned>(hi_digit(q[i]) & 255) << 8 * i;
    lo |= static_cast<unsigned>(lo_digit(q[i]) & 255) << 8 * i;
  }
  signed char* to = rows + row_byte(t, k, groups);
  *reinterpret_cast<unsigned*>(to) = hi;
  *reinterpret_cast<unsigned*>(to + kWeightPanel) = lo;
}

// A row quantized by a block of 128 threads: `value(k)` gives a float4 of columns k..k+3, k a multiple of 4,
// zeros past K. Thread i takes the quads i, i + 128, …; up to kKept of them stay in registers.
constexpr int kKept = 8;

template <class Value>
__device__ __forceinline__ void quantize_row(signed char* rows, float* top, int t, int T, int K,
                                             const Value& value) {
  __shared__ unsigned warps[4];
  const int quads = slices_of(K) * (kSlice / 4), groups = eights_of(T);
  float4 kept[kKept];
  unsigned largest = 0;
  const auto raise = [&](const float4& v) {
    largest = max(max(largest, max(magnitude(v.x), magnitude(v.y))), max(magnitude(v.z), magnitude(v.w)));
  };
  if (t < T) {
#pragma unroll
    for (int i = 0; i < kKept; i++) {
      const int quad = threadIdx.x + 128 * i;
      kept[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (quad < quads) kept[i] = value(4 * quad);
      raise(kept[i]);
    }
    for (int quad = threadIdx.x + 128 * kKept; quad < quads; quad += 128) raise(value(4 * quad));
  }
  const float A = row_top(block_max(largest, warps)), factor = row_factor(A);
  if (threadIdx.x == 0 && t < T) top[t] = A;
  const auto store = [&](int quad, const float4& v) {
    const int q[4] = {quantized(v.x, factor), quantized(v.y, factor), quantized(v.z, factor),
                      quantized(v.w, factor)};
    store_digits(rows, t, 4 * quad, groups, q);
  };
#pragma unroll
  for (int i = 0; i < kKept; i++) {
    const int quad = threadIdx.x + 128 * i;
    if (quad < quads) store(quad, kept[i]);
  }
  for (int quad = threadIdx.x + 128 * kKept; quad < quads; quad += 128)
    store(quad, t < T ? value(4 * quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

// Columns k..k+3 of a row of K floats; `whole` says that K is a multiple of 4 and the row 16-byte aligned.
__device__ __forceinline__ float4 load_quad(const float* row, int k, int K, bool whole) {
  if (k >= K) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (whole) return *reinterpret_cast<const float4*>(row + k);
  return make_float4(row[k], k + 1 < K ? row[k + 1] : 0.0f, k + 2 < K ? row[k + 2] : 0.0f,
                     k + 3 < K ? row[k + 3] : 0.0f);
}

}  // namespace
