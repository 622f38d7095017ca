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

// f32(T) of both digits' sums.
__device__ __forceinline__ float joined(int hi, int lo) { return __ll2float_rn(256ll * hi + lo); }

// y = f32(T) * (unit * s), then bias and residual, each with its own rounding; unit = A/32512.
__device__ __forceinline__ float finished(const Finish& to, float sum, float unit, long long at, int n) {
  float value = __fmul_rn(sum, __fmul_rn(unit, to.scale[n]));
  if (to.bias) value = __fadd_rn(value, to.bias[n]);
  return to.add ? __fadd_rn(to.add[at], value) : value;
}

// Outputs n + 8j and n + 8j + 1 of row t for j < kCount, n even; sums(j) gives their f32(T). All that is read
// comes first: a load after a store to y, which `add` may be, would wait for memory each time. `pairs`: N is
// even and every array of Finish aligned to 8 bytes.
template <int kCount, class Sums>
__device__ __forceinline__ void store_pairs(const Finish& to, bool pairs, int t, int n, float unit,
                                            const Sums& sums) {
  const long long at = static_cast<long long>(t) * to.N + n;
  if (!pairs) {
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      const float2 d = sums(j);
      const int column = n + 8 * j;
      const long long i = at + 8 * j;
      if (column < to.N) to.y[i] = finished(to, d.x, unit, i, column);
      if (column + 1 < to.N) to.y[i + 1] = finished(to, d.y, unit, i + 1, column + 1);
    }
    return;
  }
  float2 s[kCount], b[kCount], a[kCount];
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    const bool inside = n + 8 * j < to.N;
    s[j] = b[j] = a[j] = make_float2(0.0f, 0.0f);
    if (inside) s[j] = __ldg(reinterpret_cast<const float2*>(to.scale + n + 8 * j));
    if (inside && to.bias) b[j] = __ldg(reinterpret_cast<const float2*>(to.bias + n + 8 * j));
    if (inside && to.add) a[j] = *reinterpret_cast<const float2*>(to.add + at + 8 * j);
  }
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    float2 v = sums(j);
    v = make_float2(__fmul_rn(v.x, __fmul_rn(unit, s[j].x)), __fmul_rn(v.y, __fmul_rn(unit, s[j].y)));
    if (to.bias) v = make_float2(__fadd_rn(v.x, b[j].x), __fadd_rn(v.y, b[j].y));
    if (to.add) v = make_float2(__fadd_rn(a[j].x, v.x), __fadd_rn(a[j].y, v.y));
    if (n + 8 * j < to.N) *reinterpret_cast<float2*>(to.y + at + 8 * j) = v;
  }
}

}  // namespace
