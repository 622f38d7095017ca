// The state of one thread block while it runs: fibers, warps, barriers, and the fault that ended it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "context.hpp"

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace simt {

constexpr unsigned kWarp = 32, kMaxThreads = 1024, kMaxWarps = kMaxThreads / kWarp, kNamedBarriers = 16;
#if defined(SIMT_ASAN)
constexpr size_t kStack = 256 * 1024;
#else
constexpr size_t kStack = 64 * 1024;
#endif
// Sixteen different offsets, so that equal frames of a warp do not fall into one cache set.
constexpr size_t kColours = 16, kColourBytes = 256;
// Bytes around dynamic shared memory: poisoned under ASan, else filled and checked after the block.
constexpr size_t kFence = 4096;
constexpr unsigned char kFenceFill = 0xA5;
// Shared memory starts as NaN: a value that a kernel forgot to write shows in its output.
constexpr unsigned char kSharedFill = 0xFF;
// Atomic operations of a block without any thread passing a barrier, a collective or its end.
constexpr uint64_t kSpinLimit = 20'000'000;

enum class Fault : int {
  none = 0,
  deadlock = 1,
  divergent_barrier = 2,
  mask_mismatch = 3,
  inactive_lane = 4,
  shared_overrun = 5,
  spin = 6,
  trap = 7,
  misuse = 8,
};

// What the host learns about a failed launch; the layout is known to crucible/device/simt.py.
struct Report {
  int fault;
  unsigned block[3];
  unsigned thread[3];
  char message[2048];
};

// A call site at which threads may wait; SIMT_PLACE (simt.hpp) makes one constant for each.
struct Place {
  const char* operation;
  const char* file;
  int line;
};

static inline bool same_place(const Place* a, const Place* b) {
  return a == b || (a->line == b->line && !strcmp(a->operation, b->operation) && !strcmp(a->file, b->file));
}

struct Block;

struct Fiber {
  Context context;
  Block* block;
  dim3 thread;
  unsigned lane, warp;
  const Place* place;
};

enum class Collective : uint8_t { sync, shuffle, ballot, any, all };

// Lanes of a warp; bit i of a mask is lane i.
struct Warp {
  uint32_t alive;    // not exited
  uint32_t ready;    // can run
  uint32_t waiting;  // inside a collective
  uint32_t claimed;  // named by the mask of a waiting lane; pending masks never share a live lane
  struct Lane {
    uint64_t value;  // handed in
    uint64_t result;
    uint32_t mask;
    Collective kind;
    uint8_t source;  // shuffles: the lane to read
  } lanes[kWarp];
};

struct Barrier {
  unsigned arrived = 0;          // threads counted
  unsigned expected = 0;         // named barriers: the count that all callers must agree on
  unsigned ones = 0;             // threads that arrived with a true predicate
  const Place* place = nullptr;  // of the first arrival
  uint32_t lanes[kMaxWarps] = {};
};

struct Block {
  Fiber fibers[kMaxThreads];
  Warp warps[kMaxWarps];
  Barrier all, named[kNamedBarriers];
  Context os_thread;
  dim3 grid, extent, index;
  unsigned threads, warp_count, alive;
  uint32_t ready_warps;
  int counted, any_or_all;  // results of the last block barrier
  uint64_t spins;
  void (*body)(void*);
  void* argument;
  char *stacks = nullptr, *shared = nullptr;
  unsigned prepared = 0;  // fibers whose stack has its guard page
  Report report;
  Block* next = nullptr;  // in the list of blocks that nobody uses
};

// One OS thread runs one block at a time, and a fiber never changes OS threads.
static thread_local Fiber* current = nullptr;

static inline unsigned linear(const Fiber* f) { return f->warp * kWarp + f->lane; }

static inline void resume(Fiber* next) {
  Fiber* me = current;
  if (next == me) return;
  current = next;
  switch_context(me->context, next->context, false);
}

// Gives the OS thread back to run_block; nothing resumes the caller.
[[noreturn]] static void leave_block() {
  Fiber* me = current;
  current = nullptr;
  switch_context(me->context, me->block->os_thread, true);
  __builtin_unreachable();
}

static const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// Ends the block with a report; the other fibers are abandoned where they stand.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 3, 4)]] static void fail(Fault fault,
                                                                                   const Fiber* who,
                                                                                   const char* format, ...) {
  Report& r = who->block->report;
  r.fault = static_cast<int>(fault);
  r.block[0] = who->block->index.x, r.block[1] = who->block->index.y, r.block[2] = who->block->index.z;
  r.thread[0] = who->thread.x, r.thread[1] = who->thread.y, r.thread[2] = who->thread.z;
  va_list args;
  va_start(args, format);
  vsnprintf(r.message, sizeof r.message, format, args);
  va_end(args);
  leave_block();
}

static inline bool waits(const Block& b, const Fiber& f) {
  const Warp& w = b.warps[f.warp];
  return (w.alive & ~w.ready) >> f.lane & 1;
}

// "32 threads, (0,0,0) to (31,0,0), wait in __syncthreads at x.cu:12; …" for up to four call sites.
static void describe_waiting(const Block& b, char* out, size_t size) {
  bool seen[kMaxThreads] = {};
  size_t used = 0;
  out[0] = 0;
  for (unsigned i = 0, sites = 0; i < b.threads; i++) {
    const Fiber& f = b.fibers[i];
    if (seen[i] || !waits(b, f)) continue;
    if (sites++ == 4 || used + 256 > size) {
      snprintf(out + used, size - used, "; …");
      return;
    }
    unsigned count = 0, last = i;
    for (unsigned j = i; j < b.threads; j++) {
      if (!waits(b, b.fibers[j]) || !same_place(b.fibers[j].place, f.place)) continue;
      seen[j] = true, count++, last = j;
    }
    const dim3 &s = f.thread, &e = b.fibers[last].thread;
    used += snprintf(out + used, size - used, "%s", used ? "; " : "");
    if (count == 1)
      used += snprintf(out + used, size - used, "thread (%u,%u,%u) waits", s.x, s.y, s.z);
    else
      used += snprintf(out + used, size - used, "%u threads, (%u,%u,%u) to (%u,%u,%u), wait", count, s.x, s.y,
                       s.z, e.x, e.y, e.z);
    used += snprintf(out + used, size - used, " in %s at %s:%d", f.place->operation, base_name(f.place->file),
                     f.place->line);
  }
}

}  // namespace simt
