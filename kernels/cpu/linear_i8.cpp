// Linear layer in int8 (contract section 6): 8-bit weights, 16-bit fixed-point activations.
//
// T = sum q*qw is an integer, so the tile, the order and the split are free; f32(T) is its only rounding
// before the scales. The two digits of an activation stay together as one int16.
#include <vector>

#include "cpu/pool.h"
#include "cpu/sums_i8.h"

namespace {

// y = [add +] f32(T) * (A/32512 * s) [+ bias]: each operation rounds.
struct Epilogue {
  const float *A, *s, *bias, *add;
  float* y;
  int64_t N;

  void operator()(int64_t row, int64_t column, int64_t n, const double* t) const {
    const float a = A[row] / 32512.0f;
    alignas(64) float v[kPanel];
    if (n == kPanel) {
      for (int64_t i = 0; i < kPanel; i++) v[i] = static_cast<float>(t[i]) * (a * s[column + i]);
    } else {
      for (int64_t i = 0; i < n; i++) v[i] = static_cast<float>(t[i]) * (a * s[column + i]);
    }
    if (bias != nullptr) {
      for (int64_t i = 0; i < n; i++) v[i] = v[i] + bias[column + i];
    }
    const int64_t at = row * N + column;
    if (add != nullptr) {
      for (int64_t i = 0; i < n; i++) v[i] = add[at + i] + v[i];
    }
    std::memcpy(y + at, v, n * sizeof *v);
  }
};

struct KeepSums {
  int64_t* T;
  int64_t N;

  void operator()(int64_t row, int64_t column, int64_t n, const double* t) const {
    for (int64_t i = 0; i < n; i++) T[row * N + column + i] = static_cast<int64_t>(t[i]);
  }
};

// One row, Panels panels side by side.
template <int Panels, class Finish>
void one_row(const int16_t* q, const int8_t* w, int64_t panel, int64_t N, int64_t K, const Finish& finish) {
  alignas(64) double t[Panels * kPanel] = {};
  const int64_t pairs = K / 2, stride = panel_bytes(K);
  for (int64_t k = 0; k < pairs; k += kBlock / 2) {
    const int64_t n = std::min(pairs - k, kBlock / 2);
    add_block<1, Panels>(q + 2 * k, K, w + k * kPanel * 2, stride, n, t, {w, 0});
  }
  if (K % 2) add_last<Panels>(q, K, w, stride, t);
  for (int64_t p = 0; p < Panels; p++) {
    const int64_t column = (panel + p) * kPanel;
    finish(0, column, std::min(kPanel, N - column), t + p * kPanel);
  }
}

// Up to Rows rows through one panel.
template <int Rows, class Finish>
void tile(int64_t rows, const int16_t* q, int64_t row, const int8_t* w, int64_t panel, int64_t N, int64_t K,
          const Finish& finish, Ahead ahead) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return tile<Rows - 1>(rows, q, row, w, panel, N, K, finish, ahead);
  }
  alignas(64) double t[Rows * kPanel] = {};
  const int16_t* x = q + row * K;
  const int64_t pairs = K / 2;
  for (int64_t k = 0; k < pairs; k += kBlock / 2) {
    const int64_t n = std::min(pairs - k, kBlock / 2);
    add_block<Rows, 1>(x + 2 * k, K, w + k * kPanel * 2, 0, n, t, ahead);
    ahead.at += n * ahead.step;
  }
  const int64_t column = panel * kPanel, n = std::min(kPanel, N - column);
  for (int64_t r = 0; r < Rows; r++) {
    if (K % 2) add_last<1>(x + r * K, K, w, 0, t + r * kPanel);
    finish(row + r, column, n, t + r * kPanel);
  }
}

