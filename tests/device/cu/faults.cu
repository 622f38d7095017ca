// Rules of CUDA broken on purpose, one case each; line numbers are part of the tests' expectations.
extern "C" __global__ void faults(int* out, int which, int argument) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[8];
  const int t = threadIdx.x;
  if (which == 0) {  // nothing wrong
    dynamic[t] = t;
    fixed[t & 7] = 7;
    __syncthreads();
    out[t] = dynamic[t ^ 1] + fixed[3];
  }
  if (which == 1) {  // half a warp waits in a barrier, half in a collective of the whole warp
    if (t < 16) __syncthreads();
    if (t >= 16) __syncwarp();
  }
  if (which == 2) {  // two barriers whose counts agree
    if (t < 32)
      __syncthreads();
    else
      __syncthreads();
  }
  if (which == 3 && t < 48) out[t] = __shfl_down_sync(0xffffffffu, t, 16);
  if (which == 4) out[t] = __shfl_xor_sync(0x0000ffffu, t, 1);
  if (which == 5) {
    if (t & 1)
      out[t] = __shfl_xor_sync(0xaaaaaaaau, t, 2);
    else
      out[t] = __ballot_sync(0xffffffffu, 1);
  }
  if (which == 6) dynamic[argument] = 1;
  if (which == 7 && t == 0)
    while (atomicAdd(out, 0) != 5) {
    }
  if (which == 8 && blockIdx.x >= 3) __trap();
  if (which == 9) out[t] = __shfl_sync(0xffffffffu, t, 0, 12);
  if (which == 10) fixed[argument] = 1;
  if (which == 11) out[argument] = 1;
#ifdef CRUCIBLE_SIMT
  if (which == 12 && t < 32) simt_bar_sync(1, 64);
  if (which == 13) simt_bar_sync(1, t < 32 ? 64 : 96);
#endif
}
