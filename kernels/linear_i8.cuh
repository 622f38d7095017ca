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

// (row tile, output tile) of a tile's number: bands of kBand row tiles, output after output in a band, so
// that the blocks which run together share rows and weights.
constexpr int kBand = 16;
__device__ __forceinline__ int2 tile_place(int tile, int row_tiles, int output_tiles) {
  const int band = tile / (kBand * output_tiles), inside = tile % (kBand * output_tiles);
  const int height = min(kBand, row_tiles - band * kBand);
  return make_int2(band * kBand + inside % height, inside / height);
}

// Where results go: add [T][N] or null, may be y; y [T][N].
struct Finish {
  const float* add;
  float* y;
  int N;
};

__device__ __forceinline__ float row_unit(float A) { return __fdiv_rn(A, 32512.0f); }

// f32(T) of both digits' sums.
__device__ __forceinline__ float joined(int hi, int lo) { return __ll2float_rn(256ll * hi + lo); }

// y = f32(T) * (unit * s), then bias (or null) and residual, each with its own rounding; unit = A/32512.
__device__ __forceinline__ float finished(const Finish& to, float sum, float unit, float s, const float* bias,
                                          long long at) {
  float value = __fmul_rn(sum, __fmul_rn(unit, s));
  if (bias) value = __fadd_rn(value, *bias);
  return to.add ? __fadd_rn(to.add[at], value) : value;
}

template <bool kShared>
__device__ __forceinline__ float2 load_pair(const float* p) {
  return kShared ? *reinterpret_cast<const float2*>(p) : __ldg(reinterpret_cast<const float2*>(p));
}

// Outputs n + 8j and n + 8j + 1 of row t for j < kCount, n even; sums(j) gives their f32(T); scale and bias
// (or null) start at n, in shared memory or not. All that is read comes first: a load after a store to y,
// which `add` may be, would wait for memory each time. `pairs`: N is even and every array aligned to 8 bytes.
template <int kCount, bool kShared = false, class Sums>
__device__ __forceinline__ void store_pairs(const Finish& to, bool pairs, int t, int n, float unit,
                                            const float* scale, const float* bias, const Sums& sums) {
  const long long at = static_cast<long long>(t) * to.N + n;
  if (!pairs) {
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      const float2 sum = sums(j);
      for (int e = 0; e < 2; e++) {
        const int i = 8 * j + e;
        if (n + i < to.N)
          to.y[at + i] = finished(to, e ? sum.y : sum.x, unit, scale[i], bias ? bias + i : nullptr, at + i);
      }
    }
    return;
  }
  float2 s[kCount], b[kCount], a[kCount];
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    const bool inside = n + 8 * j < to.N;
    s[j] = b[j] = a[j] = make_float2(0.0f, 0.0f);
    if (inside) s[j] = load_pair<kShared>(scale + 8 * j);
    if (inside && bias) b[j] = load_pair<kShared>(bias + 8 * j);
    if (inside && to.add) a[j] = *reinterpret_cast<const float2*>(to.add + at + 8 * j);
  }
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    float2 v = sums(j);
    v = make_float2(__fmul_rn(v.x, __fmul_rn(unit, s[j].x)), __fmul_rn(v.y, __fmul_rn(unit, s[j].y)));
    if (bias) v = make_float2(__fadd_rn(v.x, b[j].x), __fadd_rn(v.y, b[j].y));
    if (to.add) v = make_float2(__fadd_rn(a[j].x, v.x), __fadd_rn(a[j].y, v.y));
    if (n + 8 * j < to.N) *reinterpret_cast<float2*>(to.y + at + 8 * j) = v;
  }
}

}  // namespace
