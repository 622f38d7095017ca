// SwiGLU and the quantisation of its rows in one step: h = (g*sigmoid(g))*u, then as quantize_rows.cu.
//
// gate_up [T][2K]: gate, then up; rows, top: as in quantize_rows.cu. Grid (8*ceil(T/8)), block 128.
// Contract sections: 2, 6, 7. Verdict: the only variant; saves writing and reading h and a launch.
#include "quantize_rows.cuh"

__device__ __forceinline__ float gated(float g, float u) {
  return __fmul_rn(__fmul_rn(g, contract_sigmoid(g)), u);
}

extern "C" __global__ void __launch_bounds__(128)
    quantize_swiglu(const float* __restrict__ gate_up, signed char* __restrict__ rows,
                    float* __restrict__ top, int T, int K, int whole) {
  const int t = blockIdx.x;
  const float* gate = gate_up + static_cast<long long>(t) * 2 * K;
  quantize_row(rows, top, t, T, K, [=](int k) {
    const float4 g = load_quad(gate, k, K, whole), u = load_quad(gate + K, k, K, whole);
    return make_float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
  });
}
