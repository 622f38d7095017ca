// Elementwise operations: residual z = x + y; exp (x <= 0) and sigmoid by themselves, for conformance.
//
// x, y, z [n]; z may be x or y. Grid-stride, block 256. Contract sections: 2, 7. Verdict: the only variants;
// in a forward pass the residual is part of the linear layer's epilogue.
#include "contract.cuh"

typedef unsigned long long u64;

template <class F>
__device__ __forceinline__ void each(long long n, const F& f) {
  const long long step = 256ll * gridDim.x;
  for (long long i = 256ll * blockIdx.x + threadIdx.x; i < n; i += step) f(i);
}

extern "C" __global__ void __launch_bounds__(256)
    residual(const float* x, const float* y, float* z, long long n) {
  const u64 addresses = reinterpret_cast<u64>(x) | reinterpret_cast<u64>(y) | reinterpret_cast<u64>(z);
  const long long fours = addresses % 16 == 0 ? n / 4 : 0;  // the rest goes one by one
  each(fours, [=](long long i) {
    const float4 a = reinterpret_cast<const float4*>(x)[i], b = reinterpret_cast<const float4*>(y)[i];
    reinterpret_cast<float4*>(z)[i] =
        make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
  });
  each(n - 4 * fours, [=](long long i) { z[4 * fours + i] = __fadd_rn(x[4 * fours + i], y[4 * fours + i]); });
}

// sigmoid(x), or exp(x) for x <= 0.
extern "C" __global__ void __launch_bounds__(256)
    unary(const float* x, float* y, long long n, int is_sigmoid) {
  each(n, [=](long long i) { y[i] = is_sigmoid ? contract_sigmoid(x[i]) : contract_exp(x[i]); });
}
