// Quantisation of the int8 linear layers (contract section 6): weights to 8 bits, rows to 16.
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace {

constexpr int64_t kFew = 1 << 12;  // numbers below which sharing costs more than it gains

}  // namespace

// w[N][K] -> q[N][K] and s[N]; a row that is not finite gets s = NaN.
CRUCIBLE_API void crucible_quantize_weight(const float* w, int8_t* q, float* s, int64_t N, int64_t K) {
  parallel_for(N, [&](int64_t n) {
    const float* row = w + n * K;
    float largest = 0.0f;
    bool finite = true;
    for (int64_t k = 0; k < K; k++) {
      largest = std::max(largest, std::fabs(row[k]));
      finite &= std::isfinite(row[k]);
    }
    if (!finite) {  // the caller refuses such a weight
      s[n] = float_of(0x7FC00000u);
      std::memset(q + n * K, 0, K);
      return;
    }
    float scale = largest / 127.0f;
    if (scale < 0x1p-126f) scale = 0.0f;
    s[n] = scale;
    for (int64_t k = 0; k < K; k++) {
      q[n * K + k] = scale == 0.0f ? 0 : static_cast<int8_t>(std::nearbyint(row[k] / scale));
    }
  });
}

// x[T][K] -> q[T][K] int16 and A[T].
CRUCIBLE_API void crucible_quantize_rows(const float* x, int16_t* q, float* A, int64_t T, int64_t K) {
  parallel_for(T, [&](int64_t t) { A[t] = quantize_row(x + t * K, q + t * K, K); }, T * K < kFew);
}

// rmsnorm(x[T][K], w, eps) quantized.
CRUCIBLE_API void crucible_rmsnorm_quantize(const float* x, const float* w, int16_t* q, float* A, int64_t T,
                                            int64_t K, float eps) {
  parallel_for(
      T,
      [&](int64_t t) {
        float* y = row_buffer(K);
        rmsnorm_row(x + t * K, w, y, K, eps);
        A[t] = quantize_row(y, q + t * K, K);
      },
      T * K < kFew);
}

// swiglu(gate, up) quantized; gate and up are the halves of each row of gate_up[T][2K].
CRUCIBLE_API void crucible_swiglu_quantize(const float* gate_up, int16_t* q, float* A, int64_t T, int64_t K) {
  parallel_for(
      T,
      [&](int64_t t) {
        float* y = row_buffer(K);
        const float* gate = gate_up + 2 * t * K;
        swiglu_row(gate, gate + K, y, K);
        A[t] = quantize_row(y, q + t * K, K);
      },
      T * K < kFew);
}
