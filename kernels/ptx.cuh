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
static inline void copy16_async_if(bool there, SharedFloats to, const float* from) {
  if (there) copy16_async(to, from);
}
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

static inline void let_next_start() {}
static inline void await_previous() {}
static inline float4 load4_fresh(const float* p) { return *reinterpret_cast<const float4*>(p); }

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
// The same, reading nothing where `there` is false (the place then holds zeros, or on simt what it held): no
// branch, in which the compiler would compute addresses anew for every copy.
__device__ __forceinline__ void copy16_async_if(bool there, SharedFloats to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
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
// A barrier of kThreads threads, for roles that wait at different lines. Not bar.sync, the aligned form that
// __syncthreads is: all threads of a block have to reach that one at the same line, or synccheck objects.
template <int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("barrier.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// A launch marked `early` (Kernel.launch) may start once every block of the launch before it has called
// let_next_start or left. It may read what was there before that launch, and must call await_previous, which
// returns when that launch is done and its writes are visible, before it reads or writes anything else.
// Before sm_90, and on simt, launches follow one another and both do nothing.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// 16 bytes that the launch before wrote: not moved before await_previous, as a load of constant memory may
// be, and past L1.
__device__ __forceinline__ float4 load4_fresh(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

#endif
