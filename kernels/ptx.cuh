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
static inline void copy4_async(SharedFloats to, const float* from) { *to = *from; }
static inline void copies_commit() {}
template <int kPending>
static inline void copies_wait() {}
template <int kBranch>
static inline void stand_apart() {}
static __noinline__ void meet() { __syncthreads(); }

#define BLOCKS_OF_CLUSTER(n)
// On simt a cluster is one block of (threads, blocks) threads: threadIdx.y is the block's rank.
static inline int cluster_rank() { return threadIdx.y; }
static inline int cluster_number() { return blockIdx.x; }
static inline void cluster_arrive() {}
static inline void cluster_wait() { __syncthreads(); }
template <int kThreads>
static inline void meet_block() {
  simt_bar_sync(threadIdx.y + 1, kThreads);
}
template <int kBlocks>
static inline float* own_shared(float4* memory, int floats) {
  return reinterpret_cast<float*>(memory) + static_cast<int>(threadIdx.y) * floats;
}
static inline void store_in_block(SharedFloats place, int rank, int floats, float value) {
  place[(rank - static_cast<int>(threadIdx.y)) * floats] = value;
}
static inline int resident_number() { return blockIdx.x + threadIdx.y; }

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
// __syncthreads where the roles of a kernel stand at different lines: a function that is called, so that all
// of them wait at one instruction, as synccheck demands.
__device__ __noinline__ void meet() { __syncthreads(); }

// Thread block clusters (sm_90; elsewhere these trap). A cluster is `kBlocks` blocks that run at the same
// time on neighbouring multiprocessors and reach each other's shared memory. cluster_arrive and cluster_wait
// make one barrier of all their threads, which also orders what they wrote to shared and global memory before
// it; between the two a thread may do what the others need not see. Shared memory of another block may be
// touched after one such barrier, which says that the block runs, and until it leaves.
#if __CUDA_ARCH__ >= 900
#define BLOCKS_OF_CLUSTER(n) __cluster_dims__(n, 1, 1)
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// Number of the cluster in a grid of one dimension.
__device__ __forceinline__ int cluster_number() {
  int number;
  asm("mov.u32 %0, %%clusterid.x;\n" : "=r"(number));
  return number;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// A float into the same place of the block with that rank; a block has `floats` of shared memory (for simt).
__device__ __forceinline__ void store_in_block(SharedFloats place, int rank, int floats, float value) {
  asm volatile(
      "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n}\n" ::"r"(place),
      "r"(rank), "f"(value)
      : "memory");
}
#else
#define BLOCKS_OF_CLUSTER(n)
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ int cluster_number() { return 0; }
__device__ __forceinline__ void cluster_arrive() { __trap(); }
__device__ __forceinline__ void cluster_wait() { __trap(); }
__device__ __forceinline__ void store_in_block(SharedFloats, int, int, float) { __trap(); }
#endif
// __syncthreads of one block of a cluster.
template <int kThreads>
__device__ __forceinline__ void meet_block() {
  __syncthreads();
}
// Where the dynamic shared memory of this block begins.
template <int kBlocks>
__device__ __forceinline__ float* own_shared(float4* memory, int) {
  return reinterpret_cast<float*>(memory);
}
// A number in which blocks that share a multiprocessor mostly differ; a hint, so no result may depend on it.
// It comes from the place of the calling thread's warp: one thread asks and tells the block.
__device__ __forceinline__ int resident_number() {
  unsigned warp;
  asm volatile("mov.u32 %0, %%warpid;\n" : "=r"(warp));
  return warp >> 2;
}

#endif
