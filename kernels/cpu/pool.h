// The thread pool of the cpu device: parallel_for over independent items.
//
// Items never share a floating-point result, so neither the number of threads nor who takes which
// item can change a bit. A worker that is asleep or descheduled is never waited for: it joins a job
// only while the job is open, and the caller waits for joined workers alone.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Clears flush-to-zero and denormals-are-zero and sets round-to-nearest for its scope: a thread
// inherits these from whoever made it, and other libraries set them.
class FloatEnv {
 public:
#if defined(__x86_64__)
  FloatEnv() : saved_(_mm_getcsr()) {
    _mm_setcsr((saved_ & ~0xE040u) | 0x1F80u);
    asm volatile("" ::: "memory");  // no load of an operand may move above the switch
  }
  ~FloatEnv() {
    asm volatile("" ::: "memory");
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnv() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ & ~((1ull << 24) | (3ull << 22) | (1ull << 19)))
                 : "memory");
  }
  ~FloatEnv() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#endif
};

namespace pool {

using Body = void (*)(void* context, int64_t item);

int threads();
void set_threads(int n);
void run(int64_t items, Body body, void* context);

}  // namespace pool

// body(i) for each i in [0, items), in any order, on any thread, in a clean floating-point
// environment. `serial` runs it on the calling thread: for work too small to share.
template <class F>
void parallel_for(int64_t items, F&& body, bool serial = false) {
  if (serial || items <= 1) {
    FloatEnv env;
    for (int64_t i = 0; i < items; i++) body(i);
    return;
  }
  using Function = std::remove_reference_t<F>;
  pool::run(
      items, [](void* context, int64_t i) { (*static_cast<Function*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}
