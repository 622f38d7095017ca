// Elementwise operations: residual z = x + y; exp (x <= 0) and sigmoid by themselves, for conformance.
//
// x, y, z [n]; z may be x or y. Grid-stride, block 256. Contract sections: 2, 7. Verdict: the only variants;
// in a forward pass the residual is part of the linear layer's epilogue.
#include "contract.cuh"

template <class F>
__device__ __forceinline__ void each(long long n, const F& f) {
  const long long step = 256ll * gridDim.x;
  for (long long i = 256ll * blockIdx.x + threadIdx.x; i < n; i += step) f(i);
}

extern "C" __global__ void __launch_bounds__(256)
    residual(const float* x, const float* y, float* z, long long n) {
  each(n, [=](long long i) { z[i] = __fadd_rn(x[i], y[i]); });
}

// sigmoid(x), or exp(x) for x <= 0.
extern "C" __global__ void __launch_bounds__(256)
    unary(const float* x, float* y, long long n, int is_sigmoid) {
  each(n, [=](long long i) { y[i] = is_sigmoid ? contract_sigmoid(x[i]) : contract_exp(x[i]); });
}
