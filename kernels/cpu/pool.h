// The thread pool of the cpu device: parallel_for over independent items.
//
// Items never share a floating-point result, so neither the number of threads nor who takes which
// item can change a bit. A worker that is asleep or descheduled is never waited for: it joins a job
// only while the job is open, and the caller waits for joined workers alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "float_env.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
