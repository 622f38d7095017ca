// Each block of a cluster gives its number to the next one and sums what all threads of the cluster wrote to
// global memory. out [blocks][2 * threads], between int32 [blocks * threads]. Block: 64 threads.
#include "contract.cuh"
#include "ptx.cuh"

extern "C" __global__ void BLOCKS_OF_CLUSTER(4) __launch_bounds__(64)
    cluster_probe(int* between, float* __restrict__ out) {
  extern __shared__ float4 memory[];
  constexpr int kFloats = 64;
  float* own = own_shared<4>(memory, kFloats);
  const int t = threadIdx.x, rank = cluster_rank(), first = cluster_number() * 4;
  cluster_arrive();
  cluster_wait();
  store_in_block(shared_floats(own + t), (rank + 1) % 4, kFloats,
                 static_cast<float>((first + rank) * 64 + t));
  between[(first + rank) * 64 + t] = rank + 1;
  cluster_arrive();
  cluster_wait();
  int sum = 0;
  for (int i = 0; i < 4; i++) sum += between[(first + i) * 64 + (t + 1) % 64];
  out[((first + rank) * 2) * 64 + t] = own[63 - t];
  out[((first + rank) * 2 + 1) * 64 + t] = static_cast<float>(sum);
  meet_block<64>();
  own[t] = -1.0f;
  meet_block<64>();
  if (own[(t + 33) % 64] != -1.0f) out[0] = -1.0f;
}
