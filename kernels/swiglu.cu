// SwiGLU: y = (g*sigmoid(g))*u, elementwise.
//
// gate, up: rows of N floats, `stride` floats apart (the two halves of one [T][2N] buffer, or two buffers);
// y [T][N], may be gate or up where those are contiguous. Grid (chunks of 256*kVector columns, rows up to
// 65535, striding), block 256. VECTOR 4 needs N and stride to be multiples of 4 and aligned buffers.
// Contract sections: 2 (sigmoid), 7. Verdict: the only variant; scalar for few elements, so that more
// blocks share the latency, four a thread for many.
#include "contract.cuh"

#ifndef VECTOR
#define VECTOR 1
#endif

__device__ __forceinline__ float gated(float g, float u) {
  return __fmul_rn(__fmul_rn(g, contract_sigmoid(g)), u);
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu(const float* gate, const float* up, float* y, int T, int N, long long stride) {
  const int column = (blockIdx.x * 256 + threadIdx.x) * VECTOR;
  if (column >= N) return;
  for (int row = blockIdx.y; row < T; row += gridDim.y) {
    const long long from = row * stride + column, to = static_cast<long long>(row) * N + column;
#if VECTOR == 4
    const float4 g = *reinterpret_cast<const float4*>(gate + from);
    const float4 u = *reinterpret_cast<const float4*>(up + from);
    const float4 h = make_float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
    *reinterpret_cast<float4*>(y + to) = h;
#else
    y[to] = gated(gate[from], up[from]);
#endif
  }
}
