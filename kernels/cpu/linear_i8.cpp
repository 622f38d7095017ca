// Linear layer in int8 (contract section 6): 8-bit weights, 16-bit fixed-point activations.
//
// T = sum q*qw is an integer, so the tile, the order and the split are free. Here the two digits of
// an activation stay together as one int16: int16 x int16 pairs add to int32, at most kBlock = 512
// products a partial sum (512 * 32512 * 127 < 2^31), and the partial sums add exactly in f64
// (|T| < 2^53), whose conversion to f32 is the contract's single rounding of T.
// Packed weights: [ceil(N/16)][ceil(K/2)][16][2], zero-padded (integers may be).
#include <algorithm>

#include "cpu/pool.h"
#include "cpu/vec.h"

namespace {

constexpr int64_t kPanel = 16, kBlock = 512;

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }
int64_t pairs_of(int64_t k) { return (k + 1) / 2; }

// Sixteen int32 sums of one panel.
#if defined(CRUCIBLE_AVX512)
struct Sums {
  __m512i v;
};
using Weights = __m512i;
inline void clear(Sums& s) { s.v = _mm512_setzero_si512(); }
inline Weights load_pair(const int8_t* w) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
}
inline void add_pair(Sums& s, Weights w, const int16_t* q) {
  int32_t pair;
  std::memcpy(&pair, q, 4);
  s.v = _mm512_add_epi32(s.v, _mm512_madd_epi16(w, _mm512_set1_epi32(pair)));
}
inline void add_to(const Sums& s, double* t) {
  for (int h = 0; h < 2; h++) {
    const __m256i half = h ? _mm512_extracti64x4_epi64(s.v, 1) : _mm512_castsi512_si256(s.v);
    _mm512_storeu_pd(t + 8 * h, _mm512_add_pd(_mm512_loadu_pd(t + 8 * h), _mm512_cvtepi32_pd(half)));
  }
}
constexpr int kTileRows = 12;
#elif defined(CRUCIBLE_AVX2)
struct Sums {
  __m256i lo, hi;
};
struct Weights {
  __m256i lo, hi;
};
inline void clear(Sums& s) { s.lo = s.hi = _mm256_setzero_si256(); }
inline Weights load_pair(const int8_t* w) {
  const __m128i* p = reinterpret_cast<const __m128i*>(w);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1))};
}
inline void add_pair(Sums& s, const Weights& w, const int16_t* q) {
  int32_t pair;
  std::memcpy(&pair, q, 4);
  const __m256i x = _mm256_set1_epi32(pair);
  s.lo = _mm256_add_epi32(s.lo, _mm256_madd_epi16(w.lo, x));
  s.hi = _mm256_add_epi32(s.hi, _mm256_madd_epi16(w.hi, x));
}
inline void add_to(const Sums& s, double* t) {
  const __m128i part[4] = {_mm256_castsi256_si128(s.lo), _mm256_extracti128_si256(s.lo, 1),
                           _mm256_castsi256_si128(s.hi), _mm256_extracti128_si256(s.hi, 1)};
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_pd(t + 4 * i, _mm256_add_pd(_mm256_loadu_pd(t + 4 * i), _mm256_cvtepi32_pd(part[i])));
  }
}
constexpr int kTileRows = 4;  // more rows would spill: each product needs a register of its own
#else
struct Sums {
  int32_t v[16];
};
using Weights = const int8_t*;
inline void clear(Sums& s) { std::memset(&s, 0, sizeof s); }
inline Weights load_pair(const int8_t* w) { return w; }
inline void add_pair(Sums& s, Weights w, const int16_t* q) {
  for (int i = 0; i < 16; i++) s.v[i] += w[2 * i] * q[0] + w[2 * i + 1] * q[1];
}
inline void add_to(const Sums& s, double* t) {
  for (int i = 0; i < 16; i++) t[i] += s.v[i];
}
constexpr int kTileRows = 4;
#endif

