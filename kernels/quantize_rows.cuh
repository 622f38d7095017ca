// Contract section 6, activations: a row's largest magnitude, its integers, and their two digits.
#pragma once

#include "contract.cuh"
#include "linear_i8.cuh"

namespace {

constexpr unsigned kInfinityBits = 0x7f800000u;

// Magnitudes as integers: their order is that of the floats, infinity and NaN above every finite one.
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ __forceinline__ unsigned magnitude(const float4& v) {
  return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}
__device__ __forceinline__ unsigned warp_max(unsigned value) {
  for (int o = 16; o > 0; o >>= 1) value = max(value, __shfl_xor_sync(kAllLanes, value, o));
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

// Four neighbouring integers as a word of hi digits and a word of lo digits.
__device__ __forceinline__ uint2 digit_words(const float4& v, float factor) {
  const int q[4] = {quantized(v.x, factor), quantized(v.y, factor), quantized(v.z, factor),
                    quantized(v.w, factor)};
  uint2 words = make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    words.x |= static_cast<unsigned>(hi_digit(q[i]) & 255) << 8 * i;
    words.y |= static_cast<unsigned>(lo_digit(q[i]) & 255) << 8 * i;
  }
  return words;
}

// WHOLE 1: K is a multiple of 4 and rows are 16-byte aligned. No branch then stands between loads.
#ifndef WHOLE
#define WHOLE 0
#endif

// Columns k..k+3 of a row of K floats, k a multiple of 4, +0 past K.
__device__ __forceinline__ float4 load_quad(const float* row, int k, int K) {
  if (k >= K) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (WHOLE) return *reinterpret_cast<const float4*>(row + k);
  return make_float4(row[k], k + 1 < K ? row[k + 1] : 0.0f, k + 2 < K ? row[k + 2] : 0.0f,
                     k + 3 < K ? row[k + 3] : 0.0f);
}
__device__ __forceinline__ void store_quad(float* row, int k, int K, const float4& v) {
  if (WHOLE) {
    if (k < K) *reinterpret_cast<float4*>(row + k) = v;
    return;
  }
  const float value[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; i++)
    if (k + i < K) row[k + i] = value[i];
}

// What the input of a layer is made of (section 7): (x*r)*w of RMSNorm, and SwiGLU.
__device__ __forceinline__ float4 normed(const float4& x, float r, const float4& w) {
  return make_float4(__fmul_rn(__fmul_rn(x.x, r), w.x), __fmul_rn(__fmul_rn(x.y, r), w.y),
                     __fmul_rn(__fmul_rn(x.z, r), w.z), __fmul_rn(__fmul_rn(x.w, r), w.w));
}
__device__ __forceinline__ float gated(float g, float u) {
  return __fmul_rn(__fmul_rn(g, contract_sigmoid(g)), u);
}
__device__ __forceinline__ float4 gated(const float4& g, const float4& u) {
  return make_float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
}

// A block of R = 1, 2, 4 or 8 rows, 64 threads each; two rows fill the 32-byte sectors that are written.
// Thread p of a row takes the quads of columns p, p + 64, …; KEPT of them stay in registers.
#ifndef KEPT
#define KEPT 4
#endif
constexpr int kRowThreads = 64, kMostThreads = 8 * kRowThreads;

// DIRECT 1: digits go to memory as words, for rows that shared memory does not hold.
#ifndef DIRECT
#define DIRECT 0
#endif

// Bytes of a row of digits in shared memory: 16 more, so that lines of neighbouring rows are apart.
__device__ __forceinline__ int digits_stride(int K) { return slices_of(K) * kSlice + 16; }

// The rows of a block quantized; value(i, k) gives columns k..k+3 of this thread's row, its i-th quad, +0
// past K. Rows past T become zeros. `digits`: 2 * R * digits_stride(K) bytes of shared memory, none where
// DIRECT is 1.
template <class Value>
__device__ __forceinline__ void quantize_block(signed char* rows, float* top, int T, int K, uint4* digits,
                                               const Value& value) {
  __shared__ unsigned warps[kMostThreads / 32];
  const int r = threadIdx.x / kRowThreads, p = threadIdx.x % kRowThreads, R = blockDim.x / kRowThreads;
  const int t0 = blockIdx.x * R, t = t0 + r, quads = slices_of(K) * (kSlice / 4), stride = digits_stride(K);
  unsigned char* bytes = reinterpret_cast<unsigned char*>(digits);
  unsigned char* to = reinterpret_cast<unsigned char*>(rows);
  float4 kept[KEPT];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int quad = p + i * kRowThreads;
    kept[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (t < T && quad < quads) kept[i] = value(i, 4 * quad);
  }
#pragma unroll
  for (int i = 0; i < KEPT; i++) largest = max(largest, magnitude(kept[i]));
  for (int i = KEPT, quad = p + KEPT * kRowThreads; t < T && quad < quads; i++, quad += kRowThreads)
    largest = max(largest, magnitude(value(i, 4 * quad)));
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
  __syncthreads();
  const float A = row_top(max(warps[2 * r], warps[2 * r + 1])), factor = row_factor(A);
  if (p == 0 && t < T) top[t] = A;
  const auto put = [&](int quad, const float4& v) {
    const uint2 words = digit_words(v, factor);
    const long long at = row_byte(t, 4 * quad, eights_of(T));
    *reinterpret_cast<unsigned*>(DIRECT ? to + at : bytes + r * stride + 4 * quad) = words.x;
    *reinterpret_cast<unsigned*>(DIRECT ? to + at + kWeightPanel : bytes + (R + r) * stride + 4 * quad) =
        words.y;
  };
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int quad = p + i * kRowThreads;
    if (quad < quads) put(quad, kept[i]);
  }
  for (int i = KEPT, quad = p + KEPT * kRowThreads; quad < quads; i++, quad += kRowThreads)
    put(quad, t < T ? value(i, 4 * quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
  if (DIRECT) return;
  __syncthreads();
  to += row_byte(t0, 0, eights_of(T));
  const long long slice_bytes = static_cast<long long>(eights_of(T)) * kRowGroup;
  for (int item = threadIdx.x; item < R * quads / 4; item += blockDim.x) {
    const int row = item & (R - 1), line = item / R;
    unsigned char* at = to + (line >> 2) * slice_bytes + (line & 3) * kCore + row * 16;
    *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(bytes + row * stride + 16 * line);
    *reinterpret_cast<uint4*>(at + kWeightPanel) =
        *reinterpret_cast<const uint4*>(bytes + (R + row) * stride + 16 * line);
  }
}

}  // namespace
