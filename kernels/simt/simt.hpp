// CUDA C++ on the host: what a .cu file expects from the language, with a block's threads as fibers.
//
// One translation unit includes this, then one kernel file, then exports one kernel (export.hpp).
// Arithmetic intrinsics round exactly as their CUDA namesakes; what is missing here (fast-math
// intrinsics, __activemask, whose value CUDA leaves open) does not compile, rather than differ.
#pragma once

#define CRUCIBLE_SIMT 1

#include <cmath>
#include <cstdint>

#include "export.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#if defined(SIMT_ASAN)
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

#define threadIdx (simt::current->thread)
#define blockIdx (simt::current->block->index)
#define blockDim (simt::current->block->extent)
#define gridDim (simt::current->block->grid)
#define warpSize 32

#include "intrinsics.hpp"
#include "vectors.hpp"

// The call site of a macro below, as one constant for reports and for the comparison of barriers.
#define SIMT_PLACE(operation)                                          \
  ([]() -> const simt::Place* {                                        \
    static constexpr simt::Place place{operation, __FILE__, __LINE__}; \
    return &place;                                                     \
  }())

namespace simt {

enum : int { kCount, kAny, kAll };

static inline int syncthreads_reduce(int p, int what, const Place* place) {
  block_barrier(p, place);
  const Block& b = *current->block;
  return what == kCount ? b.counted : what == kAny ? b.any_or_all & 1 : b.any_or_all >> 1;
}

template <class T>
static inline T exchange(unsigned mask, T value, unsigned source, const Place* place) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffles move 1 to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = collective(Collective::shuffle, mask, bits, source, place);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

static inline void check_width(int width, const Place* place) {
  if (width < 1 || width > 32 || (width & (width - 1)))
    fail(Fault::misuse, current, "%s at %s:%d has width %d; it must be a power of two up to 32",
         place->operation, base_name(place->file), place->line, width);
}

// Shuffles: a lane whose source falls outside its segment of `width` lanes keeps its own value.
template <class T>
static inline T shfl(const Place* place, unsigned mask, T v, int source, int width = 32) {
  check_width(width, place);
  const unsigned lane = current->lane;
  return exchange(mask, v, (lane & ~(width - 1u)) | (source & (width - 1u)), place);
}
template <class T>
static inline T shfl_up(const Place* place, unsigned mask, T v, unsigned delta, int width = 32) {
  check_width(width, place);
  const unsigned lane = current->lane;
  return exchange(mask, v, (lane & (width - 1u)) >= delta ? lane - delta : lane, place);
}
template <class T>
static inline T shfl_down(const Place* place, unsigned mask, T v, unsigned delta, int width = 32) {
  check_width(width, place);
  const unsigned lane = current->lane;
  return exchange(mask, v, (lane & (width - 1u)) + delta < unsigned(width) ? lane + delta : lane, place);
}
// As in PTX shfl.bfly, a lower segment may be read but not a higher one.
template <class T>
static inline T shfl_xor(const Place* place, unsigned mask, T v, int lanes, int width = 32) {
  check_width(width, place);
  const unsigned lane = current->lane, source = lane ^ lanes;
  return exchange(mask, v, source <= (lane | (width - 1u)) ? source : lane, place);
}
struct SyncWarp {  // a functor, since __syncwarp's argument may be missing
  const Place* place;
  void operator()(unsigned mask = 0xffffffffu) const { collective(Collective::sync, mask, 0, 0, place); }
};
[[noreturn]] static inline void trap() {
  const dim3 t = current->thread;
  fail(Fault::trap, current, "thread (%u,%u,%u) called __trap", t.x, t.y, t.z);
}

}  // namespace simt

#define __syncthreads() simt::block_barrier(false, SIMT_PLACE("__syncthreads"))
#define __syncthreads_count(p) \
  simt::syncthreads_reduce((p) != 0, simt::kCount, SIMT_PLACE("__syncthreads_count"))
#define __syncthreads_or(p) simt::syncthreads_reduce((p) != 0, simt::kAny, SIMT_PLACE("__syncthreads_or"))
#define __syncthreads_and(p) simt::syncthreads_reduce((p) != 0, simt::kAll, SIMT_PLACE("__syncthreads_and"))
// Twins of PTX bar.sync and bar.arrive with an id and a thread count.
#define simt_bar_sync(id, threads) simt::named_barrier(id, threads, false, SIMT_PLACE("bar.sync"))
#define simt_bar_arrive(id, threads) simt::named_barrier(id, threads, true, SIMT_PLACE("bar.arrive"))

#define __shfl_sync(...) simt::shfl(SIMT_PLACE("__shfl_sync"), __VA_ARGS__)
#define __shfl_up_sync(...) simt::shfl_up(SIMT_PLACE("__shfl_up_sync"), __VA_ARGS__)
#define __shfl_down_sync(...) simt::shfl_down(SIMT_PLACE("__shfl_down_sync"), __VA_ARGS__)
#define __shfl_xor_sync(...) simt::shfl_xor(SIMT_PLACE("__shfl_xor_sync"), __VA_ARGS__)
#define __syncwarp \
  simt::SyncWarp { SIMT_PLACE("__syncwarp") }
#define SIMT_VOTE(kind, mask, p, name) \
  simt::collective(simt::Collective::kind, mask, (p) != 0, 0, SIMT_PLACE(name))
#define __ballot_sync(mask, p) static_cast<unsigned>(SIMT_VOTE(ballot, mask, p, "__ballot_sync"))
#define __any_sync(mask, p) static_cast<int>(SIMT_VOTE(any, mask, p, "__any_sync"))
#define __all_sync(mask, p) static_cast<int>(SIMT_VOTE(all, mask, p, "__all_sync"))

static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#define __nanosleep(ns) ((void)(ns), simt::spin(SIMT_PLACE("__nanosleep")))
#define __trap() simt::trap()

#include "atomics.hpp"
