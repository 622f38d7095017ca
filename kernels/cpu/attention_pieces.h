// Attention of one row and head in blocks of keys (contract sections 3 and 4): scores, softmax, values.
#pragma once

#include <algorithm>

#include "cpu/scalar.h"

constexpr int64_t kKeys = 64;  // keys of a block

// Lanes 0..7 of tree32 after steps 16 and 8; the last three steps join eight keys at once. A query of 64
// numbers stays in registers over all keys.
struct Query64 {
  f8 v[8];

  explicit Query64(const float* q) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = f8::load(q + 8 * i);
  }
  f8 partial_score(const float* k) const {
    f8 c[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) c[i] = fma(v[4 + i], f8::load(k + 32 + 8 * i), v[i] * f8::load(k + 8 * i));
    return (c[0] + c[2]) + (c[1] + c[3]);
  }
};

template <int kD>
inline f8 partial_score(const float* q, const float* k, int64_t D) {
  f8 c[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) c[i] = f8::load(q + 8 * i) * f8::load(k + 8 * i);
#pragma GCC unroll 8
  for (int64_t d = 32; d < (kD ? kD : D); d += 32) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) c[i] = fma(f8::load(q + d + 8 * i), f8::load(k + d + 8 * i), c[i]);
  }
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// Scores of keys [0, n) of one block, n <= kKeys; s has room for a multiple of eight.
template <int kD>
void block_scores(const float* q, const float* const* k, int64_t n, int64_t D, float scale, float* s) {
  const f8 factor = f8::set(scale);
  f8 part[kKeys];
  // a missing key repeats the last one, so that no unowned slot is read; its score is not used
  const int64_t padded = (n + 7) / 8 * 8;
  if constexpr (kD == 64) {
    const Query64 query(q);
    for (int64_t j = 0; j < padded; j++) part[j] = query.partial_score(k[std::min(j, n - 1)]);
  } else {
    for (int64_t j = 0; j < padded; j++) part[j] = partial_score<kD>(q, k[std::min(j, n - 1)], D);
  }
  for (int64_t j = 0; j < n; j += 8) (finish_trees(part + j) * factor).store(s + j);
}

// s[0..L) scores -> exponentials; returns 1/Z.
inline float softmax(float* s, int64_t L) {
  float m = s[0];
  int64_t j = 0;
  if (L >= 8) {
    f8 best = f8::load(s);
    for (j = 8; j + 8 <= L; j += 8) best = max(best, f8::load(s + j));
    float part[8];
    best.store(part);
    for (float v : part) m = std::max(m, v);
  }
  for (; j < L; j++) m = std::max(m, s[j]);
  const f8 top = f8::set(m);
  if (L <= 256) {  // each lane of sum256 is one key: +0 + e is e
    alignas(32) float lanes[256 + 8];
    for (j = 0; j < L; j += 8) exp_nonpositive(f8::load(s + j) - top).store(lanes + j);
    std::memcpy(s, lanes, L * sizeof *s);
    for (j = L; j % 32; j++) lanes[j] = 0.0f;
    return 1.0f / finish_sum256(lanes, L);
  }
  float lanes[256] = {};
  for (j = 0; j + 8 <= L; j += 8) {
    const f8 e = exp_nonpositive(f8::load(s + j) - top);
    e.store(s + j);
    (f8::load(lanes + j % 256) + e).store(lanes + j % 256);
  }
  for (; j < L; j++) {
    s[j] = exp_nonpositive(s[j] - m);
    lanes[j % 256] = lanes[j % 256] + s[j];
  }
  return 1.0f / finish_sum256(lanes);
}

// acc[h][d] = fma(e[h][j], v_j[d], acc[h][d]) for the n keys of a block; Heads * Vectors sums and the vectors
// of a row fit the registers.
template <int Heads, int Vectors>
void block_values(const float* const* e, const float* const* v, int64_t n, int64_t D, float* acc) {
  for (int64_t d = 0; d < D; d += 8 * Vectors) {
    f8 sum[Heads][Vectors];
    for (int h = 0; h < Heads; h++) {
      for (int i = 0; i < Vectors; i++) sum[h][i] = f8::load(acc + h * D + d + 8 * i);
    }
    for (int64_t j = 0; j < n; j++) {
      f8 weight[Heads];
#pragma GCC unroll 2
      for (int h = 0; h < Heads; h++) weight[h] = f8::set(e[h][j]);
#pragma GCC unroll 8
      for (int i = 0; i < Vectors; i++) {
        const f8 value = f8::load(v[j] + d + 8 * i);
#pragma GCC unroll 2
        for (int h = 0; h < Heads; h++) sum[h][i] = fma(weight[h], value, sum[h][i]);
      }
    }
    for (int h = 0; h < Heads; h++) {
      for (int i = 0; i < Vectors; i++) sum[h][i].store(acc + h * D + d + 8 * i);
    }
  }
}

// The same for `heads` rows of scores, `capacity` apart: two at a time, and a last one by itself.
inline void add_values(const float* scores, int64_t capacity, int64_t heads, const float* const* v, int64_t n,
                       int64_t D, float* acc) {
  for (int64_t h = 0; h < heads; h += 2) {
    const float* e[2] = {scores + h * capacity, scores + (h + 1) * capacity};
    float* sum = acc + h * D;
    if (heads - h > 1) {
      block_values<2, 4>(e, v, n, D, sum);
    } else if (D % 64 == 0) {
      block_values<1, 8>(e, v, n, D, sum);
    } else {
      block_values<1, 4>(e, v, n, D, sum);
    }
  }
}
