// Arithmetic and bit intrinsics with the rounding of their CUDA namesakes (compiled without contraction).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }

template <class To, class From>
static inline To simt_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "a bit view keeps the size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
static inline int __float_as_int(float x) { return simt_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return simt_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return simt_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return simt_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return simt_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return simt_bits<double>(x); }

static inline int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __ll2float_rn(long long x) { return static_cast<float>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }

template <class T>
static inline T __ldg(const T* p) {
  return *p;
}

static inline int min(int a, int b) { return b < a ? b : a; }
static inline int max(int a, int b) { return a < b ? b : a; }
static inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
static inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
static inline long long min(long long a, long long b) { return b < a ? b : a; }
static inline long long max(long long a, long long b) { return a < b ? b : a; }
