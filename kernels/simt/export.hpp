// A kernel as three C symbols' worth of facts: what it takes, and a launch through void** arguments.
#pragma once

#include <type_traits>
#include <utility>

#include "launch.hpp"

namespace simt {

// One parameter: kind (f float, i signed, u unsigned, s struct) and size; a pointer is p (read and
// write) or P (read only) and its pointee.
template <class T>
static void describe_type(char* out, size_t size) {
  char kind = std::is_floating_point<T>::value ? 'f'
              : std::is_unsigned<T>::value     ? 'u'
              : std::is_integral<T>::value     ? 'i'
                                               : 's';
  snprintf(out, size, "%c%zu", kind, sizeof(T));
}

template <class T>
struct Describe {
  static void write(char* out, size_t size) { describe_type<std::remove_cv_t<T>>(out, size); }
};

template <class T>
struct Describe<T*> {
  static void write(char* out, size_t size) {
    *out = std::is_const<T>::value ? 'P' : 'p';
    if constexpr (std::is_void<T>::value) {
      snprintf(out + 1, size - 1, "s1");
    } else {
      describe_type<std::remove_cv_t<T>>(out + 1, size - 1);
    }
  }
};

template <class F>
struct Kernel;

template <class... A>
struct Kernel<void(A...)> {
  static const char* signature() {
    static char text[32 * (sizeof...(A) + 1)];
    char* out = text;
    ((Describe<std::remove_cv_t<A>>::write(out, 24), out += strlen(out), *out++ = ' '), ...);
    if (out != text) out[-1] = 0;
    return text;
  }
  struct Bound {
    void (*kernel)(A...);
    void** args;
  };
  template <size_t... I>
  static void call(const Bound& b, std::index_sequence<I...>) {
    b.kernel(*static_cast<std::remove_cv_t<A>*>(b.args[I])...);
  }
  static void body(void* bound) { call(*static_cast<Bound*>(bound), std::index_sequence_for<A...>()); }
  static void launch(void (*kernel)(A...), void** args, const unsigned* grid, const unsigned* block,
                     size_t shared, int workers, Report* report) {
    Bound bound{kernel, args};
    run(body, &bound, grid, block, shared, workers, report);
  }
};

}  // namespace simt

// Exports one kernel: its signature and a launch that takes pointers to the arguments.
#define SIMT_EXPORT(entry)                                                                                 \
  extern "C" __attribute__((visibility("default"))) const char* simt_signature() {                         \
    return simt::Kernel<decltype(entry)>::signature();                                                     \
  }                                                                                                        \
  extern "C" __attribute__((visibility("default"))) void simt_launch(void** args, const unsigned* grid,    \
                                                                     const unsigned* block, size_t shared, \
                                                                     int workers, simt::Report* report) {  \
    simt::Kernel<decltype(entry)>::launch(entry, args, grid, block, shared, workers, report);              \
  }
