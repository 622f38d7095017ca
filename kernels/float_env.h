// The floating-point environment that every computing thread needs (contract section 1).
//
// Compiler builtins and not intrinsics: <immintrin.h> would be half the compile time of a small kernel.
#pragma once

#include <cstdint>

// Clears flush-to-zero and denormals-are-zero and sets round-to-nearest for its scope: a thread
// inherits these from whoever made it, and other libraries set them.
class FloatEnv {
 public:
#if defined(__x86_64__)
  FloatEnv() : saved_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr((saved_ & ~0xE040u) | 0x1F80u);
    asm volatile("" ::: "memory");  // no load of an operand may move above the switch
  }
  ~FloatEnv() {
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnv() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ & ~((1ull << 24) | (3ull << 22) | (1ull << 19))) : "memory");
  }
  ~FloatEnv() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#endif
};
