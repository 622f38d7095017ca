// From (grid, block, shared bytes, void** arguments) to blocks running on a few OS threads.
#pragma once

#include <pthread.h>

#include <atomic>

#include "float_env.h"
#include "schedule.hpp"

namespace simt {

class Hold {  // the standard library's mutex and thread would double the compile time of a small kernel
 public:
  explicit Hold(pthread_mutex_t* lock) : lock_(lock) { pthread_mutex_lock(lock_); }
  ~Hold() { pthread_mutex_unlock(lock_); }

 private:
  pthread_mutex_t* lock_;
};

// Blocks keep their stacks between launches; a worker borrows one for the length of a launch.
// Few are kept, since a process that has many kernels loaded has this store once in each, and the
// system limits how many mappings (a guard page splits one) a process may have.
constexpr int kKeptBlocks = 2;
static pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;
static Block* stored = nullptr;
static int stored_count = 0;

static Block* take_block() {
  {
    Hold hold(&store_lock);
    if (Block* b = stored) {
      stored = b->next;
      stored_count--;
      return b;
    }
  }
  void* memory = mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  Block* b = new Block();
  b->stacks = static_cast<char*>(memory);
  return b;
}

static void give_block(Block* b) {
  {
    Hold hold(&store_lock);
    if (stored_count < kKeptBlocks) {
      b->next = stored;
      stored = b;
      stored_count++;
      return;
    }
  }
  munmap(b->stacks, kMaxThreads * kStack);
  delete b;
}

static const char* misplaced_shared = nullptr;  // an `extern __shared__` array outside a function

// Start of the block's dynamic shared memory; stands for `extern __shared__ T name[]`.
template <class T>
static inline T* dynamic_shared(const char* name) {
  if (!current) {
    misplaced_shared = name;
    return nullptr;
  }
  return reinterpret_cast<T*>(current->block->shared + kFence);
}

constexpr int kMaxWorkers = 256;

struct Launch {
  dim3 grid, block;
  size_t shared;
  void (*body)(void*);
  void* argument;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> end;  // first block that is not to run; a fault lowers it
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  uint64_t failed = ~0ull;  // the lowest failed block, so that the report does not depend on timing
  Report* report;
};

static bool fence_holds(const Block& b, size_t shared) {
#if !defined(SIMT_ASAN)
  for (size_t i = 0; i < kFence; i++)
    if (static_cast<unsigned char>(b.shared[i]) != kFenceFill ||
        static_cast<unsigned char>(b.shared[kFence + shared + i]) != kFenceFill)
      return false;
#else
  (void)b, (void)shared;
#endif
  return true;
}

static void prepare_block(Block& b, const Launch& launch, uint64_t number) {
  const dim3 n = launch.block;
  b.grid = launch.grid;
  b.extent = n;
  b.index = dim3(number % launch.grid.x, number / launch.grid.x % launch.grid.y,
                 number / (static_cast<uint64_t>(launch.grid.x) * launch.grid.y));
  b.threads = b.alive = n.x * n.y * n.z;
  b.warp_count = (b.threads + kWarp - 1) / kWarp;
  b.ready_warps = b.warp_count == 32 ? ~0u : (1u << b.warp_count) - 1;
  b.spins = 0;
  b.body = launch.body;
  b.argument = launch.argument;
  b.report.fault = 0;
  b.os_thread.size = 0;
  b.all = Barrier();
  for (Barrier& barrier : b.named) barrier = Barrier();
  for (unsigned w = 0; w < b.warp_count; w++) {
    const unsigned lanes = b.threads - w * kWarp;
    b.warps[w].alive = b.warps[w].ready = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    b.warps[w].waiting = b.warps[w].claimed = 0;
  }
  static const size_t page = sysconf(_SC_PAGESIZE);
  for (; b.prepared < b.threads; b.prepared++) {
    Context& c = b.fibers[b.prepared].context;
    c.bottom = b.stacks + b.prepared * kStack + page;
    c.size = kStack - page;
    // An overflow stops instead of spreading; one warp's guard pages stand for all, which run the same code.
    if (b.prepared < kWarp) mprotect(b.stacks + b.prepared * kStack, page, PROT_NONE);
  }
  for (unsigned i = 0; i < b.threads; i++) {
    Fiber& f = b.fibers[i];
    f.block = &b;
    f.thread = dim3(i % n.x, i / n.x % n.y, i / (n.x * n.y));
    f.lane = i % kWarp;
    f.warp = i / kWarp;
    f.place = nullptr;
    prepare(f.context, fiber_entry, (i % kColours) * kColourBytes);
  }
  if (launch.shared) memset(b.shared + kFence, kSharedFill, launch.shared);
}

static void run_block(Block& b, Launch& launch, uint64_t number) {
  prepare_block(b, launch, number);
  current = &b.fibers[0];
  switch_context(b.os_thread, b.fibers[0].context, false);
  if (!b.report.fault && !fence_holds(b, launch.shared)) {
    b.report.fault = static_cast<int>(Fault::shared_overrun);
    b.report.block[0] = b.index.x, b.report.block[1] = b.index.y, b.report.block[2] = b.index.z;
    b.report.thread[0] = b.report.thread[1] = b.report.thread[2] = 0;
    snprintf(b.report.message, sizeof b.report.message,
             "some thread wrote outside the %zu bytes of dynamic shared memory; a sanitize build names it",
             launch.shared);
  }
  if (b.report.fault) {
    Hold hold(&launch.lock);
    if (number < launch.failed) {
      launch.failed = number;
      *launch.report = b.report;
      launch.end = number;
    }
  }
}

static void work(Launch& launch) {
  FloatEnv clean;
  Block* b = take_block();
  const size_t bytes = launch.shared + 2 * kFence;
  void* shared = nullptr;
  if (!b || posix_memalign(&shared, 1024, bytes)) {
    Hold hold(&launch.lock);
    launch.report->fault = static_cast<int>(Fault::misuse);
    snprintf(launch.report->message, sizeof launch.report->message, "no memory for the stacks of a block");
    launch.failed = 0;
    launch.end = 0;
    return;
  }
  b->shared = static_cast<char*>(shared);
  memset(b->shared, kFenceFill, bytes);
#if defined(SIMT_ASAN)
  __asan_poison_memory_region(b->shared, kFence);
  __asan_poison_memory_region(b->shared + kFence + launch.shared, kFence);
#endif
  for (uint64_t i; (i = launch.next++) < launch.end;) run_block(*b, launch, i);
#if defined(SIMT_ASAN)
  __asan_unpoison_memory_region(b->shared, bytes);
#endif
  free(shared);
  b->shared = nullptr;
  give_block(b);
}

// Runs every block on up to `workers` OS threads; fills `report`, whose fault is 0 on success.
static void run(void (*body)(void*), void* argument, const unsigned* grid, const unsigned* block,
                size_t shared, int workers, Report* report) {
  Launch launch{};
  launch.grid = dim3(grid[0], grid[1], grid[2]);
  launch.block = dim3(block[0], block[1], block[2]);
  launch.shared = shared;
  launch.body = body;
  launch.argument = argument;
  launch.report = report;
  const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
  launch.end = blocks;
  report->fault = 0;
  if (misplaced_shared) {
    report->fault = static_cast<int>(Fault::misuse);
    snprintf(report->message, sizeof report->message,
             "extern __shared__ %s stands outside a function; declare it inside the kernel",
             misplaced_shared);
    return;
  }
#if defined(SIMT_ASAN)
  // Static shared memory is one instrumented global here (ASan guards no thread-local variable), so
  // blocks, and launches, take turns.
  static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
  Hold hold(&one_launch);
  workers = 1;
#endif
  pthread_t helpers[kMaxWorkers];
  int started = 0;
  auto help = [](void* launch) -> void* {
    work(*static_cast<Launch*>(launch));
    return nullptr;
  };
  while (started < kMaxWorkers && started + 1 < workers && started + 1ull < blocks &&
         pthread_create(&helpers[started], nullptr, help, &launch) == 0)
    started++;
  work(launch);
  for (int i = 0; i < started; i++) pthread_join(helpers[i], nullptr);
}

}  // namespace simt
