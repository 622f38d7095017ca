// What kernels use of CUDA, one case each; out[i] is what thread i saw.
extern "C" __global__ void features(int* out, int which, unsigned mask, int argument) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[1024];
  const int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  int* mine = out + block * threads;
  int value = -1;
  switch (which) {
    case 0:  // coordinates
      value = threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z + 1000000 * blockIdx.y;
      break;
    case 1:  // static shared memory through a barrier
      fixed[t] = t;
      __syncthreads();
      value = fixed[threads - 1 - t];
      break;
    case 2:  // dynamic shared memory, which starts as NaN bits
      value = dynamic[t] == -1;
      __syncthreads();
      dynamic[t] = 10 * t;
      __syncthreads();
      value += dynamic[(t + 1) % threads];
      break;
    case 3:
      value = __shfl_down_sync(mask, t, argument);
      break;
    case 4:
      value = __shfl_up_sync(mask, t, argument);
      break;
    case 5:
      value = __shfl_xor_sync(mask, t, argument);
      break;
    case 6:
      value = __shfl_sync(mask, t, argument);
      break;
    case 7:
      value = __shfl_down_sync(mask, t, argument, 8);
      break;
    case 8:
      value = __shfl_up_sync(mask, t, argument, 8);
      break;
    case 9:
      value = __shfl_sync(mask, t, argument, 8);
      break;
    case 10:
      value = __shfl_xor_sync(mask, t, argument, 8);
      break;
    case 11:  // only the lanes of the mask take part
      if (mask >> (t & 31) & 1) value = static_cast<int>(__ballot_sync(mask, t & 1));
      break;
    case 12:
      value = __any_sync(mask, t == argument) + 10 * __all_sync(mask, t < argument);
      break;
    case 13:
      value = __syncthreads_count(t < argument);
      value += 10000 * __syncthreads_or(t == argument) + 100000 * __syncthreads_and(t < argument);
      break;
    case 14:  // early-exit warps: barriers and collectives go on without them
      if (t >= argument) return;
      fixed[t] = t;
      __syncthreads();
      value = fixed[argument - 1 - t];
      break;
    case 15:  // both halves of a warp collect at the same time under disjoint masks
      value = (t & 31) < 16 ? __shfl_xor_sync(0x0000ffffu, t, 1) : __shfl_xor_sync(0xffff0000u, t, 2);
      break;
    case 16:  // a flag set by another thread
      if (t == 0) {
        while (atomicAdd(&mine[1], 0) != 5) {
        }
        value = 1;
      } else if (t == argument) {
        atomicExch(&mine[1], 5);
        return;
      } else {
        return;
      }
      break;
    case 17:  // atomics over all blocks
      atomicAdd(&out[0], t);
      atomicMax(&out[1], block);
      atomicMin(&out[2], t);
      atomicOr(&out[3], 1 << (t & 31));
      return;
#ifdef CRUCIBLE_SIMT
    case 18:  // a producer warp arrives, a consumer warp waits
      if (t < 32) {
        fixed[t] = t + 7;
        simt_bar_arrive(1, 64);
        return;
      }
      simt_bar_sync(1, 64);
      value = fixed[t - 32];
      break;
#endif
    case 19: {  // 64-bit values through a shuffle
      const double v = __shfl_sync(mask, 1.0 + t / 1048576.0, argument);
      value = static_cast<int>((v - 1.0) * 1048576.0);
      break;
    }
    case 20: {  // subnormals survive; the operands come from memory
      const float tiny = __int_as_float(argument);
      value = __float_as_int(__fmul_rn(tiny, tiny));
      break;
    }
  }
  mine[t] = value;
}
