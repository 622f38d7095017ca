// The diagnostics that change attention's arithmetic, on the cpu device: each gives the bits of its .cu
// (attention_online.cu, attention_diagnostics.cu), whose heads say what it computes. Plain loops over
// one row and head at a time; none of them is a default.
//
//   crucible_attention_online       per tile of `keys` keys: running maximum, sum and output
//   crucible_attention_diagnostics  kind 1 split sum, 2 contracted, 3 tf32
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/pool.h"
#include "cpu/scalar.h"

namespace {

constexpr int64_t kPage = 16;
constexpr int64_t kSplitSum = 1, kContracted = 2, kTf32 = 3;

struct Call {
  const float *q, *kpool, *vpool;
  const int32_t* tables;
  int64_t stride;
  const int32_t* desc;
  int64_t S, layer, layers, Hq, Hkv, D;
  float* out;

  float scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(D))); }
};

// One row and head: its query, its history of L positions, where its output goes.
struct Row {
  const float* q;
  float* out;
  const Call& a;
  const int32_t* table;
  int64_t kv_head, L;

  const float* at(const float* pool, int64_t j) const {
    const int64_t slot = (int64_t{table[j / kPage]} * a.layers + a.layer) * kPage + j % kPage;
    return pool + (slot * a.Hkv + kv_head) * a.D;
  }
};

// body(row) for every row and head that a segment names.
template <class F>
void each_row(const Call& a, const F& body) {
  for (int64_t s = 0; s < a.S; s++) {
    const int32_t* d = a.desc + 4 * s;
    parallel_for(d[1] * a.Hq, [&](int64_t i) {
      const int64_t row = i / a.Hq, head = i % a.Hq, at = ((d[0] + row) * a.Hq + head) * a.D;
      body(Row{a.q + at, a.out + at, a, a.tables + d[3] * a.stride, head / (a.Hq / a.Hkv),
               int64_t{d[2]} + row + 1});
    });
  }
}

float round_tf32(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  u = (u + 0x1000u) & 0xffffe000u;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// tree32 of the per-lane chains, without the scale.
template <class Input>
float chains(const Row& r, int64_t j, const Input& input) {
  const float* k = r.at(r.a.kpool, j);
  float p[32];
  for (int i = 0; i < 32; i++) p[i] = input(r.q[i]) * input(k[i]);
  for (int64_t d = 32; d < r.a.D; d += 32) {
    for (int i = 0; i < 32; i++) p[i] = std::fma(input(r.q[d + i]), input(k[d + i]), p[i]);
  }
  return tree32(p);
}

float same(float x) { return x; }

void online_row(const Row& r, int64_t keys) {
  const int64_t D = r.a.D;
  const float scale = r.a.scale();
  std::vector<float> s(keys), acc(D, 0.0f);
  float m = -INFINITY, l = 0.0f;
  for (int64_t base = 0; base < r.L; base += keys) {
    const int64_t n = std::min(keys, r.L - base);
    float next = m;
    for (int64_t j = 0; j < n; j++) {
      s[j] = chains(r, base + j, same) * scale;
      next = std::max(next, s[j]);
    }
    const float alpha = exp_nonpositive(m - next);
    float lanes[32] = {};
    for (int64_t j = 0; j < n; j++) {
      s[j] = exp_nonpositive(s[j] - next);
      lanes[j % 32] = lanes[j % 32] + s[j];
    }
    const float sum = tree32(lanes);
    l = l * alpha;
    l = l + sum;
    m = next;
    for (int64_t d = 0; d < D; d++) acc[d] = acc[d] * alpha;
    for (int64_t j = 0; j < n; j++) {
      const float* v = r.at(r.a.vpool, base + j);
      for (int64_t d = 0; d < D; d++) acc[d] = std::fma(s[j], v[d], acc[d]);
    }
  }
  for (int64_t d = 0; d < D; d++) r.out[d] = acc[d] / l;
}

template <class Input>
void diagnostic_row(const Row& r, int64_t kind, const Input& input) {
  const int64_t D = r.a.D, split = kind == kSplitSum ? 4 : 1;
  const float scale = r.a.scale();
  std::vector<float> s(r.L);
  float m = -INFINITY;
  for (int64_t j = 0; j < r.L; j++) {
    s[j] = chains(r, j, input);
    m = std::max(m, s[j] * scale);
  }
  float lanes[256] = {};
  for (int64_t j = 0; j < r.L; j++) {
    const float product = s[j] * scale;
    s[j] = exp_nonpositive(kind == kContracted ? std::fma(s[j], scale, -m) : product - m);
    lanes[j % 256] = lanes[j % 256] + s[j];
  }
  const float inverse = 1.0f / finish_sum256(lanes);
  std::vector<float> acc(split * D, 0.0f);
  for (int64_t j = 0; j < r.L; j++) {
    const float *v = r.at(r.a.vpool, j), e = input(s[j]);
    float* chain = acc.data() + j % split * D;
    for (int64_t d = 0; d < D; d++) chain[d] = std::fma(e, input(v[d]), chain[d]);
  }
  for (int64_t d = 0; d < D; d++) {
    float o = acc[d];
    if (split == 4) {
      const float low = acc[d] + acc[D + d], high = acc[2 * D + d] + acc[3 * D + d];
      o = low + high;
    }
    r.out[d] = o * inverse;
  }
}

}  // namespace

// Arguments as crucible_attention_reference, then the keys of a tile.
CRUCIBLE_API void crucible_attention_online(const float* q, const float* kpool, const float* vpool,
                                            const int32_t* tables, int64_t stride, const int32_t* desc,
                                            int64_t S, int64_t layer, int64_t layers, int64_t Hq, int64_t Hkv,
                                            int64_t D, float* out, int64_t keys) {
  const Call a{q, kpool, vpool, tables, stride, desc, S, layer, layers, Hq, Hkv, D, out};
  each_row(a, [&](const Row& r) { online_row(r, keys); });
}

// Arguments as crucible_attention_reference, then the kind.
CRUCIBLE_API void crucible_attention_diagnostics(const float* q, const float* kpool, const float* vpool,
                                                 const int32_t* tables, int64_t stride, const int32_t* desc,
                                                 int64_t S, int64_t layer, int64_t layers, int64_t Hq,
                                                 int64_t Hkv, int64_t D, float* out, int64_t kind) {
  const Call a{q, kpool, vpool, tables, stride, desc, S, layer, layers, Hq, Hkv, D, out};
  each_row(a, [&](const Row& r) {
    if (kind == kTf32) {
      diagnostic_row(r, kind, round_tf32);
    } else {
      diagnostic_row(r, kind, same);
    }
  });
}
