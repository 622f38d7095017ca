// PTX that CUDA C++ has no spelling for, each behind a function with a twin for simt.
#pragma once

// Asynchronous copies from global to shared memory (sm_80). A thread's copies since its last commit
// form a group; copies_wait<n> returns when all but its n newest groups have landed, for this thread
// alone: a barrier makes them visible to others. On simt a copy is done when the call returns.
#if defined(CRUCIBLE_SIMT)

static inline void copy16_async(float* shared, const float* global) {
  *reinterpret_cast<float4*>(shared) = *reinterpret_cast<const float4*>(global);
}
static inline void copy4_async(float* shared, const float* global) { *shared = *global; }
static inline void copies_commit() {}
template <int kPending>
static inline void copies_wait() {}

#else

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
// 16 bytes, both addresses 16-byte aligned; past L1.
__device__ __forceinline__ void copy16_async(float* shared, const float* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
// 4 bytes: a transposing copy.
__device__ __forceinline__ void copy4_async(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

#endif
