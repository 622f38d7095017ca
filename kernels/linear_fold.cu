// Adds the partial sums of a split linear layer in block order, then bias and residual.
//
// partial: quads [blocks][T][ceil(N/4)], each in reverse, as linear_tile with SPLIT 1 leaves them; bias [N]
// or null; add [T][N] or null, may be y; y [T][N]; wide: N a multiple of four and all pointers 16-byte
// aligned. Block 256 threads, a quad each, grid-stride. Contract section: 6. Verdict: follows linear_tile
// with SPLIT 1.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(256)
    linear_fold(const float4* __restrict__ partial, const float* __restrict__ bias, const float* add,
                float* y, int T, int N, int blocks, int wide) {
  const int quads = (N + 3) / 4;
  const long long count = static_cast<long long>(T) * quads, stride = gridDim.x * 256ll;
  for (long long at = blockIdx.x * 256ll + threadIdx.x; at < count; at += stride) {
    float4 v = partial[at];
    for (int b = 1; b < blocks; b++) {
      const float4 next = partial[b * count + at];
      v = make_float4(__fadd_rn(v.x, next.x), __fadd_rn(v.y, next.y), __fadd_rn(v.z, next.z),
                      __fadd_rn(v.w, next.w));
    }
    const float sums[4] = {v.w, v.z, v.y, v.x};
    finish4(sums, bias, add, y, at / quads, at % quads * 4, N, wide);
  }
}