template <class Finish>
void multiply_one(const int16_t* q, const int8_t* packed, int64_t N, int64_t K, const Finish& finish) {
  constexpr int64_t kTogether = 4;
  const int64_t panels = panels_of(N);
  parallel_for((panels + kTogether - 1) / kTogether,
               [&](int64_t g) {
                 int64_t p = g * kTogether;
                 const int8_t* w = packed + p * panel_bytes(K);
                 if (panels - p >= kTogether) return one_row<kTogether>(q, w, p, N, K, finish);
                 for (; p < panels; p++, w += panel_bytes(K)) one_row<1>(q, w, p, N, K, finish);
               },
               N * K < 1 << 15);
}

// Adjacent panels go to one thread, so that each finds its next panel fetched by itself; the shares
// shrink, so that a thread that comes late or is slow leaves the others the rest.
std::vector<int64_t> shares(int64_t panels) {
  constexpr int64_t kLeast = 2;
  const int64_t part = 2 * pool::threads();
  std::vector<int64_t> edges{0};
  while (edges.back() < panels) {
    const int64_t left = panels - edges.back();
    edges.push_back(edges.back() + std::min(left, std::max(kLeast, left / part)));
  }
  return edges;
}

template <class Finish>
void multiply(const int16_t* q, const int8_t* packed, int64_t T, int64_t N, int64_t K, const Finish& finish) {
  if (T == 1) return multiply_one(q, packed, N, K, finish);
  constexpr int64_t kRowChunk = 16 * kTileRows;  // their int16 inputs stay in the second cache
  const std::vector<int64_t> edges = shares(panels_of(N));
  for (int64_t first = 0; first < T; first += kRowChunk) {
    const int64_t rows = std::min(T - first, kRowChunk), tiles = (rows + kTileRows - 1) / kTileRows;
    const int64_t step = std::max<int64_t>(1, kPanel * 2 / tiles);
    parallel_for(
        static_cast<int64_t>(edges.size()) - 1,
        [&](int64_t share) {
          for (int64_t p = edges[share]; p < edges[share + 1]; p++) {
            const int8_t* w = packed + p * panel_bytes(K);
            Ahead ahead{p + 1 < edges[share + 1] ? w + panel_bytes(K) : w, step};
            for (int64_t i = 0, row = first; i < tiles; i++) {  // tiles of about as many rows each
              const int64_t take = (rows + i) / tiles;
              tile<kTileRows>(take, q, row, w, p, N, K, finish, ahead);
              ahead.at += K / 2 * step;
              row += take;
            }
          }
        },
        T * N * K < 1 << 15);
  }
}

}  // namespace

// Bytes of the packed form of q[N][K].
CRUCIBLE_API int64_t crucible_packed_i8_size(int64_t N, int64_t K) {
  return panels_of(N) * kPanel * pairs_of(K) * 2;
}

CRUCIBLE_API void crucible_pack_i8(const int8_t* q, int8_t* packed, int64_t N, int64_t K) {
  const int64_t pairs = pairs_of(K);
  parallel_for(panels_of(N), [&](int64_t p) {
    for (int64_t k = 0; k < 2 * pairs; k++) {
      for (int64_t i = 0; i < kPanel; i++) {
        const int64_t n = p * kPanel + i;
        packed[((p * pairs + k / 2) * kPanel + i) * 2 + k % 2] = n < N && k < K ? q[n * K + k] : 0;
      }
    }
  });
}

// q[T][K], A[T], packed weights with scales s[N], bias[N] or null, add[T][N] or null -> y[T][N].
CRUCIBLE_API void crucible_linear_i8(const int16_t* q, const float* A, const int8_t* packed, const float* s,
                                     const float* bias, const float* add, float* y, int64_t T, int64_t N,
                                     int64_t K) {
  multiply(q, packed, T, N, K, Epilogue{A, s, bias, add, y, N});
}

// The integers T[T][N] alone, for conformance.
CRUCIBLE_API void crucible_linear_i8_sums(const int16_t* q, const int8_t* packed, int64_t* sums, int64_t T,
                                          int64_t N, int64_t K) {
  multiply(q, packed, T, N, K, KeepSums{sums, N});
}
