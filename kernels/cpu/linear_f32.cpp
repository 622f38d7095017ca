// Linear layer in f32 (contract section 6): y[t][n] = sum over K blocks of 256, each block an
// ascending fma chain from +0; bias last. One function per storage of the weights (panels.h).
//
// A micro-kernel holds `Rows` x `Panels` accumulators in registers; lanes are outputs, so every tile
// shape has the same bits. K is never padded (fma(0, 0, -0) is +0); N is, with outputs nobody reads.
//   few rows: one pass over the weights, widened in registers, at memory speed
//   many rows: one K block of one panel, widened once, stays in L1 while a chunk of rows passes over it
#include <algorithm>

#include "cpu/panels.h"
#include "cpu/pool.h"

namespace {

constexpr int64_t kBlock = 256;
#if defined(CRUCIBLE_AVX512)
constexpr int kTileRows = 12, kTilePanels = 2;
#else
constexpr int kTileRows = 6, kTilePanels = 1;
#endif
constexpr int64_t kRowChunk = 128;  // with one panel's block and the running totals, L1 and L2 hold it

struct Layer {
  const float* x;
  const uint8_t* packed;
  const float* bias;
  float* y;
  int64_t T, N, K;
};

// Adds one row's block sum to its running total: y = b_0, then y = y + b_1, …. The total stays in
// `partial` (contiguous, so that y's row stride costs no cache sets) until the last block, which adds the
// bias and writes y.
template <int V>
void finish_row(const Layer& a, const fw* acc, int64_t row, int64_t column, bool first, bool last,
                float* partial) {
  fw total[V];
  for (int v = 0; v < V; v++) total[v] = first ? acc[v] : fw(fw::load(partial + v * fw::W) + acc[v]);
  if (!last) {
    for (int v = 0; v < V; v++) total[v].store(partial + v * fw::W);
    return;
  }
  float* out = a.y + row * a.N + column;
  const int64_t n = std::min<int64_t>(V * fw::W, a.N - column);
  if (n == V * fw::W && a.bias == nullptr) {
    for (int v = 0; v < V; v++) total[v].store(out + v * fw::W);
    return;
  }
  for (int v = 0; v < V; v++) total[v].store(partial + v * fw::W);
  for (int64_t i = 0; i < n; i++) out[i] = a.bias == nullptr ? partial[i] : partial[i] + a.bias[column + i];
}

// Where a block of weights lies: panel bytes `stride` apart, w's first entry is weight k = origin.
struct Panels {
  const uint8_t* w;
  int64_t stride, origin;
};

// One K block [k0, k1) for kRows rows from `row` and kPanels panels from `panel`.
template <class S, int kRows, int kPanels>
void tile(const Layer& a, int64_t row, int64_t panel, const Panels& from, int64_t k0, int64_t k1,
          float* partial) {
  constexpr int V = kPanels * kVectors;
  fw acc[kRows][V];
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < V; v++) acc[r][v] = fw::zero();
  }
  const float* x = a.x + row * a.K + from.origin;
  const int64_t K = a.K;
  const auto step = [&](int64_t k, const fw* b) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) {
      const fw value = fw::set(x[r * K + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) acc[r][v] = fma(value, b[v], acc[r][v]);
    }
  };
  S::template stream<kPanels>(from.w, from.stride, k0 - from.origin, k1 - from.origin, step);
  for (int r = 0; r < kRows; r++) {
    finish_row<V>(a, acc[r], row + r, panel * kPanel, k0 == 0, k1 == K, partial + r * kPanels * kPanel);
  }
}

template <class S, int kRows, int kPanels>
void all_blocks(const Layer& a, int64_t panel) {
  const int64_t stride = S::panel_bytes(a.K);
  const Panels from{a.packed + panel * stride, stride, 0};
  float partial[kRows * kPanels * kPanel];
  for (int64_t k0 = 0; k0 < a.K; k0 += kBlock) {
    tile<S, kRows, kPanels>(a, 0, panel, from, k0, std::min(a.K, k0 + kBlock), partial);
  }
}

