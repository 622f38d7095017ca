// Attention over paged K/V (contract sections 4 and 5), prefill, chunk and decode alike.
//
//   crucible_attention_reference  the plain row loop: one row and head after another, scalar trees
//   crucible_attention_tiled      the same bits: eight keys' score trees finish together, K and V
//                                 blocks of 64 keys stay in L1 for all rows and heads of an item
// In both, a row reads keys 0..P of its own request and nothing else.
#include <algorithm>
#include <vector>

#include "cpu/attention_pieces.h"
#include "cpu/pool.h"

namespace {

constexpr int64_t kPage = 16, kRows = 8;

struct Problem {
  const float *q, *kpool, *vpool;
  const int32_t* tables;
  int64_t stride;
  const int32_t* desc;
  int64_t layer, layers, Hq, Hkv, D;
  float* out;
  float scale;

  int64_t G() const { return Hq / Hkv; }
  // K or V row of position j of a request, KV head h.
  const float* key(const float* pool, const int32_t* table, int64_t j, int64_t h) const {
    const int64_t row = (int64_t{table[j / kPage]} * layers + layer) * kPage + j % kPage;
    return pool + row * Hkv * D + h * D;
  }
  const float* query(int64_t row, int64_t head) const { return q + (row * Hq + head) * D; }
  float* output(int64_t row, int64_t head) const { return out + (row * Hq + head) * D; }
};

// The real number 1/sqrt(D) rounded once: evaluated in f64, whose error cannot reach a rounding
// boundary of f32 for any D that is a multiple of 32 below 2^16 (checked by a test).
float scale_of(int64_t D) {
  FloatEnv env;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
}

float plain_score(const float* q, const float* k, int64_t D, float scale) {
  float p[32];
  for (int i = 0; i < 32; i++) p[i] = q[i] * k[i];
  for (int64_t d = 32; d < D; d += 32) {
    for (int i = 0; i < 32; i++) p[i] = std::fma(q[d + i], k[d + i], p[i]);
  }
  return tree32(p) * scale;
}

void plain_row(const Problem& a, const int32_t* table, int64_t row, int64_t head, int64_t L) {
  const int64_t h = head / a.G();
  std::vector<float> s(L);
  for (int64_t j = 0; j < L; j++) {
    s[j] = plain_score(a.query(row, head), a.key(a.kpool, table, j, h), a.D, a.scale);
  }
  const float m = *std::max_element(s.begin(), s.end());
  float lanes[256] = {};
  for (int64_t j = 0; j < L; j++) {
    s[j] = exp_nonpositive(s[j] - m);
    lanes[j % 256] = lanes[j % 256] + s[j];
  }
  const float inv = 1.0f / finish_sum256(lanes);
  std::vector<float> acc(a.D, 0.0f);
  for (int64_t j = 0; j < L; j++) {
    const float* v = a.key(a.vpool, table, j, h);
    for (int64_t d = 0; d < a.D; d++) acc[d] = std::fma(s[j], v[d], acc[d]);
  }
  for (int64_t d = 0; d < a.D; d++) a.output(row, head)[d] = acc[d] * inv;
}

// One item: up to kRows adjacent rows of a segment and `heads` query heads: one, all of a KV head, or all.
struct Item {
  int64_t segment, first_row, rows, first_head, heads;
};

// Where the K or V rows j0 .. j0+n-1 of a request are.
void find_rows(const Problem& a, const float* pool, const int32_t* table, int64_t j0, int64_t n, int64_t h,
               const float** row) {
  for (int64_t j = 0; j < n; j += kPage) {
    const float* first = a.key(pool, table, j0 + j, h);
    for (int64_t i = 0; i < std::min(kPage, n - j); i++) row[j + i] = first + i * a.Hkv * a.D;
  }
}

// Asks for `width` columns of keys 0..L-1, beginning with KV head h: in a decode step they come from memory,
// each for one row.
void fetch(const Problem& a, const float* pool, const int32_t* table, int64_t L, int64_t h, int64_t width) {
  for (int64_t j = 0; j < L; j += kPage) {
    const float* first = a.key(pool, table, j, h);
    for (int64_t i = 0; i < std::min(kPage, L - j); i++) {
      for (int64_t c = 0; c < width; c += 16) __builtin_prefetch(first + i * a.Hkv * a.D + c, 0, 2);
    }
  }
}

template <int kD>
void tiled_item(const Problem& a, const Item& item, std::vector<float>& scratch) {
  const int32_t *d = a.desc + 4 * item.segment, *table = a.tables + d[3] * a.stride;
  const int64_t D = a.D, row0 = d[0] + item.first_row;
  const int64_t L0 = int64_t{d[2]} + item.first_row + 1, Lmax = L0 + item.rows - 1;
  const int64_t capacity = (Lmax + kKeys - 1) / kKeys * kKeys, count = item.rows * item.heads;
  scratch.resize(count * (capacity + D + 1));
  float *scores = scratch.data(), *acc = scores + count * capacity, *inv = acc + count * D;
  const int64_t together = std::min(item.heads, a.G());  // heads that share a KV head
  const float* keys[kKeys];
  if (item.rows == 1) {
    const int64_t h = item.first_head / a.G(), width = item.heads / together * D;
    fetch(a, a.kpool, table, Lmax, h, width);
    fetch(a, a.vpool, table, Lmax, h, width);
  }
  for (int64_t j0 = 0; j0 < Lmax; j0 += kKeys) {
    const int64_t n = std::min(kKeys, Lmax - j0);
    for (int64_t first = 0; first < item.heads; first += together) {
      find_rows(a, a.kpool, table, j0, n, (item.first_head + first) / a.G(), keys);
      for (int64_t row = 0; row < item.rows; row++) {
        const int64_t visible = std::min(n, L0 + row - j0);
        if (visible <= 0) continue;
        for (int64_t head = first; head < first + together; head++) {
          float* s = scores + (row * item.heads + head) * capacity + j0;
          block_scores<kD>(a.query(row0 + row, item.first_head + head), keys, visible, D, a.scale, s);
        }
      }
    }
  }
  for (int64_t i = 0; i < count; i++) inv[i] = softmax(scores + i * capacity, L0 + i / item.heads);
  std::fill(acc, acc + count * D, 0.0f);
  for (int64_t j0 = 0; j0 < Lmax; j0 += kKeys) {
    const int64_t n = std::min(kKeys, Lmax - j0);
    for (int64_t first = 0; first < item.heads; first += together) {
      find_rows(a, a.vpool, table, j0, n, (item.first_head + first) / a.G(), keys);
      for (int64_t row = 0; row < item.rows; row++) {
        const int64_t visible = std::min(n, L0 + row - j0), i = row * item.heads + first;
        if (visible <= 0) continue;
        add_values(scores + i * capacity + j0, capacity, together, keys, visible, D, acc + i * D);
      }
    }
  }
  for (int64_t i = 0; i < count; i++) {
    float* out = a.output(row0 + i / item.heads, item.first_head + i % item.heads);
    const f8 factor = f8::set(inv[i]);
    for (int64_t c = 0; c < D; c += 8) (f8::load(acc + i * D + c) * factor).store(out + c);
  }
}

}  // namespace

