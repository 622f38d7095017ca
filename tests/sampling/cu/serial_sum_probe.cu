// serial_sums by itself: e f32 [n] -> starts f64 [1025], and the ranks where the sum passes each target.
#include "serial_sum.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    serial_sum_probe(const float* e, int n, double* starts, const double* targets, int count, int* above,
                     int* reached) {
  __shared__ SerialSum sums;
  __shared__ int found;
  __shared__ double sum;
  serial_sums(sums, e, n);
  const int length = segment_length(n), segments = (n + length - 1) / length;
  for (int i = threadIdx.x; i <= kSegments; i += 1024) starts[i] = i <= segments ? sums.start[i] : 0.0;
  for (int i = 0; i < count; i++) {
    const int a = first_beyond<false>(sums, e, n, targets[i], found, sum);
    __syncthreads();
    const int b = first_beyond<true>(sums, e, n, targets[i], found, sum);
    __syncthreads();
    if (threadIdx.x == 0) {
      above[i] = a;
      reached[i] = b;
    }
  }
}
