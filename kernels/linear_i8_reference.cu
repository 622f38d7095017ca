// Linear layer in int8, one thread an output: the form that the faster kernels are held to.
//
// rows, w: the layouts of linear_i8.cuh; top [T] = A of each row; scale [N]; bias [N] or null; add [T][N] or
// null, may be y; y [T][N], or null where sums [T][N] takes the integers alone. Any T, N, K: sums are int64.
// Block 256 threads, grid-stride over the T*N outputs. Contract section: 6. Verdict: the judge, and what
// runs where K passes the int32 limit of the tensor kernels.
#include "linear_i8.cuh"

extern "C" __global__ void __launch_bounds__(256)
    linear_i8_reference(const signed char* __restrict__ rows, const float* __restrict__ top,
                        const signed char* __restrict__ w, const float* __restrict__ scale,
                        const float* __restrict__ bias, const float* add, float* y, long long* sums, int T,
                        int N, int K) {
  const int slices = slices_of(K), groups = eights_of(T), panels = eights_of(N);
  const long long outputs = static_cast<long long>(T) * N;
  for (long long at = blockIdx.x * 256ll + threadIdx.x; at < outputs; at += gridDim.x * 256ll) {
    const int n = static_cast<int>(at % N), t = static_cast<int>(at / N);
    long long sum = 0;
    for (int slice = 0; slice < slices; slice++) {
      const signed char* q = rows + row_byte(t, slice * kSlice, groups);
      const signed char* p = w + weight_byte(n, slice * kSlice, panels);
      int hi = 0, lo = 0;
      for (int core = 0; core < 4; core++)
        for (int i = 0; i < 16; i++) {
          const int weight = p[core * kCore + i];
          hi += q[core * kCore + i] * weight;
          lo += q[kWeightPanel + core * kCore + i] * weight;
        }
      sum += 256ll * hi + lo;
    }
    if (sums) {
      sums[at] = sum;
      continue;
    }
    y[at] =
        finished({add, y, N}, __ll2float_rn(sum), row_unit(top[t]), scale[n], bias ? bias + n : nullptr, at);
  }
}