// q[T][Hq][D], pools [pages][layers][16][Hkv*D], tables int32[requests][stride], desc int32[S][4] ->
// out[T][Hq][D]. Rows of `out` that no segment names are left as they are.
CRUCIBLE_API void crucible_attention_reference(const float* q, const float* kpool, const float* vpool,
                                               const int32_t* tables, int64_t stride, const int32_t* desc,
                                               int64_t S, int64_t layer, int64_t layers, int64_t Hq,
                                               int64_t Hkv, int64_t D, float* out) {
  const Problem a{q, kpool, vpool, tables, stride, desc, layer, layers, Hq, Hkv, D, out, scale_of(D)};
  for (int64_t s = 0; s < S; s++) {
    const int32_t* d = desc + 4 * s;
    parallel_for(d[1] * Hq, [&](int64_t i) {
      const int64_t row = i / Hq;
      plain_row(a, tables + d[3] * stride, d[0] + row, i % Hq, int64_t{d[2]} + row + 1);
    });
  }
}

CRUCIBLE_API void crucible_attention_tiled(const float* q, const float* kpool, const float* vpool,
                                           const int32_t* tables, int64_t stride, const int32_t* desc,
                                           int64_t S, int64_t layer, int64_t layers, int64_t Hq, int64_t Hkv,
                                           int64_t D, float* out) {
  const Problem a{q, kpool, vpool, tables, stride, desc, layer, layers, Hq, Hkv, D, out, scale_of(D)};
  int64_t T = 0, tiles = 0, work = 0;
  for (int64_t s = 0; s < S; s++) {
    T += desc[4 * s + 1];
    tiles += (desc[4 * s + 1] + kRows - 1) / kRows;
    work += desc[4 * s + 1] * (int64_t{desc[4 * s + 2]} + desc[4 * s + 1]);
  }
  // Few rows: a query head is an item of its own, so that all threads have work. Many requests with a row
  // each: a row is one item, since its K and V come from memory and their heads lie side by side.
  const int64_t enough = 4 * pool::threads();
  const int64_t heads = tiles * Hkv < enough ? 1 : tiles == T && tiles >= enough ? Hq : a.G();
  std::vector<Item> items;
  for (int64_t s = 0; s < S; s++) {
    for (int64_t r = 0; r < desc[4 * s + 1]; r += kRows) {
      for (int64_t h = 0; h < Hq; h += heads) {
        items.push_back({s, r, std::min<int64_t>(kRows, desc[4 * s + 1] - r), h, heads});
      }
    }
  }
  const auto length = [&](const Item& i) { return int64_t{desc[4 * i.segment + 2]} + i.first_row; };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Item& x, const Item& y) { return length(x) > length(y); });
  const auto run = D == 64 ? tiled_item<64> : D == 128 ? tiled_item<128> : tiled_item<0>;
  parallel_for(
      static_cast<int64_t>(items.size()),
      [&](int64_t i) {
        thread_local std::vector<float> scratch;
        run(a, items[i], scratch);
      },
      work * Hq * D < 1 << 14);
}
