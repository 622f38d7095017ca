// RMSNorm and the quantisation of its rows in one step: y = (x*r)*w, then as quantize_rows.cu.
//
// x [T][K]; w [K]; y [T][K] or null, may be x; rows, top: as in quantize_rows.cu. Grid (8*ceil(T/8)), block
// 256: thread t holds accumulator t of sumsq256 and the columns t, t + 256, …, which stay in registers up to
// K = 2048. Dynamic shared memory: 128*ceil(K/64) bytes, where the digits of the row gather into lines.
// Contract sections: 3 (sumsq256), 6, 7. Verdict: the only variant; saves writing and reading y and a launch.
#include "norm.cuh"
#include "quantize_rows.cuh"

extern "C" __global__ void __launch_bounds__(256)
    quantize_rmsnorm(const float* x, const float* __restrict__ w, float* y, signed char* __restrict__ rows,
                     float* __restrict__ top, int T, int K, float eps) {
  extern __shared__ uint4 digits[];  // [2][4*slices] lines of 16 k
  __shared__ float sums[8];
  __shared__ unsigned warps[8];
  const int t = blockIdx.x, padded = slices_of(K) * kSlice, groups = eights_of(T);
  signed char* bytes = reinterpret_cast<signed char*>(digits);
  float A = 0.0f;
  if (t < T) {
    const float* row = x + static_cast<long long>(t) * K;
    float kept[kRowValues], weight[kRowValues];
#pragma unroll
    for (int i = 0; i < kRowValues; i++) {  // asked for before the sum, so that both latencies overlap
      const int j = threadIdx.x + 256 * i;
      weight[i] = j < K ? w[j] : 0.0f;
    }
    const float r = rms_factor256(sumsq_partial(row, K, kept), K, eps, sums);
    const auto normed = [=](int j) { return j < K ? __fmul_rn(__fmul_rn(row[j], r), w[j]) : 0.0f; };
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kRowValues; i++) {
      // A padding column is +0 whatever r is: a NaN there would be the row's, which r = NaN already means.
      kept[i] = __fmul_rn(__fmul_rn(kept[i], r), weight[i]);
      largest = max(largest, magnitude(kept[i]));
    }
    for (int j = threadIdx.x + 256 * kRowValues; j < K; j += 256)
      largest = max(largest, magnitude(normed(j)));
    A = row_top(block_max(largest, warps));
    const float factor = row_factor(A);
    const auto store = [&](int j, float value) {
      const int q = quantized(value, factor);
      bytes[j] = static_cast<signed char>(hi_digit(q));
      bytes[padded + j] = static_cast<signed char>(lo_digit(q));
      if (y && j < K) y[static_cast<long long>(t) * K + j] = value;
    };
#pragma unroll
    for (int i = 0; i < kRowValues; i++) {
      const int j = threadIdx.x + 256 * i;
      if (j < padded) store(j, kept[i]);
    }
    for (int j = threadIdx.x + 256 * kRowValues; j < padded; j += 256) store(j, normed(j));
    if (threadIdx.x == 0) top[t] = A;
    __syncthreads();
  }
  for (int line = threadIdx.x; line < padded / 8; line += 256) {
    const int k = line % (padded / 16) * 16, digit = line / (padded / 16);
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(rows + row_byte(t, k, groups) + digit * kWeightPanel) =
        t < T ? digits[line] : zeros;
  }
}
