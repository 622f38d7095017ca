// Philox4x32-10 and the contract's ln by themselves, for conformance.
//
// philox: counter u32 [n][4], key u32 [n][2] -> out u32 [n][4]. ln: v f64 [n], finite and > 0 -> y f64 [n].
// Grid (n/256 rounded up), block 256. Contract section: 8. Verdict: the only variants.
#include "sampling.cuh"

extern "C" __global__ void __launch_bounds__(256)
    philox(const unsigned* __restrict__ counter, const unsigned* __restrict__ key, unsigned* __restrict__ out,
           int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const unsigned* c = counter + 4ll * i;
  const Counter r = philox4x32({{c[0], c[1], c[2], c[3]}}, key[2ll * i], key[2ll * i + 1]);
  for (int w = 0; w < 4; w++) out[4ll * i + w] = r.x[w];
}

extern "C" __global__ void __launch_bounds__(256)
    ln(const double* __restrict__ v, double* __restrict__ y, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = contract_ln(v[i]);
}
