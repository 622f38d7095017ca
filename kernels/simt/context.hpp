// One stack per CUDA thread, and the switch between two of them.
//
// x86-64 and aarch64 ELF systems swap callee-saved registers in a few instructions; everything else,
// or a build with -DSIMT_UCONTEXT, goes through ucontext, which is some twenty times slower because
// it enters the kernel for the signal mask.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(SIMT_UCONTEXT) && defined(__ELF__) && defined(__x86_64__)
#define SIMT_SWITCH_X86_64 1
#elif !defined(SIMT_UCONTEXT) && defined(__ELF__) && defined(__aarch64__)
#define SIMT_SWITCH_AARCH64 1
#else
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved state on the current stack, its address in *save, and resumes `to`.
#if defined(SIMT_SWITCH_X86_64) || defined(SIMT_SWITCH_AARCH64)
extern "C" void crucible_simt_switch(void** save, void* to);
#endif

#if defined(SIMT_SWITCH_X86_64)
// The resumed address is jumped to, not returned to: fibers never resume in call order, so the
// return predictor would miss every time.
asm(R"(
.text
.globl crucible_simt_switch
.hidden crucible_simt_switch
.type crucible_simt_switch,@function
crucible_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size crucible_simt_switch, .-crucible_simt_switch
)");
#elif defined(SIMT_SWITCH_AARCH64)
// `ret` and not `br`: a branch-protected build faults on an indirect branch to a return address.
asm(R"(
.text
.globl crucible_simt_switch
.hidden crucible_simt_switch
.type crucible_simt_switch,%function
crucible_simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size crucible_simt_switch, .-crucible_simt_switch
)");
#endif

namespace simt {

// An execution context: the OS thread's own stack (never prepared) or a fiber's.
struct Context {
#if defined(SIMT_SWITCH_X86_64) || defined(SIMT_SWITCH_AARCH64)
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
  char* bottom = nullptr;  // lowest address of the stack
  size_t size = 0;
#if defined(SIMT_ASAN)
  void* fake_stack = nullptr;
#endif
};

// Lets the next switch to `c` call entry() on its stack, starting `offset` bytes below the top.
static void prepare(Context& c, void (*entry)(), size_t offset) {
#if defined(SIMT_ASAN)
  // A fiber that was abandoned after a fault leaves its frames poisoned.
  __asan_unpoison_memory_region(c.bottom, c.size);
  c.fake_stack = nullptr;
#endif
#if defined(SIMT_SWITCH_X86_64)
  // Six registers, the address to jump to, and a null return address; the stack pointer at entry is
  // 8 modulo 16, as after a call.
  void** top = reinterpret_cast<void**>(c.bottom + c.size - offset);
  for (int i = 1; i <= 8; i++) top[-i] = nullptr;
  top[-2] = reinterpret_cast<void*>(entry);
  c.stack_pointer = top - 8;
#elif defined(SIMT_SWITCH_AARCH64)
  void** frame = reinterpret_cast<void**>(c.bottom + c.size - offset - 160);
  for (int i = 0; i < 20; i++) frame[i] = nullptr;
  frame[11] = reinterpret_cast<void*>(entry);  // x30
  c.stack_pointer = frame;
#else
  getcontext(&c.state);
  c.state.uc_stack.ss_sp = c.bottom;
  c.state.uc_stack.ss_size = c.size - offset;
  c.state.uc_link = nullptr;
  makecontext(&c.state, entry, 0);
#endif
}

// Leaves `from` for `to`; returns when something switches back. `last` when `from` never resumes.
static inline void switch_context(Context& from, Context& to, bool last) {
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
  (void)last;
#if defined(SIMT_SWITCH_X86_64) || defined(SIMT_SWITCH_AARCH64)
  crucible_simt_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.state, &to.state);
#endif
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// First thing that a fiber runs; `os_thread` learns its own stack from the sanitizer.
static inline void entered_fiber(Context& os_thread) {
  (void)os_thread;
#if defined(SIMT_ASAN)
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (os_thread.size == 0) {
    os_thread.bottom = static_cast<char*>(const_cast<void*>(bottom));
    os_thread.size = size;
  }
#endif
}

}  // namespace simt
