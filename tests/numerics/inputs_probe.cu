// Test kernel: element i of each kind of kernels/inputs.h, one thread an element.
#include "inputs.h"

extern "C" __global__ void inputs_probe(unsigned long long seed, unsigned long long stream,
                                        unsigned long long start, int n, float low, float high, float scale,
                                        unsigned int* words, float* uniform, float* normalish) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  words[i] = crucible_inputs::bits(seed, stream, start + i);
  uniform[i] = crucible_inputs::uniform(seed, stream, start + i, low, high);
  normalish[i] = crucible_inputs::normalish(seed, stream, start + i, scale);
}
