// Weights of an f32 linear layer in panels of 16 outputs, in the storage they came in.
//
// The contract's weight is an f32 number. A checkpoint that stores it in fewer bits (bf16, GGUF's Q8_0
// and Q4_1) is kept so, and each weight is formed again on the way to the fma by the operations that the
// contract names; widening costs arithmetic and saves memory traffic, which is what one row is short of.
// A storage S gives
//   S::panel_bytes(K)                     bytes of one panel
//   S::stream<P>(w, stride, k0, k1, f)    f(k, b) for ascending k in [k0, k1), b the fw vectors of P panels
// Quantized storages need K to be a multiple of their block of 32, so k0 and k1 are too.
#pragma once

#include "cpu/vec.h"

constexpr int64_t kPanel = 16;
constexpr int kVectors = kPanel / fw::W;  // vectors in a panel

inline int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

// Eight or sixteen integers in f32 lanes, from bytes: signed, and the low and high nibbles.
#if defined(CRUCIBLE_AVX512)
using Bytes = __m512i;
inline fw from_i32(Bytes v) { return {_mm512_cvtepi32_ps(v)}; }
inline fw signed_bytes(const uint8_t* p) {
  return from_i32(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Bytes load_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline fw low_nibbles(Bytes v) { return from_i32(_mm512_and_si512(v, _mm512_set1_epi32(15))); }
inline fw high_nibbles(Bytes v) { return from_i32(_mm512_srli_epi32(v, 4)); }
inline fw widen_bf16(const uint16_t* p) {
  const __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))};
}
inline fw operator*(fw a, fw b) { return {_mm512_mul_ps(a.v, b.v)}; }
#elif defined(CRUCIBLE_AVX2)
using Bytes = __m256i;
inline fw from_i32(Bytes v) { return f8{_mm256_cvtepi32_ps(v)}; }
inline fw signed_bytes(const uint8_t* p) {
  return from_i32(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Bytes load_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline fw low_nibbles(Bytes v) { return from_i32(_mm256_and_si256(v, _mm256_set1_epi32(15))); }
inline fw high_nibbles(Bytes v) { return from_i32(_mm256_srli_epi32(v, 4)); }
inline fw widen_bf16(const uint16_t* p) {
  const __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return f8{_mm256_castsi256_ps(_mm256_slli_epi32(v, 16))};
}
#else
using Bytes = const uint8_t*;
template <class F>
inline fw lanes_of(const F& f) {
  float v[8];
  for (int i = 0; i < 8; i++) v[i] = f(i);
  return f8::load(v);
}
inline fw signed_bytes(const uint8_t* p) {
  return lanes_of([p](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
inline Bytes load_bytes(const uint8_t* p) { return p; }
inline fw low_nibbles(Bytes p) {
  return lanes_of([p](int i) { return static_cast<float>(p[i] & 15); });
}
inline fw high_nibbles(Bytes p) {
  return lanes_of([p](int i) { return static_cast<float>(p[i] >> 4); });
}
inline fw widen_bf16(const uint16_t* p) {
  return lanes_of([p](int i) { return float_of(uint32_t{p[i]} << 16); });
}
#endif

// [K][16] f32.
struct StoredF32 {
  static int64_t panel_bytes(int64_t K) { return K * kPanel * 4; }

  template <int P, class F>
  static void stream(const uint8_t* w, int64_t stride, int64_t k0, int64_t k1, const F& f) {
    for (int64_t k = k0; k < k1; k++) {
      fw b[P * kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < P * kVectors; v++) {
        const uint8_t* panel = w + v / kVectors * stride;
        b[v] = fw::load(reinterpret_cast<const float*>(panel) + k * kPanel + v % kVectors * fw::W);
      }
      f(k, b);
    }
  }
};

// [K][16] bf16.
struct StoredBf16 {
  static int64_t panel_bytes(int64_t K) { return K * kPanel * 2; }

  template <int P, class F>
  static void stream(const uint8_t* w, int64_t stride, int64_t k0, int64_t k1, const F& f) {
    for (int64_t k = k0; k < k1; k++) {
      fw b[P * kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < P * kVectors; v++) {
        const uint8_t* panel = w + v / kVectors * stride;
        b[v] = widen_bf16(reinterpret_cast<const uint16_t*>(panel) + k * kPanel + v % kVectors * fw::W);
      }
      f(k, b);
    }
  }
};

// [K/32] blocks of d[16] f32, q[32][16] int8: w = d * q.
struct StoredQ8_0 {
  static constexpr int64_t kBlockBytes = kPanel * 4 + 32 * kPanel;
  static int64_t panel_bytes(int64_t K) { return K / 32 * kBlockBytes; }

  template <int P, class F>
  static void stream(const uint8_t* w, int64_t stride, int64_t k0, int64_t k1, const F& f) {
    constexpr int V = P * kVectors;
    for (int64_t block = k0 / 32; block < k1 / 32; block++) {
      const uint8_t* base = w + block * kBlockBytes;
      const auto at = [&](int v) { return base + v / kVectors * stride; };
      fw d[V];
      for (int v = 0; v < V; v++) {
        d[v] = fw::load(reinterpret_cast<const float*>(at(v)) + v % kVectors * fw::W);
      }
      for (int64_t i = 0; i < 32; i++) {
        fw b[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
          b[v] = d[v] * signed_bytes(at(v) + kPanel * 4 + i * kPanel + v % kVectors * fw::W);
        }
        f(block * 32 + i, b);
      }
    }
  }
};

// [K/32] blocks of d[16] f32, m[16] f32, q[16][16] bytes: byte i of an output holds k = 2i in its low
// nibble and 2i+1 in its high one; w = d * q + m, multiply then add.
struct StoredQ4_1 {
  static constexpr int64_t kBlockBytes = kPanel * 8 + 16 * kPanel;
  static int64_t panel_bytes(int64_t K) { return K / 32 * kBlockBytes; }

  template <int P, class F>
  static void stream(const uint8_t* w, int64_t stride, int64_t k0, int64_t k1, const F& f) {
    constexpr int V = P * kVectors;
    for (int64_t block = k0 / 32; block < k1 / 32; block++) {
      const uint8_t* base = w + block * kBlockBytes;
      const auto at = [&](int v) { return base + v / kVectors * stride; };
      fw d[V], m[V];
      for (int v = 0; v < V; v++) {
        const float* scales = reinterpret_cast<const float*>(at(v)) + v % kVectors * fw::W;
        d[v] = fw::load(scales);
        m[v] = fw::load(scales + kPanel);
      }
      for (int64_t i = 0; i < 16; i++) {
        fw even[V], odd[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
          const Bytes q = load_bytes(at(v) + kPanel * 8 + i * kPanel + v % kVectors * fw::W);
          even[v] = d[v] * low_nibbles(q) + m[v];
          odd[v] = d[v] * high_nibbles(q) + m[v];
        }
        f(block * 32 + 2 * i, even);
        f(block * 32 + 2 * i + 1, odd);
      }
    }
  }
};
