// Logits in the order of their size (contract section 8).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/scalar.h"

enum Status : int64_t { kOk = 0, kBadLogit = 1, kNoFiniteLogit = 2, kOverflow = 3 };

// Larger z first: an unsigned key that ascends as z descends, with -0 equal to +0.
inline uint32_t descending_key(float z) {
  const uint32_t u = bits_of(z + 0.0f);  // -0 + +0 is +0
  return u & 0x80000000u ? u : ~(u | 0x80000000u);
}

struct Ranked {
  std::vector<uint64_t> order;  // key << 32 | id, ascending
  int32_t id(size_t r) const { return static_cast<int32_t>(order[r] & 0xFFFFFFFFu); }
};

// Sorts what ascends by id.
inline void sort_by_key(std::vector<uint64_t>& order) {
  constexpr int kBits = 11, kDigits = 1 << kBits, kPasses = 3;
  constexpr size_t kFew = 2048;  // below it, counting digits costs more than comparing
  if (order.size() < kFew) return std::sort(order.begin(), order.end());
  std::vector<uint32_t> place(kPasses * kDigits, 0);  // how many have a digit, then where the next one goes
  const auto digit = [](uint64_t v, int pass) { return v >> (32 + pass * kBits) & (kDigits - 1); };
  for (uint64_t v : order) {
    for (int pass = 0; pass < kPasses; pass++) place[pass * kDigits + digit(v, pass)]++;
  }
  std::vector<uint64_t> other(order.size());
  for (int pass = 0; pass < kPasses; pass++) {
    uint32_t at = 0, *start = place.data() + pass * kDigits;
    for (int d = 0; d < kDigits; d++) at += std::exchange(start[d], at);
    for (uint64_t v : order) other[start[digit(v, pass)]++] = v;
    order.swap(other);
  }
}

// The first k ids by z descending, id ascending. Only candidates of the buckets (top 12 bits of the
// key) that can reach rank k are sorted.
inline Ranked rank(const float* z, int64_t V, int64_t k) {
  Ranked r;
  if (k == V) {
    r.order.resize(V);
    for (int64_t i = 0; i < V; i++) {
      r.order[i] = uint64_t{descending_key(z[i])} << 32 | static_cast<uint64_t>(i);
    }
    sort_by_key(r.order);
    return r;
  }
  std::vector<uint32_t> keys(V);
  std::vector<int32_t> bucket(4096, 0);
  for (int64_t i = 0; i < V; i++) {
    keys[i] = descending_key(z[i]);
    bucket[keys[i] >> 20]++;
  }
  uint32_t last = 0;
  for (int64_t seen = bucket[0]; seen < k; seen += bucket[last]) last++;
  for (int64_t i = 0; i < V; i++) {
    if (keys[i] >> 20 <= last) r.order.push_back(uint64_t{keys[i]} << 32 | static_cast<uint64_t>(i));
  }
  sort_by_key(r.order);
  r.order.resize(k);
  return r;
}

inline Status check(const float* logits, int64_t V) {
  constexpr int32_t kInfinity = 0x7F800000;
  int32_t bad = 0, finite = 0;  // by their bits, which the compiler takes many at a time
  for (int64_t i = 0; i < V; i++) {
    const int32_t u = static_cast<int32_t>(bits_of(logits[i])), size = u & 0x7FFFFFFF;
    bad |= (size > kInfinity) | (u == kInfinity);
    finite |= size < kInfinity;
  }
  return bad ? kBadLogit : finite ? kOk : kNoFiniteLogit;
}

// Largest of n > 0 numbers that are not NaN.
inline float largest(const float* x, int64_t n) {
  f8 m = f8::set(x[0]);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) m = max(m, f8::load(x + i));
  float part[8], top = x[0];
  m.store(part);
  for (float v : part) top = std::max(top, v);
  for (; i < n; i++) top = std::max(top, x[i]);
  return top;
}
