// SwiGLU and the quantisation of its rows in one step: h = (g*sigmoid(g))*u, then as quantize_rows.cu.
//
// gate_up [T][2K]: gate, then up; rows, top, grid, block, shared memory: as in quantize_rows.cu.
// Contract sections: 2, 6, 7. Verdict: the only variant; saves writing and reading h and a launch.
#include "quantize_rows.cuh"

extern "C" __global__ void __launch_bounds__(kMostThreads)
    quantize_swiglu(const float* __restrict__ gate_up, signed char* __restrict__ rows,
                    float* __restrict__ top, int T, int K) {
  extern __shared__ uint4 digits[];
  const long long t = blockIdx.x * (blockDim.x / kRowThreads) + threadIdx.x / kRowThreads;
  const float* gate = gate_up + t * 2 * K;
  quantize_block(rows, top, T, K, digits,
                 [=](int, int k) { return gated(load_quad(gate, k, K), load_quad(gate + K, k, K)); });
}
