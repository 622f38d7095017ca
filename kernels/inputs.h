// Counter-based test inputs, the same bits as crucible/numerics/inputs.py, for host C++ and CUDA alike.
//
// Element i of stream s under seed S is a pure function of (S, s, i): the SplitMix64 output function
// applied to the seed with the stream, then to that key with the index. Floats are made by f32 products
// and sums that round once each, so the file must be compiled without contraction, as every kernel is.
#pragma once

#if defined(__CUDACC__) || defined(CRUCIBLE_SIMT)
#define CRUCIBLE_INPUTS_FN __host__ __device__ inline
#else
#define CRUCIBLE_INPUTS_FN inline
#endif

namespace crucible_inputs {

typedef unsigned long long u64;  // the same width on every target, and known to NVRTC without headers

constexpr u64 kGolden = 0x9E3779B97F4A7C15ull;
// 1 / (standard deviation of a sum of four uniform 16-bit integers), rounded to f32 once.
constexpr float kNormalishUnit = 0x1.bb67aep-16f;

CRUCIBLE_INPUTS_FN u64 mix(u64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

CRUCIBLE_INPUTS_FN u64 bits64(u64 seed, u64 stream, u64 index) {
  const u64 key = mix(seed + kGolden * (stream + 1));
  return mix(key + kGolden * (index + 1));
}

CRUCIBLE_INPUTS_FN unsigned int bits(u64 seed, u64 stream, u64 index) {
  return static_cast<unsigned int>(bits64(seed, stream, index) >> 32);
}

// (24-bit integer * 2^-24) * (high - low) + low; the first product is exact.
CRUCIBLE_INPUTS_FN float uniform(u64 seed, u64 stream, u64 index, float low, float high) {
  const float fraction = static_cast<float>(bits(seed, stream, index) >> 8) * 0x1p-24f;
  const float scaled = fraction * (high - low);
  return scaled + low;
}

// A centred sum of four 16-bit uniforms (exact) times scale * kNormalishUnit.
CRUCIBLE_INPUTS_FN float normalish(u64 seed, u64 stream, u64 index, float scale) {
  const u64 word = bits64(seed, stream, index);
  int total = -131070;
  for (int shift = 0; shift < 64; shift += 16) total += static_cast<int>((word >> shift) & 0xFFFFu);
  const float unit = scale * kNormalishUnit;
  return static_cast<float>(total) * unit;
}

}  // namespace crucible_inputs
