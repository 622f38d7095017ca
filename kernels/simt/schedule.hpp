// Who runs next, and when a barrier or a warp collective lets its threads go.
//
// Threads switch only where they wait, the same warp first, so a block's run is the same every time.
// A block in which nobody can run and somebody waits has deadlocked: that is a report, not a hang.
#pragma once

#include "block.hpp"

namespace simt {

static inline void make_ready(Block& b, unsigned warp, uint32_t lanes) {
  b.warps[warp].ready |= lanes;
  b.ready_warps |= 1u << warp;
}

static inline void make_waiting(Block& b, const Fiber* f) {
  Warp& w = b.warps[f->warp];
  w.ready &= ~(1u << f->lane);
  if (!w.ready) b.ready_warps &= ~(1u << f->warp);
}

// The lowest set bit at or after `start`, going around.
static inline unsigned next_bit(uint32_t bits, unsigned start) {
  uint32_t after = bits & (~0u << (start & 31));
  return __builtin_ctz(after ? after : bits);
}

static inline Fiber* next_ready(Block& b, const Fiber* me) {
  unsigned warp = me->warp;
  if (b.warps[warp].ready) return &b.fibers[warp * kWarp + next_bit(b.warps[warp].ready, me->lane + 1)];
  if (!b.ready_warps) return nullptr;
  warp = next_bit(b.ready_warps, warp + 1);
  return &b.fibers[warp * kWarp + __builtin_ctz(b.warps[warp].ready)];
}

[[noreturn, gnu::cold, gnu::noinline]] static void deadlock(const Block& b) {
  char waiting[1536];
  describe_waiting(b, waiting, sizeof waiting);
  const Fiber* first = b.fibers;
  while (!waits(b, *first)) first++;
  fail(Fault::deadlock, first, "deadlock: %u of %u threads have exited, %s", b.threads - b.alive, b.threads,
       waiting);
}

// Runs others until somebody makes the caller ready again.
static inline void wait(Fiber* me) {
  Fiber* next = next_ready(*me->block, me);
  if (!next) deadlock(*me->block);
  resume(next);
}

static inline void release(Block& b, Barrier& barrier) {
  b.spins = 0;
  for (unsigned w = 0; w < b.warp_count; w++) {
    if (barrier.lanes[w]) make_ready(b, w, barrier.lanes[w]);
    barrier.lanes[w] = 0;
  }
  barrier.arrived = barrier.ones = barrier.expected = 0;
}

static inline void check_block_barrier(Block& b) {
  if (b.all.arrived && b.all.arrived == b.alive) {
    b.counted = b.all.ones;
    b.any_or_all = (b.all.ones ? 1 : 0) | (b.all.ones == b.all.arrived ? 2 : 0);
    release(b, b.all);
  }
}

// The barrier of all threads that have not exited. Every caller must stand at the same line: CUDA
// leaves anything else undefined even where the counts happen to agree.
static inline void block_barrier(bool predicate, const Place* place) {
  Fiber* me = current;
  Block& b = *me->block;
  me->place = place;
  if (b.all.arrived == 0) {
    b.all.place = place;
  } else if (!same_place(b.all.place, place)) {
    fail(Fault::divergent_barrier, me,
         "divergent barrier: thread (%u,%u,%u) reaches %s at %s:%d while others wait at %s:%d", me->thread.x,
         me->thread.y, me->thread.z, place->operation, base_name(place->file), place->line,
         base_name(b.all.place->file), b.all.place->line);
  }
  make_waiting(b, me);
  b.all.lanes[me->warp] |= 1u << me->lane;
  b.all.arrived++;
  b.all.ones += predicate;
  check_block_barrier(b);
  if (!(b.warps[me->warp].ready >> me->lane & 1)) wait(me);
}

// Barrier `id` of `count` threads; `arrive` only counts the caller (PTX bar.sync and bar.arrive).
static inline void named_barrier(unsigned id, unsigned count, bool arrive, const Place* place) {
  Fiber* me = current;
  Block& b = *me->block;
  me->place = place;
  if (id >= kNamedBarriers || count == 0 || count % kWarp || count > kMaxThreads)
    fail(Fault::misuse, me, "%s(%u, %u) at %s:%d: the id must be below %u and the count a multiple of %u",
         place->operation, id, count, base_name(place->file), place->line, kNamedBarriers, kWarp);
  Barrier& barrier = b.named[id];
  if (barrier.arrived && barrier.expected != count)
    fail(Fault::divergent_barrier, me,
         "divergent barrier: thread (%u,%u,%u) expects %u threads at barrier %u, %s:%d, others expect %u",
         me->thread.x, me->thread.y, me->thread.z, count, id, base_name(place->file), place->line,
         barrier.expected);
  barrier.expected = count;
  barrier.arrived++;
  if (!arrive) {
    make_waiting(b, me);
    barrier.lanes[me->warp] |= 1u << me->lane;
  }
  if (barrier.arrived == count) release(b, barrier);
  if (!arrive && !(b.warps[me->warp].ready >> me->lane & 1)) wait(me);
}

// All lanes of `group` have arrived: compute what each takes away. A lane that was named but has
// exited is not waited for (as in PTX), but its value must not be read.
static inline void complete(Block& b, unsigned warp, uint32_t group) {
  Warp& w = b.warps[warp];
  unsigned first = __builtin_ctz(group);
  Collective kind = w.lanes[first].kind;
  if (kind == Collective::shuffle) {
    for (uint32_t rest = group; rest; rest &= rest - 1) {
      unsigned lane = __builtin_ctz(rest), source = w.lanes[lane].source;
      if (!(group >> source & 1)) {
        const Fiber* f = &b.fibers[warp * kWarp + lane];
        const char* why = !(w.lanes[first].mask >> source & 1) ? "is not in the mask"
                          : warp * kWarp + source >= b.threads ? "does not exist"
                                                               : "has exited";
        fail(Fault::inactive_lane, f, "thread (%u,%u,%u) reads lane %u of its warp in %s at %s:%d, which %s",
             f->thread.x, f->thread.y, f->thread.z, source, f->place->operation, base_name(f->place->file),
             f->place->line, why);
      }
      w.lanes[lane].result = w.lanes[source].value;
    }
  } else if (kind != Collective::sync) {
    uint32_t ones = 0;
    for (uint32_t rest = group; rest; rest &= rest - 1)
      if (w.lanes[__builtin_ctz(rest)].value) ones |= rest & -rest;
    uint64_t result = kind == Collective::ballot ? ones : kind == Collective::any ? ones != 0 : ones == group;
    for (uint32_t rest = group; rest; rest &= rest - 1) w.lanes[__builtin_ctz(rest)].result = result;
  }
  b.spins = 0;
  w.waiting &= ~group;
  w.claimed &= ~w.lanes[first].mask;
  make_ready(b, warp, group);
}

// Whether a lane with this mask belongs to the group that is waiting for it, or touches none.
static inline bool joins(const Warp& w, uint32_t mask, uint32_t bit, Collective kind) {
  const uint32_t others = w.waiting & mask;
  if (!others) return !(w.claimed & bit);
  const Warp::Lane& other = w.lanes[__builtin_ctz(others)];
  return other.mask == mask && other.kind == kind;
}

[[noreturn, gnu::cold, gnu::noinline]] static void mismatch(const Warp& w, const Fiber* me, uint32_t mask,
                                                            const Place* place) {
  for (uint32_t rest = w.waiting;; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    if (!((1u << lane | w.lanes[lane].mask) & (mask | 1u << me->lane))) continue;
    const Fiber& f = me->block->fibers[me->warp * kWarp + lane];
    fail(Fault::mask_mismatch, me,
         "thread (%u,%u,%u) calls %s with mask %08x at %s:%d while thread (%u,%u,%u) waits in %s with mask "
         "%08x at %s:%d",
         me->thread.x, me->thread.y, me->thread.z, place->operation, mask, base_name(place->file),
         place->line, f.thread.x, f.thread.y, f.thread.z, f.place->operation, w.lanes[lane].mask,
         base_name(f.place->file), f.place->line);
  }
}

// A warp collective over `mask`: hands in `value`, returns this lane's result.
static inline uint64_t collective(Collective kind, uint32_t mask, uint64_t value, unsigned source,
                                  const Place* place) {
  Fiber* me = current;
  Block& b = *me->block;
  Warp& w = b.warps[me->warp];
  const uint32_t bit = 1u << me->lane;
  me->place = place;
  if (!(mask & bit))
    fail(Fault::mask_mismatch, me, "thread (%u,%u,%u) is not in the mask %08x of its own %s at %s:%d",
         me->thread.x, me->thread.y, me->thread.z, mask, place->operation, base_name(place->file),
         place->line);
  if ((w.claimed | w.waiting) & (mask | bit) && !joins(w, mask, bit, kind)) mismatch(w, me, mask, place);
  Warp::Lane& mine = w.lanes[me->lane];
  mine.value = value;
  mine.mask = mask;
  mine.kind = kind;
  mine.source = static_cast<uint8_t>(source);
  w.waiting |= bit;
  w.claimed |= mask;
  make_waiting(b, me);
  const uint32_t group = mask & w.alive;
  if ((w.waiting & group) == group) {
    complete(b, me->warp, group);
  } else {
    wait(me);
  }
  return mine.result;
}

// Lets other threads run when they can: called from atomics, on which a kernel may spin.
static inline void spin(const Place* place) {
  Fiber* me = current;
  Block& b = *me->block;
  if ((++b.spins & 63) != 0) return;
  me->place = place;
  if (b.spins > kSpinLimit)
    fail(Fault::spin, me, "thread (%u,%u,%u) spins on %s at %s:%d and nobody in the block moves on",
         me->thread.x, me->thread.y, me->thread.z, place->operation, base_name(place->file), place->line);
  b.ready_warps |= 1u << me->warp;
  const unsigned warp = next_bit(b.ready_warps, me->warp + 1);
  Fiber* next = &b.fibers[warp * kWarp + next_bit(b.warps[warp].ready, me->lane + 1)];
  resume(next);
}

// The end of a thread may be what its block barrier or its warp's collective waited for.
static void exit_thread() {
  Fiber* me = current;
  Block& b = *me->block;
  Warp& w = b.warps[me->warp];
  b.spins = 0;
  b.alive--;
  w.alive &= ~(1u << me->lane);
  make_waiting(b, me);
  check_block_barrier(b);
  for (uint32_t rest = w.waiting; rest;) {
    const uint32_t mask = w.lanes[__builtin_ctz(rest)].mask, group = mask & w.alive;
    if ((w.waiting & group) == group) complete(b, me->warp, group);
    rest &= ~mask;
  }
  if (b.alive == 0) leave_block();
  Fiber* next = next_ready(b, me);
  if (!next) wait(me);  // reports the deadlock of those that are left
  current = next;
  switch_context(me->context, next->context, true);
  __builtin_unreachable();
}

static void fiber_entry() {
  entered_fiber(current->block->os_thread);
  current->block->body(current->block->argument);
  exit_thread();
  __builtin_unreachable();
}

}  // namespace simt
