// PTX that CUDA C++ has no spelling for, each behind a function with a twin for simt.
#pragma once

// Asynchronous copies from global to shared memory (sm_80). A thread's copies since its last commit
// form a group; copies_wait<n> returns when all but its n newest groups have landed, for this thread
// alone: a barrier makes them visible to others, and another one must stand between the last use of a
// buffer and the copy that fills it again. On simt a copy is done when the call returns.
//
// SharedFloats is a place in shared memory: a 32-bit address on the GPU, so that constant offsets end up
// in the instruction, and a pointer on simt.
#if defined(CRUCIBLE_SIMT)

using SharedFloats = float*;
static inline SharedFloats shared_floats(float* p) { return p; }
static inline SharedFloats ahead(SharedFloats p, int floats) { return p + floats; }
static inline SharedFloats exchanged(SharedFloats p, int place, int with) { return p + (place ^ with); }
static inline void copy16_async(SharedFloats to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}
static inline void copy16_async_ahead(SharedFloats to, const float* from) { copy16_async(to, from); }
static inline void copy4_async(SharedFloats to, const float* from) { *to = *from; }
static inline void copies_commit() {}
template <int kPending>
static inline void copies_wait() {}
template <int kBranch>
static inline void stand_apart() {}
template <int kThreads>
static inline void meet() {
  simt_bar_sync(1, kThreads);
}

static inline void load_cores(SharedFloats cores, unsigned (&r)[4]) {
  const int lane = threadIdx.x & 31;
  for (int i = 0; i < 4; i++) r[i] = __float_as_uint(cores[32 * i + lane]);
}
static inline int dot4(unsigned a, unsigned b) {
  int sum = 0;
  for (int i = 0; i < 32; i += 8)
    sum += static_cast<signed char>(a >> i & 255) * static_cast<signed char>(b >> i & 255);
  return sum;
}
static inline void mma_i8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                          unsigned b1) {
  __shared__ unsigned operands[32][32][6];  // [warp][lane]
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  auto& lanes = operands[threadIdx.x >> 5];
  const unsigned mine[6] = {a0, a1, a2, a3, b0, b1};
  for (int i = 0; i < 6; i++) lanes[lane][i] = mine[i];
  __syncwarp();
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 4; i++) {
      const unsigned *a = lanes[4 * g + k], *b = lanes[4 * (2 * t + i % 2) + k];
      c[i] += dot4(a[i / 2], b[4]) + dot4(a[2 + i / 2], b[5]);
    }
  __syncwarp();
}

#else

using SharedFloats = unsigned;
__device__ __forceinline__ SharedFloats shared_floats(float* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ SharedFloats ahead(SharedFloats p, int floats) { return p + 4 * floats; }
// p[place ^ with], in one instruction where p + place is at hand; p is aligned to a power of two of floats
// that exceeds both.
__device__ __forceinline__ SharedFloats exchanged(SharedFloats p, int place, int with) {
  return ahead(p, place) ^ (4 * with);
}
// 16 bytes, both addresses 16-byte aligned; past L1.
__device__ __forceinline__ void copy16_async(SharedFloats to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
// The same where a neighbour soon reads the rest of the 128 bytes: they are fetched into L2 at once.
__device__ __forceinline__ void copy16_async_ahead(SharedFloats to, const float* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
// 4 bytes: a transposing copy.
__device__ __forceinline__ void copy4_async(SharedFloats to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
// No instruction: branches that differ by kBranch are not merged into one with a register array
// indexed at run time, which would put the array into local memory.
template <int kBranch>
__device__ __forceinline__ void stand_apart() {
  asm volatile("// branch %0\n" ::"n"(kBranch));
}
// A barrier of kThreads threads in whole warps, for roles that wait at different lines: the count is part of
// the instruction, so that no line has to be common to all, as __syncthreads demands.
template <int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// Four cores, 8 lines of 16 bytes each, that lie one after the other: r[i] of lane 4g + t is word t of line g
// of core i. Every lane passes the first core's address (ldmatrix; sm_75).
__device__ __forceinline__ void load_cores(SharedFloats cores, unsigned (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ahead(cores, 4 * (threadIdx.x & 31))));
}
// c += a b of int8, exact in int32: a is 16 lines of 32 k, b is 32 k of 8 columns. Lane 4g + t holds, four k
// a word: a0 line g, k 4t..; a1 line g + 8; a2, a3 the same at k 16 + 4t..; b0 column g, k 4t..; b1 k 16 +
// 4t..; c[0], c[1] line g, columns 2t and 2t + 1; c[2], c[3] line g + 8 (sm_80).
__device__ __forceinline__ void mma_i8(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                       unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
