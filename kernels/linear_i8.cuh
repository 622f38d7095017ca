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

// y = f32(sum) * (unit * s), then bias and residual, each with its own rounding; unit = A/32512.
__device__ __forceinline__ float row_unit(float A) { return __fdiv_rn(A, 32512.0f); }
__device__ __forceinline__ float scaled(long long sum, float unit, float s) {
  return __fmul_rn(__ll2float_rn(sum), __fmul_rn(unit, s));
}

}  // namespace
