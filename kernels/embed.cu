// Rows of an embedding table, widened to f32: a gather. Also gathers rows of activations.
//
// table [V] rows in a storage: f32, bf16 or f16 [N], GGUF blocks of 32 (q8_0: f16 d, int8 q[32]; q4_1: f16 d,
// f16 m, 16 bytes whose low nibbles come first), or int8 [N] with f32 scale [V]; ids int32 [T]; y [T][N].
// Grid (T, chunks of 1024 columns), block 256: thread t forms columns t, t + 256, … of its chunk.
// An id outside 0..V-1 gives a row of NaN: ids may come from a sampler on the device, and no host looks.
// Contract sections: 6 (int8 rows q*s), 7 (GGUF weights: multiply, then add). Verdict: the only variant.
#include "contract.cuh"

constexpr int kColumns = 1024;  // of a block
enum Storage { kF32, kBf16, kQ8_0, kQ4_1, kF16, kInt8 };

__device__ __forceinline__ unsigned read_u16(const unsigned char* p) { return p[0] | p[1] << 8; }

// Exact: every binary16 is a binary32. A subnormal is its integer times 2^-24.
__device__ __forceinline__ float widen_f16(unsigned h) {
  const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
  if (exponent == 0) {
    const float magnitude = __fmul_rn(__int2float_rn(static_cast<int>(fraction)), 0x1p-24f);
    return __uint_as_float(sign | __float_as_uint(magnitude));
  }
  return __uint_as_float(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13);
}

// Column i of a row that starts at `row`; `scale` belongs to an int8 row.
__device__ __forceinline__ float stored_value(int storage, const unsigned char* row, int i, float scale) {
  switch (storage) {
    case kF32:
      return reinterpret_cast<const float*>(row)[i];
    case kBf16:
      return __uint_as_float(read_u16(row + 2ll * i) << 16);
    case kF16:
      return widen_f16(read_u16(row + 2ll * i));
    case kInt8:
      return __fmul_rn(__int2float_rn(static_cast<signed char>(row[i])), scale);
    case kQ8_0: {
      const unsigned char* block = row + i / 32 * 34ll;
      const int q = static_cast<signed char>(block[2 + i % 32]);
      return __fmul_rn(widen_f16(read_u16(block)), __int2float_rn(q));
    }
    default: {
      const unsigned char* block = row + i / 32 * 20ll;
      const int k = i % 32, q = k < 16 ? block[4 + k] & 15 : block[4 + k - 16] >> 4;
      const float product = __fmul_rn(widen_f16(read_u16(block)), __int2float_rn(q));
      return __fadd_rn(product, widen_f16(read_u16(block + 2)));
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    embed(const unsigned char* __restrict__ table, const float* __restrict__ scale, int storage,
          int row_bytes, const int* __restrict__ ids, float* __restrict__ y, int V, int N) {
  const int first = blockIdx.y * kColumns + threadIdx.x, id = ids[blockIdx.x];
  const bool known = id >= 0 && id < V;
  const unsigned char* row = table + static_cast<long long>(known ? id : 0) * row_bytes;
  const float s = known && storage == kInt8 ? scale[id] : 1.0f;
  float* out = y + static_cast<long long>(blockIdx.x) * N;
  if (!known) {
    for (int i = first; i < N && i < first + kColumns; i += 256) out[i] = __uint_as_float(0x7fc00000u);
  } else if (storage == kF32) {  // apart, so that its loads overlap
    float value[kColumns / 256];
#pragma unroll
    for (int c = 0; c < kColumns / 256; c++)
      value[c] = first + 256 * c < N ? stored_value(kF32, row, first + 256 * c, s) : 0.0f;
#pragma unroll
    for (int c = 0; c < kColumns / 256; c++)
      if (first + 256 * c < N) out[first + 256 * c] = value[c];
  } else {
    for (int i = first; i < N && i < first + kColumns; i += 256) out[i] = stored_value(storage, row, i, s);
  }
}
