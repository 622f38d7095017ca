// Linear layer in f32 (contract section 6): y[t][n] = sum over K blocks of 256, each block an
// ascending fma chain from +0; bias last.
//
// Weights are packed [ceil(N/16)][K][16], so a panel of 16 outputs is one contiguous stream. A
// micro-kernel holds `Rows` x `Panels` accumulators in registers; lanes are outputs, so every tile
// shape has the same bits. K is never padded (fma(0, 0, -0) is +0); N is, with outputs nobody reads.
//   few rows: several panels at once, one pass over the weights at memory speed
//   many rows: one K block of one panel stays in L1 while all rows of a chunk pass over it
#include <algorithm>

#include "cpu/pool.h"
#include "cpu/vec.h"

namespace {

constexpr int64_t kPanel = 16, kBlock = 256;
constexpr int kVectors = kPanel / fw::W;  // vectors in a panel
#if defined(CRUCIBLE_AVX512)
constexpr int kTileRows = 12, kTilePanels = 2;
#else
constexpr int kTileRows = 6, kTilePanels = 1;
#endif
constexpr int64_t kRowChunk = 96;  // rows whose 256-wide slice of x stays in L2 (96 KB)

int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }

// One K block [k0, k1) for Rows rows and Panels panels; adds to y unless it is the first block.
template <int Rows, int Panels>
void tile(const float* x, const float* w, float* y, int64_t N, int64_t K, int64_t k0, int64_t k1,
          const float* bias, int64_t valid) {
  constexpr int V = Panels * kVectors;
  fw acc[Rows][V];
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < V; v++) acc[r][v] = fw::zero();
  }
  for (int64_t k = k0; k < k1; k++) {
    fw b[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) b[v] = fw::load(w + ((v / kVectors) * K + k) * kPanel + v % kVectors * fw::W);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      const fw a = fw::set(x[r * K + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) acc[r][v] = fma(a, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < V; v++) {
      const int64_t column = v * fw::W, n = std::min<int64_t>(fw::W, valid - column);
      if (n <= 0) break;
      float part[fw::W], *out = y + r * N + column;
      if (n == fw::W && k0 > 0 && bias == nullptr) {
        (fw::load(out) + acc[r][v]).store(out);
        continue;
      }
      acc[r][v].store(part);
      for (int64_t i = 0; i < n; i++) {
        float s = k0 > 0 ? out[i] + part[i] : part[i];
        if (bias != nullptr) s = s + bias[column + i];
        out[i] = s;
      }
    }
  }
}

template <int Rows, int Panels>
void all_blocks(const float* x, const float* w, const float* bias, float* y, int64_t N, int64_t K,
                int64_t valid) {
  for (int64_t k0 = 0; k0 < K; k0 += kBlock) {
    const int64_t k1 = std::min(K, k0 + kBlock);
    tile<Rows, Panels>(x, w, y, N, K, k0, k1, k1 == K ? bias : nullptr, valid);
  }
}

// Panels handled together when only `Rows` rows exist: enough chains to hide the fma's latency.
template <int Rows>
void few_rows(const float* x, const float* packed, const float* bias, float* y, int64_t N, int64_t K) {
  constexpr int Panels = Rows == 1 ? 4 : Rows == 2 ? 3 : Rows == 3 ? 2 : 1;
  const int64_t panels = panels_of(N), groups = (panels + Panels - 1) / Panels;
  parallel_for(
      groups,
      [&](int64_t g) {
        int64_t p = g * Panels;
        const int64_t end = std::min(panels, p + Panels);
        const auto at = [&](int64_t panel) { return packed + panel * K * kPanel; };
        const auto bias_at = [&](int64_t panel) { return bias == nullptr ? bias : bias + panel * kPanel; };
        if (end - p == Panels) {
          all_blocks<Rows, Panels>(x, at(p), bias_at(p), y + p * kPanel, N, K, N - p * kPanel);
        } else {
          for (; p < end; p++) {
            all_blocks<Rows, 1>(x, at(p), bias_at(p), y + p * kPanel, N, K, N - p * kPanel);
          }
        }
      },
      N * K < 1 << 14);
}

// The remaining rows of a chunk, Rows at most: one recursion step per row count.
template <int Rows, int Panels>
void tail_rows(int64_t rows, const float* x, const float* w, float* y, int64_t N, int64_t K, int64_t k0,
               int64_t k1, const float* bias, int64_t valid) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return tile<Rows, Panels>(x, w, y, N, K, k0, k1, bias, valid);
    tail_rows<Rows - 1, Panels>(rows, x, w, y, N, K, k0, k1, bias, valid);
  }
}

template <int Panels>
void chunk(const float* x, const float* w, const float* bias, float* y, int64_t rows, int64_t N, int64_t K,
           int64_t valid) {
  for (int64_t k0 = 0; k0 < K; k0 += kBlock) {
    const int64_t k1 = std::min(K, k0 + kBlock);
    const float* last = k1 == K ? bias : nullptr;
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      tile<kTileRows, Panels>(x + r * K, w, y + r * N, N, K, k0, k1, last, valid);
    }
    tail_rows<kTileRows - 1, Panels>(rows - r, x + r * K, w, y + r * N, N, K, k0, k1, last, valid);
  }
}

void many_rows(const float* x, const float* packed, const float* bias, float* y, int64_t T, int64_t N,
               int64_t K) {
  const int64_t panels = panels_of(N), groups = (panels + kTilePanels - 1) / kTilePanels;
  for (int64_t row = 0; row < T; row += kRowChunk) {
    const int64_t rows = std::min(kRowChunk, T - row);
    parallel_for(groups, [&](int64_t g) {
      const int64_t p = g * kTilePanels;
      const float *w = packed + p * K * kPanel, *b = bias == nullptr ? bias : bias + p * kPanel;
      float* out = y + row * N + p * kPanel;
      if (panels - p >= kTilePanels) {
        chunk<kTilePanels>(x + row * K, w, b, out, rows, N, K, N - p * kPanel);
      } else {
        chunk<1>(x + row * K, w, b, out, rows, N, K, N - p * kPanel);
      }
    });
  }
}

}  // namespace

// Elements of the packed form of w[N][K].
CRUCIBLE_API int64_t crucible_packed_f32_size(int64_t N, int64_t K) { return panels_of(N) * kPanel * K; }

CRUCIBLE_API void crucible_pack_f32(const float* w, float* packed, int64_t N, int64_t K) {
  parallel_for(panels_of(N), [&](int64_t p) {
    float* out = packed + p * K * kPanel;
    const int64_t valid = std::min(kPanel, N - p * kPanel);
    for (int64_t k = 0; k < K; k++) {
      for (int64_t i = 0; i < kPanel; i++) out[k * kPanel + i] = i < valid ? w[(p * kPanel + i) * K + k] : 0.0f;
    }
  });
}

// x[T][K], packed w, bias[N] or null -> y[T][N].
CRUCIBLE_API void crucible_linear_f32(const float* x, const float* packed, const float* bias, float* y,
                                      int64_t T, int64_t N, int64_t K) {
  switch (T) {
    case 0: return;
    case 1: return few_rows<1>(x, packed, bias, y, N, K);
    case 2: return few_rows<2>(x, packed, bias, y, N, K);
    case 3: return few_rows<3>(x, packed, bias, y, N, K);
    case 4: return few_rows<4>(x, packed, bias, y, N, K);
    default: return many_rows(x, packed, bias, y, T, N, K);
  }
}