// `Rows` rows are all there are: panels taken together give enough chains to hide the fma's latency.
template <class S, int kRows>
void few_rows(const Layer& a) {
  constexpr int kWide = kRows == 1 ? 4 : kRows == 2 ? 3 : kRows == 3 ? 2 : 1;
  constexpr bool kBlocks = std::is_same_v<S, StoredQ4_1> || std::is_same_v<S, StoredQ8_0>;
  constexpr int kTogether = kBlocks ? (kWide + 1) / 2 : kWide;  // scales take registers too
  const int64_t panels = panels_of(a.N);
  parallel_for((panels + kTogether - 1) / kTogether,
               [&](int64_t g) {
                 int64_t p = g * kTogether;
                 if (panels - p >= kTogether) return all_blocks<S, kRows, kTogether>(a, p);
                 for (; p < panels; p++) all_blocks<S, kRows, 1>(a, p);
               },
               a.N * a.K < 1 << 14);
}

// The rows left of a chunk, kRows at most: one recursion step per row count.
template <int kRows, int kPanels, class... Args>
void tail_rows(int64_t rows, const Args&... args) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tile<StoredF32, kRows, kPanels>(args...);
    tail_rows<kRows - 1, kPanels>(rows, args...);
  }
}

// Rows [first, end) of kPanels panels, block by block.
template <class S, int kPanels>
void chunk(const Layer& a, int64_t first, int64_t end, int64_t panel) {
  const int64_t stride = S::panel_bytes(a.K);
  const uint8_t* source = a.packed + panel * stride;
  alignas(64) float wide[kPanels * kBlock * kPanel], partial[kRowChunk * kPanels * kPanel];
  for (int64_t k0 = 0; k0 < a.K; k0 += kBlock) {
    const int64_t k1 = std::min(a.K, k0 + kBlock);
    Panels from{source, stride, 0};
    if constexpr (!std::is_same_v<S, StoredF32>) {
      S::template stream<kPanels>(source, stride, k0, k1, [&](int64_t k, const fw* b) {
        for (int v = 0; v < kPanels * kVectors; v++) {
          b[v].store(wide + (v / kVectors * kBlock + k - k0) * kPanel + v % kVectors * fw::W);
        }
      });
      from = {reinterpret_cast<const uint8_t*>(wide), kBlock * kPanel * 4, k0};
    }
    int64_t r = first;
    float* at = partial;
    for (; r + kTileRows <= end; r += kTileRows, at += kTileRows * kPanels * kPanel) {
      tile<StoredF32, kTileRows, kPanels>(a, r, panel, from, k0, k1, at);
    }
    tail_rows<kTileRows - 1, kPanels>(end - r, a, r, panel, from, k0, k1, at);
  }
}

template <class S>
void multiply(const Layer& a) {
  switch (a.T) {
    case 0:
      return;
    case 1:
      return few_rows<S, 1>(a);
    case 2:
      return few_rows<S, 2>(a);
    case 3:
      return few_rows<S, 3>(a);
    case 4:
      return few_rows<S, 4>(a);
  }
  const int64_t panels = panels_of(a.N);
  for (int64_t first = 0; first < a.T; first += kRowChunk) {
    const int64_t end = std::min(a.T, first + kRowChunk);
    parallel_for((panels + kTilePanels - 1) / kTilePanels, [&](int64_t g) {
      const int64_t p = g * kTilePanels;
      if (panels - p >= kTilePanels) return chunk<S, kTilePanels>(a, first, end, p);
      chunk<S, 1>(a, first, end, p);
    });
  }
}

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent == 31) return float_of(sign | 0x7F800000u | mantissa << 13);
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// out(panel, lane, row or -1) over all lanes of all panels, panels in parallel.
template <class F>
void each_lane(int64_t N, const F& out) {
  parallel_for(panels_of(N), [&](int64_t p) {
    for (int64_t i = 0; i < kPanel; i++) out(p, i, p * kPanel + i < N ? p * kPanel + i : -1);
  });
}

template <class E>
void pack_elements(const E* w, E* packed, int64_t N, int64_t K) {
  each_lane(N, [&](int64_t p, int64_t i, int64_t row) {
    E* out = packed + p * K * kPanel + i;
    for (int64_t k = 0; k < K; k++) out[k * kPanel] = row < 0 ? E{0} : w[row * K + k];
  });
}

uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// GGUF's blocks of 32: Q8_0 is f16 d, int8[32], w = d*q; Q4_1 is f16 d, f16 m, 16 bytes whose low nibbles
// are k = 0..15 and high nibbles k = 16..31, w = d*q + m, multiply then add.
struct StoredBlock {
  const uint8_t* q;
  float d, m;
  bool q4;

