// Log-probabilities over the whole vocabulary at temperature 1.
//
// logits [R][V]; partials [R][chunks] from sample_scan at temperature 0; e f32 [R][stride] scratch, stride a
// multiple of 4; out f64 [R][V]; status i32 [R] as in
// sample_rows, a refused row's values are NaN. Grid (R), block 1024.
// Contract sections: 2, 8 (running sum in token-id order, ln). Verdict: the only variant.
#include "serial_sum.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    logprobs(const float* __restrict__ logits, const Partial* __restrict__ partials, int chunks, float* e,
             int stride, int V, double* out, int* __restrict__ status) {
  __shared__ SerialSum sums;
  __shared__ Partial joined_row;
  const int row = blockIdx.x;
  const float* x = logits + static_cast<long long>(row) * V;
  double* y = out + static_cast<long long>(row) * V;
  join_partials(joined_row, partials + static_cast<long long>(row) * chunks, chunks);
  const int refused = status_of(joined_row.flags);
  if (threadIdx.x == 0) status[row] = refused;
  if (refused != 0) {
    for (int i = threadIdx.x; i < V; i += 1024) y[i] = __longlong_as_double(0x7ff8000000000000ll);
    return;
  }
  const float top = x[id_of(joined_row.best)];
  e += static_cast<long long>(row) * stride;
  for (int i = threadIdx.x; i < V; i += 1024) e[i] = contract_exp(__fsub_rn(x[i], top));
  __syncthreads();
  serial_sums(sums, e, V);
  const double total = contract_ln(serial_total(sums, V));
  for (int i = threadIdx.x; i < V; i += 1024)
    y[i] = __dsub_rn(static_cast<double>(__fsub_rn(x[i], top)), total);
}
