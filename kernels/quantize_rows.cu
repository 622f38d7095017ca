// Activations to 16-bit fixed point: A = max |x| of a row, q = rint(x * (32512/A)), as digits hi and lo.
//
// x [T][K]; rows: the layout of linear_i8.cuh, padding written as zeros; top [T] = A, NaN where a value of
// the row is not finite. Grid (8*ceil(T/8)/R), block 64*R: R rows, 64 threads each. Dynamic shared memory: 2
// * R * (64*ceil(K/64) + 16) bytes. WHOLE: see quantize_rows.cuh. Contract section: 6.
// Verdict: the only variant; bound by memory.
#include "quantize_rows.cuh"

extern "C" __global__ void __launch_bounds__(kMostThreads)
    quantize_rows(const float* __restrict__ x, signed char* __restrict__ rows, float* __restrict__ top, int T,
                  int K) {
  extern __shared__ uint4 digits[];
  const long long t = blockIdx.x * (blockDim.x / kRowThreads) + threadIdx.x / kRowThreads;
  const float* row = x + t * K;
  quantize_block(rows, top, T, K, digits, [=](int, int k) { return load_quad(row, k, K); });
}
