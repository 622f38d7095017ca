// Int8 weights from row-major to the layout of linear_i8.cuh.
//
// q [N][K]; packed: cores of 16-byte lines, zero past N and K; refused[0] becomes 1 where q holds -128, which
// is no quantized weight. Block 256 threads, one a line, grid-stride. Contract section: 6. Verdict: the only
// variant; runs once at load.
#include "linear_i8.cuh"

extern "C" __global__ void __launch_bounds__(256)
    linear_i8_pack(const signed char* __restrict__ q, uint4* __restrict__ packed, int* refused, int N,
                   int K) {
  const long long panels = eights_of(N), lines = slices_of(K) * panels * 32;
  for (long long at = blockIdx.x * 256ll + threadIdx.x; at < lines; at += gridDim.x * 256ll) {
    const long long n = at / 32 % panels * 8 + at % 8;
    const int k = static_cast<int>(at / (32 * panels)) * kSlice + static_cast<int>(at / 8 % 4) * 16;
    unsigned words[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++) {
      if (n >= N || k + i >= K) continue;
      const int value = q[n * K + k + i];
      if (value == -128) refused[0] = 1;
      words[i / 4] |= static_cast<unsigned>(value & 255) << 8 * (i % 4);
    }
    packed[at] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}
