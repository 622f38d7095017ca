// CUDA's built-in vector types, with their alignment, and make_<type>.
#pragma once

#define SIMT_VECTORS(name, scalar)                                                                  \
  struct name##1 { scalar x; };                                                                     \
  struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                                      \
  struct name##3 { scalar x, y, z; };                                                               \
  struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) name##4 { scalar x, y, z, w; }; \
  static inline name##1 make_##name##1(scalar x) { return {x}; }                                    \
  static inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                       \
  static inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }          \
  static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

SIMT_VECTORS(char, signed char)
SIMT_VECTORS(uchar, unsigned char)
SIMT_VECTORS(short, short)
SIMT_VECTORS(ushort, unsigned short)
SIMT_VECTORS(int, int)
SIMT_VECTORS(uint, unsigned)
SIMT_VECTORS(longlong, long long)
SIMT_VECTORS(ulonglong, unsigned long long)
SIMT_VECTORS(float, float)
SIMT_VECTORS(double, double)
#undef SIMT_VECTORS
