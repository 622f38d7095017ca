// What lies between the q/k/v layer and attention: head norms, RoPE, K and V to their pages (contract
// sections 5 and 7), each row by one thread.
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace {

constexpr int64_t kPage = 16, kFew = 1 << 12;

}  // namespace

// qkv[T][(Hq + 2 Hkv)*D] -> q[T][Hq*D], k and v[T][Hkv*D], and the pages that desc int32[S][4] names;
// q_norm and k_norm [D] or both null. A row of no segment is rotated and not stored.
CRUCIBLE_API void crucible_rope_store(const float* qkv, const int32_t* positions, const float* cos,
                                      const float* sin, const float* q_norm, const float* k_norm, float eps,
                                      float* kpool, float* vpool, const int32_t* tables, int64_t stride,
                                      const int32_t* desc, int64_t S, int64_t layer, int64_t layers,
                                      int64_t Hq, int64_t Hkv, int64_t D, float* q, float* k, float* v,
                                      int64_t T) {
  const int64_t kv_dim = Hkv * D, width = Hq * D + 2 * kv_dim;
  thread_local std::vector<int64_t> slots;  // where each row's K and V go in the pools
  slots.assign(T, -1);
  for (int64_t s = 0; s < S; s++) {
    const int32_t *d = desc + 4 * s, *table = tables + d[3] * stride;
    for (int64_t i = 0; i < d[1]; i++) {
      const int64_t position = int64_t{d[2]} + i, page = table[position / kPage];
      slots[d[0] + i] = ((page * layers + layer) * kPage + position % kPage) * kv_dim;
    }
  }
  const int64_t* slot = slots.data();  // another thread's `slots` is another vector
  parallel_for(
      T,
      [&, slot](int64_t t) {
        const float *c = cos + positions[t] * (D / 2), *s = sin + positions[t] * (D / 2);
        const auto rotate = [&](const float* in, const float* norm, float* out, int64_t H) {
          for (int64_t h = 0; h < H; h++, in += D, out += D) {
            if (norm != nullptr) rmsnorm_row(in, norm, out, D, eps);
            rope_head(norm != nullptr ? out : in, c, s, out, D);
          }
        };
        const float* row = qkv + t * width;
        rotate(row, q_norm, q + t * Hq * D, Hq);
        rotate(row + Hq * D, k_norm, k + t * kv_dim, Hkv);
        std::memcpy(v + t * kv_dim, row + Hq * D + kv_dim, kv_dim * sizeof *v);
        if (slot[t] < 0) return;
        std::memcpy(kpool + slot[t], k + t * kv_dim, kv_dim * sizeof *k);
        std::memcpy(vpool + slot[t], v + t * kv_dim, kv_dim * sizeof *v);
      },
      T * width < kFew);
}
