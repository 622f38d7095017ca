// Atomics: real ones, because blocks run on several OS threads. Each lets other threads of the block
// run now and then, so that a spin on another thread's flag ends, or is reported (schedule.hpp).
#pragma once

namespace simt {

// Replaces *p by f(*p) and returns the old value.
template <class T, class F>
static inline T update(const Place* place, T* p, F f) {
  spin(place);
  T old;
  __atomic_load(p, &old, __ATOMIC_SEQ_CST);
  for (;;) {
    T next = f(old);
    if (__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return old;
  }
}

template <class T>
struct Same {  // keeps the operand out of template deduction, so that atomicAdd(&unsigned, 1) compiles
  using type = T;
};

#define SIMT_UPDATE(name, expression)                                           \
  template <class T>                                                            \
  static inline T name(const Place* place, T* p, typename Same<T>::type v) {    \
    return update(place, p, [v](T old) { return static_cast<T>(expression); }); \
  }
SIMT_UPDATE(atomic_add, old + v)
SIMT_UPDATE(atomic_sub, old - v)
SIMT_UPDATE(atomic_exchange, ((void)old, v))
SIMT_UPDATE(atomic_min, v < old ? v : old)
SIMT_UPDATE(atomic_max, old < v ? v : old)
SIMT_UPDATE(atomic_and, old& v)
SIMT_UPDATE(atomic_or, old | v)
SIMT_UPDATE(atomic_xor, old ^ v)
#undef SIMT_UPDATE

template <class T>
static inline T atomic_cas(const Place* place, T* p, typename Same<T>::type compare,
                           typename Same<T>::type v) {
  return update(place, p, [=](T old) { return old == compare ? v : old; });
}

}  // namespace simt

#define atomicAdd(...) simt::atomic_add(SIMT_PLACE("atomicAdd"), __VA_ARGS__)
#define atomicSub(...) simt::atomic_sub(SIMT_PLACE("atomicSub"), __VA_ARGS__)
#define atomicExch(...) simt::atomic_exchange(SIMT_PLACE("atomicExch"), __VA_ARGS__)
#define atomicMin(...) simt::atomic_min(SIMT_PLACE("atomicMin"), __VA_ARGS__)
#define atomicMax(...) simt::atomic_max(SIMT_PLACE("atomicMax"), __VA_ARGS__)
#define atomicAnd(...) simt::atomic_and(SIMT_PLACE("atomicAnd"), __VA_ARGS__)
#define atomicOr(...) simt::atomic_or(SIMT_PLACE("atomicOr"), __VA_ARGS__)
#define atomicXor(...) simt::atomic_xor(SIMT_PLACE("atomicXor"), __VA_ARGS__)
#define atomicCAS(...) simt::atomic_cas(SIMT_PLACE("atomicCAS"), __VA_ARGS__)
