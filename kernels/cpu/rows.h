// What happens to one row on its way through a block (contract sections 6 and 7), for kernels that do one
// of these steps and for those that do several.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/scalar.h"

// y = (x*r)*w with r = 1/sqrt(sumsq256(x)/N + eps); y may be x.
inline void rmsnorm_row(const float* x, const float* w, float* y, int64_t N, float eps) {
  const float mean = reduce256<true>(x, N) / static_cast<float>(N), r = 1.0f / std::sqrt(mean + eps);
  const f8 scale = f8::set(r);
  int64_t i = 0;
  for (; i + 8 <= N; i += 8) ((f8::load(x + i) * scale) * f8::load(w + i)).store(y + i);
  for (; i < N; i++) y[i] = (x[i] * r) * w[i];
}

// y = (gate*sigmoid(gate))*up.
inline void swiglu_row(const float* gate, const float* up, float* y, int64_t N) {
  int64_t i = 0;
  for (; i + 8 <= N; i += 8) {
    const f8 g = f8::load(gate + i);
    ((g * sigmoid(g)) * f8::load(up + i)).store(y + i);
  }
  if (i < N) {
    const f8 g = load_part(gate + i, N - i);
    store_part((g * sigmoid(g)) * load_part(up + i, N - i), y + i, N - i);
  }
}

// RoPE of one head by the table row c, s [D/2]; y may be x.
inline void rope_head(const float* x, const float* c, const float* s, float* y, int64_t D) {
  const int64_t half = D / 2;
  int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const f8 a = f8::load(x + i), b = f8::load(x + i + half);
    const f8 ci = f8::load(c + i), si = f8::load(s + i);
    fma(neg(b), si, a * ci).store(y + i);
    fma(a, si, b * ci).store(y + i + half);
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[i + half];
    y[i] = std::fma(-b, s[i], a * c[i]);
    y[i + half] = std::fma(a, s[i], b * c[i]);
  }
}

// Eight products to integers by rint, the rounding mode being to nearest even.
#if defined(CRUCIBLE_AVX512) || defined(CRUCIBLE_AVX2)
inline void store_rounded(f8 a, int16_t* q) {
  const __m256i v = _mm256_cvtps_epi32(a.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q),
                   _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
#else
inline void store_rounded(f8 a, int16_t* q) {
  float v[8];
  a.store(v);
  for (int i = 0; i < 8; i++) q[i] = static_cast<int16_t>(std::nearbyint(v[i]));
}
#endif

// The row as 16-bit fixed point: q[K] and A = max |x|, 0 below 2^-100. A row that is not finite is outside
// the contract: its A is NaN, so that its outputs are, which nothing takes for a number.
inline float quantize_row(const float* x, int16_t* q, int64_t K) {
  f8 m = f8::zero(), zero = f8::zero();  // `zero` becomes NaN with the first value that is not finite
  int64_t k = 0;
  for (; k + 8 <= K; k += 8) {
    const f8 v = f8::load(x + k);
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
    largest = std::max(largest, std::fabs(x[k]));
    finite &= std::isfinite(x[k]);
  }
  if (!finite) {
    std::memset(q, 0, K * sizeof *q);
    return float_of(0x7FC00000u);
  }
  if (largest < 0x1p-100f) largest = 0.0f;
  const float c = largest == 0.0f ? 0.0f : 32512.0f / largest;
  const f8 scale = f8::set(c);
  for (k = 0; k + 8 <= K; k += 8) store_rounded(f8::load(x + k) * scale, q + k);
  for (; k < K; k++) q[k] = static_cast<int16_t>(std::nearbyint(x[k] * c));
  return largest;
}

// Room for a row that only the calling thread sees.
inline float* row_buffer(int64_t N) {
  thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < N) buffer.resize(N);
  return buffer.data();
}
