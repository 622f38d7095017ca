// The int8 linear layer on the GPU: how weights and quantized rows lie in memory, how a sum is finished.
//
// K is cut into slices of 64, padded with zeros (sums are integers). A slice is cut into cores of 8 lines by
// 16 k: 128 bytes, a line after the other, the unit of ldmatrix and of wgmma.
//   weights  [ceil(K/64)][ceil(N/8)][4][8][16]     a core holds 8 outputs
//   rows     [ceil(K/64)][ceil(T/8)][2][4][8][16]  digit 0 (hi), then digit 1 (lo) of 8 rows: q = 256*hi + lo
// So 8 rows fill one m16 operand, hi above lo, and both sums of an output end in one thread.
// Contract section: 6.
#pragma once

namespace {

constexpr int kSlice = 64, kPanel = 8, kCore = 128;
constexpr int kWeightPanel = 512;  // bytes of 8 outputs in a slice
constexpr int kRowGroup = 1024;    // bytes of 8 rows in a slice

__host__ __device__ __forceinline__ int slices_of(int K) { return (K + kSlice - 1) / kSlice; }
__host__ __device__ __forceinline__ int eights_of(int n) { return (n + 7) / 8; }

// Byte of (line, k) in a slice's cores.
__device__ __forceinline__ int core_byte(int line, int k) {
  return (k / 16 % 4) * kCore + line % 8 * 16 + k % 16;
}
__device__ __forceinline__ long long weight_byte(int n, int k, int panels) {
  return (static_cast<long long>(k / kSlice) * panels + n / 8) * kWeightPanel + core_byte(n, k);
}
// Byte of a row's hi digit; its lo digit lies kWeightPanel further.
__device__ __forceinline__ long long row_byte(int t, int k, int groups) {
  return (static_cast<long long>(k / kSlice) * groups + t / 8) * kRowGroup + core_byte(t, k);
}

// Where results go: scale [N]; bias [N] or null; add [T][N] or null, may be y; y [T][N].
struct Finish {
  const float *scale, *bias, *add;
  float* y;
  int N;
};

__device__ __forceinline__ float row_unit(float A) { return __fdiv_rn(A, 32512.0f); }

// y = f32(sum) * (unit * s), then bias and residual, each with its own rounding; unit = A/32512.
__device__ __forceinline__ float finished(const Finish& to, long long sum, float unit, long long at, int n) {
  float value = __fmul_rn(__ll2float_rn(sum), __fmul_rn(unit, to.scale[n]));
  if (to.bias) value = __fadd_rn(value, to.bias[n]);
  return to.add ? __fadd_rn(to.add[at], value) : value;
}

// Outputs n and n + 1 of row t from their digits' sums, n even. `pairs`: N is even and every array of Finish
// aligned to 8 bytes.
__device__ __forceinline__ void store_pair(const Finish& to, bool pairs, int t, int n, float unit, int hi0,
                                           int hi1, int lo0, int lo1) {
  const long long at = static_cast<long long>(t) * to.N + n, sum0 = 256ll * hi0 + lo0,
                  sum1 = 256ll * hi1 + lo1;
  if (!pairs) {
    if (n < to.N) to.y[at] = finished(to, sum0, unit, at, n);
    if (n + 1 < to.N) to.y[at + 1] = finished(to, sum1, unit, at + 1, n + 1);
    return;
  }
  if (n >= to.N) return;
  const float2 s = *reinterpret_cast<const float2*>(to.scale + n);
  float2 value = make_float2(__fmul_rn(__ll2float_rn(sum0), __fmul_rn(unit, s.x)),
                             __fmul_rn(__ll2float_rn(sum1), __fmul_rn(unit, s.y)));
  if (to.bias) {
    const float2 b = *reinterpret_cast<const float2*>(to.bias + n);
    value = make_float2(__fadd_rn(value.x, b.x), __fadd_rn(value.y, b.y));
  }
  if (to.add) {
    const float2 a = *reinterpret_cast<const float2*>(to.add + at);
    value = make_float2(__fadd_rn(a.x, value.x), __fadd_rn(a.y, value.y));
  }
  *reinterpret_cast<float2*>(to.y + at) = value;
}

}  // namespace
