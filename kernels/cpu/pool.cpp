// Workers spin briefly between jobs (a decode step is hundreds of short jobs), then sleep.
#include "cpu/pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__)
#include <pthread.h>
#endif

#include "cpu/vec.h"

namespace {

constexpr int kSpins = 4000;  // some tens of microseconds

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  pool::Body body = nullptr;
  void* context = nullptr;
  int64_t items = 0;
};

// state = epoch << 16 | open << 15 | joined workers
struct Pool {
  std::atomic<uint64_t> state{0};
  std::atomic<int64_t> next{0};
  Job job;
  std::mutex caller;  // one parallel job at a time; a second caller runs its own job alone
  std::mutex sleep;
  std::condition_variable wake;
  std::atomic<int> sleeping{0};
  std::atomic<int> target{1};
  int started = 1;  // the caller counts as one
};

constexpr uint64_t kOpen = 1ull << 15;
constexpr uint64_t kJoined = kOpen - 1;

// Never destroyed: detached workers may outlive static destructors.
std::atomic<Pool*> current{nullptr};

// A forked child has none of its parent's workers, and locks that they may have held: it starts afresh.
void after_fork() {
  Pool* fresh = new Pool;
  fresh->target.store(current.load()->target.load());
  current.store(fresh);
}

Pool& the_pool() {
  static const bool made = [] {
    current.store(new Pool);
#if defined(__unix__)
    pthread_atfork(nullptr, nullptr, after_fork);
#endif
    return true;
  }();
  (void)made;
  return *current.load(std::memory_order_acquire);
}

void take_items(Pool& p) {
  FloatEnv env;
  const Job job = p.job;
  for (int64_t i; (i = p.next.fetch_add(1, std::memory_order_relaxed)) < job.items;) job.body(job.context, i);
}

void worker(int index) {
  Pool& p = the_pool();
  uint64_t done = 0;
  for (;;) {
    uint64_t s = p.state.load(std::memory_order_acquire);
    for (int i = 0; i < kSpins && ((s >> 16) == done || !(s & kOpen)); i++) {
      pause_cpu();
      s = p.state.load(std::memory_order_acquire);
    }
    if ((s >> 16) == done || !(s & kOpen)) {
      std::unique_lock<std::mutex> lock(p.sleep);
      p.sleeping.fetch_add(1);
      p.wake.wait(lock, [&] {
        s = p.state.load(std::memory_order_seq_cst);
        return (s >> 16) != done && (s & kOpen);
      });
      p.sleeping.fetch_sub(1);
    }
    if (index >= p.target.load()) {  // more workers than wanted now: sit this one out
      done = s >> 16;
      continue;
    }
    while ((s & kOpen) && (s >> 16) != done) {
      if (p.state.compare_exchange_weak(s, s + 1, std::memory_order_acq_rel)) {
        take_items(p);
        done = s >> 16;
        p.state.fetch_sub(1, std::memory_order_acq_rel);
      }
    }
  }
}

}  // namespace

namespace pool {

int threads() { return the_pool().target.load(); }

// Starts what is missing of `target`; where the system gives no more threads, those that run are enough.
static void start_workers(Pool& p) {
  try {
    for (; p.started < p.target.load(); p.started++) std::thread(worker, p.started).detach();
  } catch (const std::system_error&) {
    p.target.store(p.started);
  }
}

void set_threads(int n) {
  Pool& p = the_pool();
  std::lock_guard<std::mutex> guard(p.caller);
  n = n < 1 ? 1 : n > 1024 ? 1024 : n;
  p.target.store(n);
  start_workers(p);
}

void run(int64_t items, Body body, void* context) {
  Pool& p = the_pool();
  std::unique_lock<std::mutex> guard(p.caller, std::try_to_lock);
  if (!guard.owns_lock() || p.target.load() == 1) {
    FloatEnv env;
    for (int64_t i = 0; i < items; i++) body(context, i);
    return;
  }
  if (p.started < p.target.load()) start_workers(p);  // the first job after a fork
  p.job = {body, context, items};
  p.next.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (p.state.load(std::memory_order_relaxed) >> 16) + 1;
  p.state.store(epoch << 16 | kOpen, std::memory_order_seq_cst);
  if (p.sleeping.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(p.sleep);
    p.wake.notify_all();
  }
  take_items(p);
  p.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int i = 0; p.state.load(std::memory_order_acquire) & kJoined; i++) {
    if (i < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace pool

CRUCIBLE_API int64_t crucible_threads() { return pool::threads(); }
CRUCIBLE_API void crucible_set_threads(int64_t n) { pool::set_threads(static_cast<int>(n)); }
