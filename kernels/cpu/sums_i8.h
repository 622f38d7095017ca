// Exact sums of the int8 linear layer: int8 weights in panels of 16 outputs times int16 rows.
//
// A product is at most 127 * 32512 = 4129024 in size, so an int32 holds every sum of up to kBlock = 512
// of them, whatever their order: 512 * 4129024 < 2^31. Sums of blocks add in f64, which is exact while
// they are below 2^53, for any K below 2^31.
// Packed weights: [ceil(N/16)][ceil(K/2)][16][2] int8, zero-padded (integers may be).
#pragma once

#include <algorithm>

#include "cpu/vec.h"

constexpr int64_t kPanel = 16, kBlock = 512;

inline int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }
inline int64_t pairs_of(int64_t k) { return (k + 1) / 2; }
inline int64_t panel_bytes(int64_t k) { return pairs_of(k) * kPanel * 2; }

// Sums: kLanes adjacent outputs of one row. Weights: two inputs each of as many outputs, as int16.
// kTileRows rows and a panel fill the registers.
#if defined(CRUCIBLE_AVX512)
using Sums = __m512i;
using Weights = __m512i;
constexpr int kLanes = 16, kTileRows = 12;
inline Sums no_sums() { return _mm512_setzero_si512(); }
inline Weights widen(const int8_t* w) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
}
inline Sums add_products(Sums s, Weights w, const int16_t* q) {
  int32_t pair;
  std::memcpy(&pair, q, 4);
  return _mm512_add_epi32(s, _mm512_madd_epi16(w, _mm512_set1_epi32(pair)));
}
inline void add_to(Sums s, double* t) {
  for (int h = 0; h < 2; h++) {
    const __m256i half = h ? _mm512_extracti64x4_epi64(s, 1) : _mm512_castsi512_si256(s);
    _mm512_storeu_pd(t + 8 * h, _mm512_add_pd(_mm512_loadu_pd(t + 8 * h), _mm512_cvtepi32_pd(half)));
  }
}
#elif defined(CRUCIBLE_AVX2)
using Sums = __m256i;
using Weights = __m256i;
constexpr int kLanes = 8, kTileRows = 6;
inline Sums no_sums() { return _mm256_setzero_si256(); }
inline Weights widen(const int8_t* w) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
}
inline Sums add_products(Sums s, Weights w, const int16_t* q) {
  int32_t pair;
  std::memcpy(&pair, q, 4);
  s = _mm256_add_epi32(s, _mm256_madd_epi16(w, _mm256_set1_epi32(pair)));
  // Ends the product's life here: g++ otherwise begins several products first and spills the sums.
  asm("" : "+x"(s));
  return s;
}
inline void add_to(Sums s, double* t) {
  for (int h = 0; h < 2; h++) {
    const __m128i half = h ? _mm256_extracti128_si256(s, 1) : _mm256_castsi256_si128(s);
    _mm256_storeu_pd(t + 4 * h, _mm256_add_pd(_mm256_loadu_pd(t + 4 * h), _mm256_cvtepi32_pd(half)));
  }
}
#else
struct Sums {
  int32_t v[16];
};
struct Weights {
  int16_t v[32];
};
constexpr int kLanes = 16, kTileRows = 4;
inline Sums no_sums() { return {}; }
inline Weights widen(const int8_t* w) {
  Weights wide;
  for (int i = 0; i < 32; i++) wide.v[i] = w[i];
  return wide;
}
inline Sums add_products(Sums s, const Weights& w, const int16_t* q) {
  for (int i = 0; i < 16; i++) s.v[i] += w.v[2 * i] * q[0] + w.v[2 * i + 1] * q[1];
  return s;
}
inline void add_to(const Sums& s, double* t) {
  for (int i = 0; i < 16; i++) t[i] += s.v[i];
}
#endif
constexpr int kVectors = kPanel / kLanes;  // vectors in a panel

// Weights of the input pair k, for vector v of panels that lie `stride` bytes apart.
inline Weights weights_of(const int8_t* w, int64_t stride, int64_t k, int v) {
  return widen(w + v / kVectors * stride + (k * kPanel + v % kVectors * kLanes) * 2);
}

// Bytes to fetch into the cache while the tiles of one panel run: `step` of them for each pair of inputs.
struct Ahead {
  const int8_t* at;
  int64_t step;
};

// t[Rows][Panels * 16] += the sums of `pairs` <= kBlock / 2 pairs of inputs; rows of q are K apart.
template <int Rows, int Panels>
void add_block(const int16_t* q, int64_t K, const int8_t* w, int64_t stride, int64_t pairs, double* t,
               Ahead ahead) {
  constexpr int V = Panels * kVectors;
  Sums s[Rows][V];
  for (auto& row : s) {
    for (auto& sums : row) sums = no_sums();
  }
  for (int64_t k = 0; k < pairs; k++) {
    if (Panels == 1) __builtin_prefetch(ahead.at + k * ahead.step);
    Weights b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) b[v] = weights_of(w, stride, k, v);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) s[r][v] = add_products(s[r][v], b[v], q + r * K + 2 * k);
    }
  }
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < V; v++) add_to(s[r][v], t + r * Panels * kPanel + v * kLanes);
  }
}

// The last input of an odd K is the pair (q, 0), so that nothing past a row's end is read.
template <int Panels>
void add_last(const int16_t* q, int64_t K, const int8_t* w, int64_t stride, double* t) {
  const int16_t pair[2] = {q[K - 1], 0};
  for (int v = 0; v < Panels * kVectors; v++) {
    add_to(add_products(no_sums(), weights_of(w, stride, K / 2, v), pair), t + v * kLanes);
  }
}
