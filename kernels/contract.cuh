// Device helpers of contract sections 1 to 3: exp, sigmoid, and the trees, in their fixed order.
//
// Every floating-point operation is an explicit round-to-nearest intrinsic, so no compiler option can
// contract two of them. Compiled by NVRTC for the GPU and through simt/simt.hpp for the host.
#pragma once

constexpr int kPage = 16;  // positions in a K/V page (section 5)
constexpr unsigned kAllLanes = 0xffffffffu;

// NVRTC has no INFINITY.
__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// Section 2: exp for x <= 0, at most 1.01 ulp off, +0 below -87. This much is common to its two forms:
// e^r for x = n ln 2 + r. `shifted` is 1.5 * 2^23 + n: the sum rounds to an integer, its low bits are n.
__device__ __forceinline__ float exp_reduced(float x, float& shifted, float& n) {
  const float shifter = 12582912.0f;  // 1.5 * 2^23
  shifted = __fmaf_rn(x, 0x1.715476p+0f, shifter);
  n = __fsub_rn(shifted, shifter);
  float r = __fmaf_rn(n, -0.693145751953125f, x);
  r = __fmaf_rn(n, -1.428606765330187e-06f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fmaf_rn(p, __fmul_rn(r, r), r);
  return __fadd_rn(p, 1.0f);
}

// exp as the contract writes it.
__device__ __forceinline__ float contract_exp(float x) {
  if (x < -87.0f) return 0.0f;
  float shifted, n;
  const float p = exp_reduced(x, shifted, n);
  return __int_as_float(__float_as_int(p) + static_cast<int>(n) * (1 << 23));
}

// The bits of contract_exp without a branch or an integer conversion: the selection comes last.
__device__ __forceinline__ float exp_selected(float x) {
  float shifted, n;
  const float p = exp_reduced(x, shifted, n);
  const float e = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
  return x < -87.0f ? 0.0f : e;
}

// Section 2: sigmoid. Both halves share e = exp(-|g|) and one division: 1/(1+e) for g >= 0, else e/(1+e).
__device__ __forceinline__ float contract_sigmoid(float g) {
  const float e = contract_exp(-fabsf(g));
  return __fdiv_rn(g >= 0.0f ? 1.0f : e, __fadd_rn(1.0f, e));
}

// Section 3: tree32 over the 32 lanes of a full warp, p[i] + p[i + o] for o = 16, 8, 4, 2, 1.
// The result is in lane 0; other lanes hold partial sums.
__device__ __forceinline__ float tree32(float p) {
  for (int o = 16; o > 0; o >>= 1) p = __fadd_rn(p, __shfl_down_sync(kAllLanes, p, o));
  return p;
}

// Section 3: the end of sum256. `partial` is a[t] of thread t, already summed over j = t, t + 256, …
// in ascending order; the block has 256 threads. The result is in thread 0. `warps` is shared, and
// may be used again after the caller's next barrier.
__device__ __forceinline__ float sum256(float partial, float (&warps)[8]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float w = tree32(partial);
  if (lane == 0) warps[warp] = w;
  __syncthreads();
  return warp == 0 ? tree32(lane < 8 ? warps[lane] : 0.0f) : 0.0f;
}

// Maximum over the 256 threads of a block, in thread 0; exact in any order. `warps` as in sum256.
__device__ __forceinline__ float max256(float value, float (&warps)[8]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int o = 16; o > 0; o >>= 1) value = fmaxf(value, __shfl_down_sync(kAllLanes, value, o));
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < 8; i++) value = fmaxf(value, warps[i]);
  return value;
}
