// Contract sections 2 and 3 on the cpu device: exp, sigmoid and the fixed trees.
#pragma once

#include "cpu/vec.h"

// exp for x <= 0 (contract section 2), eight lanes at a time.
inline f8 exp_nonpositive(f8 x) {
  const f8 magic = f8::set(12582912.0f);
  const f8 t = fma(x, f8::set(0x1.715476p+0f), magic);  // its low bits hold the integer n
  const f8 n = t - magic;
  f8 r = fma(n, f8::set(-0.693145751953125f), x);
  r = fma(n, f8::set(-1.428606765330187e-06f), r);
  f8 p = f8::set(1.9875691500e-4f);
  p = fma(p, r, f8::set(1.3981999507e-3f));
  p = fma(p, r, f8::set(8.3334519073e-3f));
  p = fma(p, r, f8::set(4.1665795894e-2f));
  p = fma(p, r, f8::set(1.6666665459e-1f));
  p = fma(p, r, f8::set(5.0000001201e-1f));
  p = fma(p, r * r, r);
  p = p + f8::set(1.0f);
  return select_lt(x, f8::set(-87.0f), f8::zero(), add_exponent(p, t));
}

inline float exp_nonpositive(float x) {
  float out[8];
  exp_nonpositive(f8::set(x)).store(out);
  return out[0];
}

// sigmoid(g): both branches of the contract share e = exp(-|g|).
inline f8 sigmoid(f8 g) {
  const f8 one = f8::set(1.0f), e = exp_nonpositive(neg(abs(g)));
  return select_lt(g, f8::zero(), e, one) / (one + e);
}

// tree32 in place: steps 16, 8, 4, 2, 1.
inline float tree32(float* p) {
  for (int o = 16; o; o >>= 1) {
    for (int i = 0; i < o; i++) p[i] = p[i] + p[i + o];
  }
  return p[0];
}

// The second half of sum256: 256 lane sums to one number. Lanes from `used` on hold +0, as do their trees.
inline float finish_sum256(const float* lanes, int64_t used = 256) {
  f8 w[8];
  for (int v = 0; v < 8; v++) {
    const float* a = lanes + 32 * v;
    w[v] = f8::zero();
    if (32 * v < used) {  // steps 16 and 8 of each tree32; finish_trees does the others
      w[v] = (f8::load(a) + f8::load(a + 16)) + (f8::load(a + 8) + f8::load(a + 24));
    }
  }
  float p[8];
  (finish_trees(w) + f8::zero()).store(p);  // the last tree32 adds its 24 lanes of +0
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// sum256 or, with kSquares, sumsq256 of x[0..n-1].
template <bool kSquares>
inline float reduce256(const float* x, int64_t n) {
  float lanes[256] = {};
  for (int64_t base = 0; base < n; base += 256) {
    const int64_t m = n - base < 256 ? n - base : 256;
    int64_t t = 0;
    for (; t + 8 <= m; t += 8) {
      const f8 a = f8::load(lanes + t), v = f8::load(x + base + t);
      (kSquares ? fma(v, v, a) : a + v).store(lanes + t);
    }
    if (t < m) {  // the other lanes receive +0 or 0*0 and were never -0, so they keep their bits
      const f8 a = f8::load(lanes + t), v = load_part(x + base + t, m - t);
      store_part(kSquares ? fma(v, v, a) : a + v, lanes + t, m - t);
    }
  }
  return finish_sum256(lanes);
}
