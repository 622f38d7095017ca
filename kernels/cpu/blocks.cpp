// The small operations of a block (contract sections 2, 3, 6 and 7): embedding, RMSNorm, RoPE, K/V
// store, SwiGLU, residual; and exp, sigmoid and the trees by themselves, for conformance.
#include <algorithm>

#include "cpu/pool.h"
#include "cpu/rows.h"

namespace {

constexpr int64_t kPage = 16;
constexpr int64_t kSmall = 1 << 14;  // elements below which sharing costs more than it gains

// out[i] = f(i) for i in [0, n), eight at a time; load and store handle the ragged end.
template <class F>
void elementwise(int64_t n, float* out, const F& f) {
  constexpr int64_t kChunk = 4096;
  parallel_for((n + kChunk - 1) / kChunk,
               [&](int64_t c) {
                 const int64_t end = std::min(n, (c + 1) * kChunk);
                 int64_t i = c * kChunk;
                 for (; i + 8 <= end; i += 8)
                   f([i](const float* p) { return f8::load(p + i); }).store(out + i);
                 if (i < end) {
                   const auto part = [i, end](const float* p) { return load_part(p + i, end - i); };
                   store_part(f(part), out + i, end - i);
                 }
               },
               n < kSmall);
}

}  // namespace

CRUCIBLE_API void crucible_exp(const float* x, float* y, int64_t n) {
  elementwise(n, y, [&](const auto& at) { return exp_nonpositive(at(x)); });
}

CRUCIBLE_API void crucible_sigmoid(const float* x, float* y, int64_t n) {
  elementwise(n, y, [&](const auto& at) { return sigmoid(at(x)); });
}

// p[n][32] -> y[n].
CRUCIBLE_API void crucible_tree32(const float* p, float* y, int64_t n) {
  parallel_for(n, [&](int64_t i) {
    float lanes[32];
    std::memcpy(lanes, p + 32 * i, sizeof lanes);
    y[i] = tree32(lanes);
  });
}

// Sequence i is x[offsets[i] .. offsets[i + 1]).
CRUCIBLE_API void crucible_sum256(const float* x, const int32_t* offsets, float* y, int64_t n) {
  parallel_for(n, [&](int64_t i) { y[i] = reduce256<false>(x + offsets[i], offsets[i + 1] - offsets[i]); });
}

CRUCIBLE_API void crucible_sumsq256(const float* x, const int32_t* offsets, float* y, int64_t n) {
  parallel_for(n, [&](int64_t i) { y[i] = reduce256<true>(x + offsets[i], offsets[i + 1] - offsets[i]); });
}

// x[T][N], w[N] -> y[T][N]; y may be x.
CRUCIBLE_API void crucible_rmsnorm(const float* x, const float* w, float* y, int64_t T, int64_t N,
                                   float eps) {
  parallel_for(T, [&](int64_t t) { rmsnorm_row(x + t * N, w, y + t * N, N, eps); }, T * N < kSmall);
}

// gate and up are rows of N in a buffer whose rows are `stride` apart; y[T][N].
CRUCIBLE_API void crucible_swiglu(const float* gate, const float* up, float* y, int64_t T, int64_t N,
                                  int64_t stride) {
  parallel_for(
      T, [&](int64_t t) { swiglu_row(gate + t * stride, up + t * stride, y + t * N, N); }, T * N < kSmall);
}

// z = x + y; z may be x or y.
CRUCIBLE_API void crucible_residual(const float* x, const float* y, float* z, int64_t n) {
  elementwise(n, z, [&](const auto& at) { return at(x) + at(y); });
}

CRUCIBLE_API void crucible_embed_f32(const float* table, const int32_t* ids, float* y, int64_t T, int64_t N) {
  for (int64_t t = 0; t < T; t++) std::memcpy(y + t * N, table + ids[t] * N, N * 4);
}

// The dequantized row q*s of an int8 table.
CRUCIBLE_API void crucible_embed_i8(const int8_t* q, const float* s, const int32_t* ids, float* y, int64_t T,
                                    int64_t N) {
  parallel_for(
      T,
      [&](int64_t t) {
        for (int64_t i = 0; i < N; i++) y[t * N + i] = static_cast<float>(q[ids[t] * N + i]) * s[ids[t]];
      },
      T * N < kSmall);
}

// x[T][H*D] rotated by the table rows cos[position][D/2], sin[position][D/2]; y may be x. Rows of x
// and y are `stride` apart, so that q and k may lie inside a fused qkv buffer.
CRUCIBLE_API void crucible_rope_strided(const float* x, const int32_t* positions, const float* cos,
                                        const float* sin, float* y, int64_t T, int64_t H, int64_t D,
                                        int64_t stride) {
  const int64_t half = D / 2;
  parallel_for(
      T,
      [&](int64_t t) {
        const float *c = cos + positions[t] * half, *s = sin + positions[t] * half;
        for (int64_t h = 0; h < H; h++) {
          const int64_t at = t * stride + h * D;
          rope_head(x + at, c, s, y + at, D);
        }
      },
      T * H * D < kSmall);
}

CRUCIBLE_API void crucible_rope(const float* x, const int32_t* positions, const float* cos, const float* sin,
                                float* y, int64_t T, int64_t H, int64_t D) {
  crucible_rope_strided(x, positions, cos, sin, y, T, H, D, H * D);
}

// Rows of k and v ([T], `row_stride` apart, kv_dim wide) to their pages: contract section 5.
CRUCIBLE_API void crucible_store_kv_strided(const float* k, const float* v, float* kpool, float* vpool,
                                            const int32_t* tables, int64_t table_stride, const int32_t* desc,
                                            int64_t S, int64_t layer, int64_t layers, int64_t kv_dim,
                                            int64_t row_stride) {
  for (int64_t s = 0; s < S; s++) {
    const int32_t *d = desc + 4 * s, *table = tables + d[3] * table_stride;
    parallel_for(
        d[1],
        [&](int64_t i) {
          const int64_t position = d[2] + i, row = d[0] + i, page = table[position / kPage];
          const int64_t slot = ((page * layers + layer) * kPage + position % kPage) * kv_dim;
          std::memcpy(kpool + slot, k + row * row_stride, kv_dim * 4);
          std::memcpy(vpool + slot, v + row * row_stride, kv_dim * 4);
        },
        d[1] * kv_dim < kSmall);
  }
}

CRUCIBLE_API void crucible_store_kv(const float* k, const float* v, float* kpool, float* vpool,
                                    const int32_t* tables, int64_t stride, const int32_t* desc, int64_t S,
                                    int64_t layer, int64_t layers, int64_t kv_dim) {
  crucible_store_kv_strided(k, v, kpool, vpool, tables, stride, desc, S, layer, layers, kv_dim, kv_dim);
}