// Exact T of Rows rows and Panels panels into t[Rows][Panels * 16]. The last pair of an odd K is (q, 0),
// so that nothing past a row's end is read.
template <int Rows, int Panels>
void exact_sums(const int16_t* q, const int8_t* w, int64_t K, double* t) {
  const int64_t pairs = K / 2, stride = pairs_of(K) * kPanel * 2;
  std::fill(t, t + Rows * Panels * kPanel, 0.0);
  for (int64_t k0 = 0; k0 < pairs; k0 += kBlock / 2) {
    const int64_t k1 = std::min(pairs, k0 + kBlock / 2);
    Sums s[Rows][Panels];
    for (auto& row : s) {
      for (auto& panel : row) clear(panel);
    }
    for (int64_t k = k0; k < k1; k++) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; p++) {
        const Weights b = load_pair(w + p * stride + k * kPanel * 2);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) add_pair(s[r][p], b, q + r * K + 2 * k);
      }
    }
    for (int r = 0; r < Rows; r++) {
      for (int p = 0; p < Panels; p++) add_to(s[r][p], t + (r * Panels + p) * kPanel);
    }
  }
  if (K % 2) {
    for (int r = 0; r < Rows; r++) {
      const int16_t pair[2] = {q[r * K + K - 1], 0};
      for (int p = 0; p < Panels; p++) {
        Sums s;
        clear(s);
        add_pair(s, load_pair(w + p * stride + pairs * kPanel * 2), pair);
        add_to(s, t + (r * Panels + p) * kPanel);
      }
    }
  }
}

struct Epilogue {
  const float *A, *s, *bias;
  float* y;
  int64_t N;

  void operator()(int64_t row, int64_t column, int64_t n, const double* t) const {
    const float a = A[row] / 32512.0f;
    float* out = y + row * N + column;
    for (int64_t i = 0; i < n; i++) {
      float v = static_cast<float>(t[i]) * (a * s[column + i]);
      if (bias != nullptr) v = v + bias[column + i];
      out[i] = v;
    }
  }
};

struct KeepSums {
  int64_t* T;
  int64_t N;

  void operator()(int64_t row, int64_t column, int64_t n, const double* t) const {
    for (int64_t i = 0; i < n; i++) T[row * N + column + i] = static_cast<int64_t>(t[i]);
  }
};

template <int Rows, int Panels, class Finish>
void tile(const int16_t* q, const int8_t* w, int64_t row, int64_t panel, int64_t N, int64_t K,
          const Finish& finish) {
  alignas(64) double t[Rows * Panels * kPanel];
  exact_sums<Rows, Panels>(q + row * K, w, K, t);
  for (int r = 0; r < Rows; r++) {
    const int64_t column = panel * kPanel, n = std::min<int64_t>(Panels * kPanel, N - column);
    finish(row + r, column, n, t + r * Panels * kPanel);
  }
}

template <int Rows, class Finish>
void tail_rows(int64_t rows, const int16_t* q, const int8_t* w, int64_t row, int64_t panel, int64_t N,
               int64_t K, const Finish& finish) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return tile<Rows, 1>(q, w, row, panel, N, K, finish);
    tail_rows<Rows - 1>(rows, q, w, row, panel, N, K, finish);
  }
}

template <class Finish>
void multiply(const int16_t* q, const int8_t* packed, int64_t T, int64_t N, int64_t K, const Finish& finish) {
  const int64_t panels = panels_of(N), stride = pairs_of(K) * kPanel * 2;
  if (T == 1) {
    constexpr int64_t kTogether = 4;
    parallel_for((panels + kTogether - 1) / kTogether,
                 [&](int64_t g) {
                   int64_t p = g * kTogether;
                   if (panels - p >= kTogether) {
                     return tile<1, kTogether>(q, packed + p * stride, 0, p, N, K, finish);
                   }
                   for (; p < panels; p++) tile<1, 1>(q, packed + p * stride, 0, p, N, K, finish);
                 },
                 N * K < 1 << 15);
    return;
  }
  constexpr int64_t kRowChunk = 16 * kTileRows;
  for (int64_t first = 0; first < T; first += kRowChunk) {
    const int64_t end = std::min(T, first + kRowChunk);
    parallel_for(panels, [&](int64_t p) {
      const int8_t* w = packed + p * stride;
      int64_t r = first;
      for (; r + kTileRows <= end; r += kTileRows) tile<kTileRows, 1>(q, w, r, p, N, K, finish);
      tail_rows<kTileRows - 1>(end - r, q, w, r, p, N, K, finish);
    });
  }
}

}  // namespace

