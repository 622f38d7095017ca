// Hopper's asynchronous tensor products and bulk copies, each behind a function. Target sm_90a; no simt twin,
// so a kernel that uses them is gpu-only.
#pragma once

// 64-bit arrival counters in shared memory. A phase ends when `arrivals` threads have arrived and the bytes
// announced in it have landed; wait_phase(b, p) returns once the phase of parity p has ended, and at once for
// parity 1 on a new barrier.
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Before any other thread, or the copy engine, touches new barriers; a __syncthreads follows.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrive, and let the phase wait for `bytes` more of bulk copies.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_phase(unsigned barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// bytes (a multiple of 16) from global to shared memory, both 16-byte aligned, counted by the barrier.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// __syncthreads for the kThreads threads that call it, a multiple of 32.
template <int kThreads>
__device__ __forceinline__ void meet_some() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// An operand of cores (8 lines of 16 bytes, contiguous, no swizzle): bytes from a core to the next along k
// and to the next along its lines.
__device__ __forceinline__ unsigned long long core_operand(unsigned address, unsigned along_k,
                                                           unsigned along_lines) {
  return (address & 0x3ffffull) >> 4 | static_cast<unsigned long long>(along_k >> 4) << 16 |
         static_cast<unsigned long long>(along_lines >> 4) << 32;
}

// Products of a warpgroup: fence before the first one of a group that follows other writes to the sums,
// commit to close a group, wait until all but kPending groups are done.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// No instruction: what uses the values stays behind it.
template <int kCount>
__device__ __forceinline__ void hold(int (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define D8(i)                                                                                 \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)

// d = a b + (more ? d : 0) in int8, int32 sums: 64 lines of 32 k by 32 k of 2 * kSums columns. Thread 4g + t
// of warp w holds d[4j..4j+3]: line 16w + g, columns 8j + 2t and 8j + 2t + 1, then the same of line 16w + g
// + 8.
__device__ __forceinline__ void product_i8(int (&d)[32], unsigned long long a, unsigned long long b,
                                           int more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p;\n}\n"
      : D32(0)
      : "l"(a), "l"(b), "r"(more));
}
__device__ __forceinline__ void product_i8(int (&d)[64], unsigned long long a, unsigned long long b,
                                           int more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p;\n}\n"
      : D32(0), D32(32)
      : "l"(a), "l"(b), "r"(more));
}
__device__ __forceinline__ void product_i8(int (&d)[128], unsigned long long a, unsigned long long b,
                                           int more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p;\n}\n"
      : D32(0), D32(32), D32(64), D32(96)
      : "l"(a), "l"(b), "r"(more));
}
#undef D32
#undef D8
