// Eight f32 lanes (f8) on every vector level, and the linear layers' widest vector (fw).
//
// Lanes are always independent outputs or the lanes that the contract itself names, so the level
// changes speed and never a bit. Levels: CRUCIBLE_AVX512, CRUCIBLE_AVX2, CRUCIBLE_NEON, else plain
// C++ whose std::fma is correctly rounded with or without hardware support.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(CRUCIBLE_AVX512) || defined(CRUCIBLE_AVX2)
#include <immintrin.h>
#elif defined(CRUCIBLE_NEON)
#include <arm_neon.h>
#endif

#define CRUCIBLE_API extern "C" __attribute__((visibility("default")))

inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

#if defined(CRUCIBLE_AVX512) || defined(CRUCIBLE_AVX2)

struct f8 {
  __m256 v;
  static f8 zero() { return {_mm256_setzero_ps()}; }
  static f8 set(float x) { return {_mm256_set1_ps(x)}; }
  static f8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline f8 operator+(f8 a, f8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline f8 operator-(f8 a, f8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline f8 operator*(f8 a, f8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline f8 operator/(f8 a, f8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline f8 fma(f8 a, f8 b, f8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline f8 max(f8 a, f8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline f8 abs(f8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline f8 neg(f8 a) { return {_mm256_xor_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// a < b ? x : y, lane by lane
inline f8 select_lt(f8 a, f8 b, f8 x, f8 y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// p with the integer in the low bits of t added to its exponent field
inline f8 add_exponent(f8 p, f8 t) {
  return {_mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p.v), _mm256_slli_epi32(_mm256_castps_si256(t.v), 23)))};
}
// r[j] = ((c0+c4)+(c2+c6)) + ((c1+c5)+(c3+c7)) of key j's eight lanes: steps 4, 2, 1 of tree32.
inline f8 finish_trees(const f8* k) {
  f8 a[4], b[2];
  for (int i = 0; i < 4; i++) {  // step 4: low half + high half; holds keys i | i+4
    a[i] = f8{_mm256_permute2f128_ps(k[i].v, k[i + 4].v, 0x20)} +
           f8{_mm256_permute2f128_ps(k[i].v, k[i + 4].v, 0x31)};
  }
  for (int i = 0; i < 2; i++) {  // step 2: lanes 0,1 + lanes 2,3; holds keys i,i+2 | i+4,i+6
    b[i] = f8{_mm256_shuffle_ps(a[i].v, a[i + 2].v, 0x44)} + f8{_mm256_shuffle_ps(a[i].v, a[i + 2].v, 0xEE)};
  }
  // step 1: keys 0,2,1,3 | 4,6,5,7
  f8 c = f8{_mm256_shuffle_ps(b[0].v, b[1].v, 0x88)} + f8{_mm256_shuffle_ps(b[0].v, b[1].v, 0xDD)};
  return {_mm256_permute_ps(c.v, 0xD8)};
}

#elif defined(CRUCIBLE_NEON)

struct f8 {
  float32x4_t lo, hi;
  static f8 zero() { return set(0.0f); }
  static f8 set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static f8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  void store(float* p) const {
    vst1q_f32(p, lo);
    vst1q_f32(p + 4, hi);
  }
};
inline f8 operator+(f8 a, f8 b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
inline f8 operator-(f8 a, f8 b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
inline f8 operator*(f8 a, f8 b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
inline f8 operator/(f8 a, f8 b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
inline f8 fma(f8 a, f8 b, f8 c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
inline f8 max(f8 a, f8 b) { return {vmaxq_f32(a.lo, b.lo), vmaxq_f32(a.hi, b.hi)}; }
inline f8 abs(f8 a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
inline f8 neg(f8 a) { return {vnegq_f32(a.lo), vnegq_f32(a.hi)}; }
inline f8 select_lt(f8 a, f8 b, f8 x, f8 y) {
  return {vbslq_f32(vcltq_f32(a.lo, b.lo), x.lo, y.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), x.hi, y.hi)};
}
inline float32x4_t add_exponent4(float32x4_t p, float32x4_t t) {
  return vreinterpretq_f32_s32(
      vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
}
inline f8 add_exponent(f8 p, f8 t) { return {add_exponent4(p.lo, t.lo), add_exponent4(p.hi, t.hi)}; }
inline float32x4_t finish_trees4(const f8* k) {
  float32x4_t a[4];
  for (int i = 0; i < 4; i++) a[i] = vaddq_f32(k[i].lo, k[i].hi);  // step 4
  float64x2_t a0 = vreinterpretq_f64_f32(a[0]), a1 = vreinterpretq_f64_f32(a[1]);
  float64x2_t a2 = vreinterpretq_f64_f32(a[2]), a3 = vreinterpretq_f64_f32(a[3]);
  float32x4_t b0 = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a0, a1)),
                             vreinterpretq_f32_f64(vzip2q_f64(a0, a1)));  // step 2: keys 0,0,1,1
  float32x4_t b1 =
      vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a2, a3)), vreinterpretq_f32_f64(vzip2q_f64(a2, a3)));
  return vaddq_f32(vuzp1q_f32(b0, b1), vuzp2q_f32(b0, b1));  // step 1
}
inline f8 finish_trees(const f8* k) { return {finish_trees4(k), finish_trees4(k + 4)}; }

#else

struct f8 {
  float v[8];
  static f8 zero() { return set(0.0f); }
  static f8 set(float x) { return {{x, x, x, x, x, x, x, x}}; }
  static f8 load(const float* p) {
    f8 r;
    std::memcpy(r.v, p, 32);
    return r;
  }
  void store(float* p) const { std::memcpy(p, v, 32); }
};
#define CRUCIBLE_LANES(expression)                   \
  f8 r;                                              \
  for (int i = 0; i < 8; i++) r.v[i] = (expression); \
  return r;
inline f8 operator+(f8 a, f8 b) { CRUCIBLE_LANES(a.v[i] + b.v[i]) }
inline f8 operator-(f8 a, f8 b) { CRUCIBLE_LANES(a.v[i] - b.v[i]) }
inline f8 operator*(f8 a, f8 b) { CRUCIBLE_LANES(a.v[i] * b.v[i]) }
inline f8 operator/(f8 a, f8 b) { CRUCIBLE_LANES(a.v[i] / b.v[i]) }
inline f8 fma(f8 a, f8 b, f8 c) { CRUCIBLE_LANES(std::fma(a.v[i], b.v[i], c.v[i])) }
inline f8 max(f8 a, f8 b) { CRUCIBLE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
inline f8 abs(f8 a) { CRUCIBLE_LANES(std::fabs(a.v[i])) }
inline f8 neg(f8 a) { CRUCIBLE_LANES(-a.v[i]) }
inline f8 select_lt(f8 a, f8 b, f8 x, f8 y) { CRUCIBLE_LANES(a.v[i] < b.v[i] ? x.v[i] : y.v[i]) }
inline f8 add_exponent(f8 p, f8 t) { CRUCIBLE_LANES(float_of(bits_of(p.v[i]) + (bits_of(t.v[i]) << 23))) }
inline f8 finish_trees(const f8* k) {
  f8 r;
  for (int j = 0; j < 8; j++) {
    const float* c = k[j].v;
    r.v[j] = ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
  }
  return r;
}
#undef CRUCIBLE_LANES

#endif

// First n < 8 lanes; the others are +0.
inline f8 load_part(const float* p, int64_t n) {
  float b[8] = {};
  std::memcpy(b, p, n * 4);
  return f8::load(b);
}
inline void store_part(f8 x, float* p, int64_t n) {
  float b[8];
  x.store(b);
  std::memcpy(p, b, n * 4);
}

// The widest vector, used where lanes are independent outputs of a linear layer.
#if defined(CRUCIBLE_AVX512)
struct fw {
  static constexpr int W = 16;
  __m512 v;
  static fw zero() { return {_mm512_setzero_ps()}; }
  static fw set(float x) { return {_mm512_set1_ps(x)}; }
  static fw load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
};
inline fw operator+(fw a, fw b) { return {_mm512_add_ps(a.v, b.v)}; }
inline fw fma(fw a, fw b, fw c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
#else
struct fw : f8 {
  static constexpr int W = 8;
  fw() = default;
  fw(f8 x) : f8(x) {}
};
#endif