CRUCIBLE_API void crucible_quantize_weight(const float* w, int8_t* q, float* s, int64_t N, int64_t K) {
  parallel_for(N, [&](int64_t n) {
    const float* row = w + n * K;
    float largest = 0.0f;
    bool finite = true;
    for (int64_t k = 0; k < K; k++) {
      largest = std::max(largest, std::fabs(row[k]));
      finite &= std::isfinite(row[k]);
    }
    if (!finite) {  // the caller refuses such a weight
      s[n] = float_of(0x7FC00000u);
      std::memset(q + n * K, 0, K);
      return;
    }
    float scale = largest / 127.0f;
    if (scale < 0x1p-126f) scale = 0.0f;
    s[n] = scale;
    for (int64_t k = 0; k < K; k++) {
      q[n * K + k] = scale == 0.0f ? 0 : static_cast<int8_t>(std::nearbyint(row[k] / scale));
    }
  });
}

// Bytes of the packed form of q[N][K].
CRUCIBLE_API int64_t crucible_packed_i8_size(int64_t N, int64_t K) {
  return panels_of(N) * kPanel * pairs_of(K) * 2;
}

CRUCIBLE_API void crucible_pack_i8(const int8_t* q, int8_t* packed, int64_t N, int64_t K) {
  const int64_t pairs = pairs_of(K);
  parallel_for(panels_of(N), [&](int64_t p) {
    for (int64_t k = 0; k < 2 * pairs; k++) {
      for (int64_t i = 0; i < kPanel; i++) {
        const int64_t n = p * kPanel + i;
        packed[((p * pairs + k / 2) * kPanel + i) * 2 + k % 2] = n < N && k < K ? q[n * K + k] : 0;
      }
    }
  });
}

// x[T][K] -> q[T][K] int16 and A[T] = max |x| of the row (0 where it is below 2^-100).
CRUCIBLE_API void crucible_quantize_rows(const float* x, int16_t* q, float* A, int64_t T, int64_t K) {
  parallel_for(
      T,
      [&](int64_t t) {
        const float* row = x + t * K;
        f8 m = f8::zero(), zero = f8::zero();  // `zero` becomes NaN with the first value that is not finite
        int64_t k = 0;
        for (; k + 8 <= K; k += 8) {
          const f8 v = f8::load(row + k);
          m = max(m, abs(v));
          zero = fma(v, f8::zero(), zero);
        }
        float part[8], sign[8], largest = 0.0f;
        m.store(part);
        zero.store(sign);
        bool finite = true;
        for (int i = 0; i < 8; i++) {
          largest = std::max(largest, part[i]);
          finite &= sign[i] == 0.0f;
        }
        for (; k < K; k++) {
          largest = std::max(largest, std::fabs(row[k]));
          finite &= std::isfinite(row[k]);
        }
        if (!finite) {  // outside the contract: the row's outputs become NaN, which nothing takes for a
                        // number
          A[t] = float_of(0x7FC00000u);
          std::memset(q + t * K, 0, K * sizeof *q);
          return;
        }
        if (largest < 0x1p-100f) largest = 0.0f;
        A[t] = largest;
        const float c = largest == 0.0f ? 0.0f : 32512.0f / largest;
        for (k = 0; k < K; k++) q[t * K + k] = static_cast<int16_t>(std::nearbyint(row[k] * c));
      },
      T * K < 1 << 14);
}

// q[T][K], A[T], packed weights with scales s[N], bias[N] or null -> y[T][N].
CRUCIBLE_API void crucible_linear_i8(const int16_t* q, const float* A, const int8_t* packed, const float* s,
                                     const float* bias, float* y, int64_t T, int64_t N, int64_t K) {
  multiply(q, packed, T, N, K, Epilogue{A, s, bias, y, N});
}

// The integers T[T][N] alone, for conformance.
CRUCIBLE_API void crucible_linear_i8_sums(const int16_t* q, const int8_t* packed, int64_t* sums, int64_t T,
                                          int64_t N, int64_t K) {
  multiply(q, packed, T, N, K, KeepSums{sums, N});
}
