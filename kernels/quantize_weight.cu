// Weights to int8: s = max|w|/127 of a row, q = rint(w/s); below 2^-126 both are 0.
//
// w [N][K]; q [N][K]; scale [N], NaN where a row holds a value that is not finite (the caller refuses it).
// Grid (N), block 256. Contract section: 6. Verdict: the only variant; runs once at load.
#include "quantize_rows.cuh"

extern "C" __global__ void __launch_bounds__(256)
    quantize_weight(const float* __restrict__ w, signed char* __restrict__ q, float* __restrict__ scale,
                    int K) {
  __shared__ unsigned warps[8];
  const long long start = static_cast<long long>(blockIdx.x) * K;
  unsigned largest = 0;
  for (int k = threadIdx.x; k < K; k += 256) largest = max(largest, magnitude(w[start + k]));
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < 8; i++) largest = max(largest, warps[i]);
  float s = __fdiv_rn(__uint_as_float(largest), 127.0f);
  if (s < 0x1p-126f) s = 0.0f;
  const bool finite = largest < kInfinityBits;
  if (threadIdx.x == 0) scale[blockIdx.x] = finite ? s : __uint_as_float(0x7fc00000u);
  for (int k = threadIdx.x; k < K; k += 256)
    q[start + k] =
        finite && s > 0.0f ? static_cast<signed char>(__float2int_rn(__fdiv_rn(w[start + k], s))) : 0;
}
