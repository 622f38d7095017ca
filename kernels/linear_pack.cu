// Weights of an f32 linear layer from a checkpoint's storage to the layout of linear.cuh.
//
// rows: N rows of K weights, little-endian bytes in storage SOURCE: 0 f32, 1 bf16, 2 Q8_0, 3 Q4_1 (blocks of
// 32). SOURCE 1 stays bf16 (compile with STORAGE 1); the others become f32, widened as contract section 7
// writes it. Block 256 threads, one a packed weight, grid-stride.
// Contract sections: 6, 7. Verdict: the only variant; runs once at load.
#include "linear.cuh"

#ifndef SOURCE
#define SOURCE 0
#endif

namespace {

__device__ __forceinline__ unsigned half_word(const unsigned char* p) { return p[0] | p[1] << 8; }

// A binary16 widened exactly: subnormals are m * 2^-24.
__device__ __forceinline__ float widen_half(unsigned h) {
  const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) {
    const float m = __fmul_rn(static_cast<float>(mantissa), 0x1p-24f);
    return __uint_as_float(sign | __float_as_uint(m));
  }
  return __uint_as_float(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13);
}

// Weight k of a row, as its 16 or 32 bits.
__device__ __forceinline__ unsigned weight_bits(const unsigned char* row, int k) {
#if SOURCE == 0
  const unsigned char* p = row + 4ll * k;
  return half_word(p) | half_word(p + 2) << 16;
#elif SOURCE == 1
  return half_word(row + 2ll * k);
#elif SOURCE == 2
  const unsigned char* block = row + k / 32 * 34ll;
  const float q = static_cast<float>(static_cast<signed char>(block[2 + k % 32]));
  return __float_as_uint(__fmul_rn(widen_half(half_word(block)), q));
#else
  const unsigned char* block = row + k / 32 * 20ll;
  const int i = k % 32;
  const float q = static_cast<float>(i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4);
  return __float_as_uint(
      __fadd_rn(__fmul_rn(widen_half(half_word(block)), q), widen_half(half_word(block + 2))));
#endif
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    linear_pack(const unsigned char* __restrict__ rows, Weight* __restrict__ packed, int N, int K,
                long long row_bytes) {
  const long long panel = static_cast<long long>(K) * kPanel, count = panels_of(N) * panel;
  for (long long at = blockIdx.x * 256ll + threadIdx.x; at < count; at += gridDim.x * 256ll) {
    const long long n = at / panel * kPanel + at % kPanel;
    const int k = static_cast<int>(at % panel / kPanel);
    const unsigned bits = n < N ? weight_bits(rows + n * row_bytes, k) : 0;
#if STORAGE
    packed[at] = static_cast<Weight>(bits);
#else
    packed[at] = __uint_as_float(bits);
#endif
  }
}
