// Activations to 16-bit fixed point: A = max |x| of a row, q = rint(x * (32512/A)), as digits hi and lo.
//
// x [T][K]; rows: the layout of linear_i8.cuh, padding written as zeros; top [T] = A, NaN where a value of
// the row is not finite. Grid (8*ceil(T/8)), block 128: a block a row, a thread four neighbouring columns.
// Contract section: 6. Verdict: the only variant.
#include "quantize_rows.cuh"

extern "C" __global__ void __launch_bounds__(128)
    quantize_rows(const float* __restrict__ x, signed char* __restrict__ rows, float* __restrict__ top, int T,
                  int K, int whole) {
  const int t = blockIdx.x;
  const float* row = x + static_cast<long long>(t) * K;
  quantize_row(rows, top, t, T, K, [=](int k) { return load_quad(row, k, K, whole); });
}