  StoredBlock(const uint8_t* p, bool is_q4)
      : q(p + (is_q4 ? 4 : 2)), d(half_to_float(read_u16(p))), q4(is_q4) {
    m = q4 ? half_to_float(read_u16(p + 2)) : 0.0f;
  }
  int nibble(int64_t k) const { return k < 16 ? q[k] & 15 : q[k - 16] >> 4; }
  float weight(int64_t k) const {
    if (q4) return d * static_cast<float>(nibble(k)) + m;
    return d * static_cast<float>(static_cast<int8_t>(q[k]));
  }
};

}  // namespace

// storage: 0 f32, 1 bf16, 2 Q8_0, 3 Q4_1. Bytes of the packed form of w[N][K].
CRUCIBLE_API int64_t crucible_packed_size(int64_t storage, int64_t N, int64_t K) {
  const int64_t bytes[] = {StoredF32::panel_bytes(K), StoredBf16::panel_bytes(K), StoredQ8_0::panel_bytes(K),
                           StoredQ4_1::panel_bytes(K)};
  return panels_of(N) * bytes[storage];
}

// w is [N][K] f32 or bf16, or GGUF's [N][K/32] blocks.
CRUCIBLE_API void crucible_pack(int64_t storage, const void* w, uint8_t* packed, int64_t N, int64_t K) {
  if (storage == 0) {
    return pack_elements(static_cast<const float*>(w), reinterpret_cast<float*>(packed), N, K);
  }
  if (storage == 1) {
    return pack_elements(static_cast<const uint16_t*>(w), reinterpret_cast<uint16_t*>(packed), N, K);
  }
  const bool q4 = storage == 3;
  const int64_t blocks = K / 32, in = q4 ? 20 : 34;
  const int64_t size = q4 ? StoredQ4_1::kBlockBytes : StoredQ8_0::kBlockBytes;
  std::memset(packed, 0, panels_of(N) * blocks * size);
  each_lane(N, [&](int64_t p, int64_t i, int64_t row) {
    for (int64_t b = 0; row >= 0 && b < blocks; b++) {
      const StoredBlock block(static_cast<const uint8_t*>(w) + (row * blocks + b) * in, q4);
      uint8_t* out = packed + (p * blocks + b) * size;
      float* scales = reinterpret_cast<float*>(out);
      scales[i] = block.d;
      if (q4) scales[kPanel + i] = block.m;
      uint8_t* q = out + (q4 ? 8 : 4) * kPanel + i;
      for (int64_t k = 0; k < (q4 ? 16 : 32); k++) {
        q[k * kPanel] =
            q4 ? static_cast<uint8_t>(block.nibble(2 * k) | block.nibble(2 * k + 1) << 4) : block.q[k];
      }
    }
  });
}

// x[T][K], packed w, bias[N] or null -> y[T][N].
CRUCIBLE_API void crucible_linear(int64_t storage, const float* x, const uint8_t* packed, const float* bias,
                                  float* y, int64_t T, int64_t N, int64_t K) {
  const Layer a{x, packed, bias, y, T, N, K};
  switch (storage) {
    case 0:
      return multiply<StoredF32>(a);
    case 1:
      return multiply<StoredBf16>(a);
    case 2:
      return multiply<StoredQ8_0>(a);
    default:
      return multiply<StoredQ4_1>(a);
  }
}

// Rows `ids` of a table [V][N] in the same storages, row-major as a checkpoint has them, as f32.
CRUCIBLE_API void crucible_embed_stored(int64_t storage, const uint8_t* table, const int32_t* ids, float* y,
                                        int64_t T, int64_t N) {
  const int64_t bytes[] = {N * 4, N * 2, N / 32 * 34, N / 32 * 20};
  parallel_for(
      T,
      [&](int64_t t) {
        const uint8_t* row = table + ids[t] * bytes[storage];
        float* out = y + t * N;
        if (storage == 0) std::memcpy(out, row, N * 4);
        if (storage == 1) {
          for (int64_t i = 0; i < N; i++) out[i] = float_of(uint32_t{read_u16(row + 2 * i)} << 16);
        }
        for (int64_t i = 0; storage >= 2 && i < N; i++) {
          const StoredBlock block(row + i / 32 * (storage == 3 ? 20 : 34), storage == 3);
          out[i] = block.weight(i % 32);
        }
      },
      T * N < 1 << 14);
}
