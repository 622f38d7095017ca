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
constexpr int64_t kRowChunk = 96;  // rows whose 256-wide slice of x stays in L2 (96 KB)

struct Layer {
  const float* x;
  const uint8_t* packed;
  const float* bias;
  float* y;
  int64_t T, N, K;
};

// y (+)= acc for one row: the first block stores, later ones add, the last adds the bias.
template <int V>
void finish_row(const Layer& a, const fw* acc, int64_t row, int64_t column, bool first, bool last) {
  const float* bias = last && a.bias != nullptr ? a.bias + column : nullptr;
  float* out = a.y + row * a.N + column;
  for (int v = 0; v < V; v++, out += fw::W) {
    const int64_t n = std::min<int64_t>(fw::W, a.N - column - v * fw::W);
    if (n <= 0) return;
    if (n == fw::W && bias == nullptr) {
      (first ? acc[v] : fw(fw::load(out) + acc[v])).store(out);
      continue;
    }
    float part[fw::W];
    acc[v].store(part);
    for (int64_t i = 0; i < n; i++) {
      const float s = first ? part[i] : out[i] + part[i];
      out[i] = bias != nullptr ? s + bias[v * fw::W + i] : s;
    }
  }
}

// One K block for Rows rows from `row` and Panels panels at `w`. `origin` is the k of w's first entry.
template <class S, int Rows, int Panels>
void tile(const Layer& a, int64_t row, int64_t panel, const uint8_t* w, int64_t stride, int64_t origin,
          int64_t k0, int64_t k1) {
  constexpr int V = Panels * kVectors;
  fw acc[Rows][V];
  for (int r = 0; r < Rows; r++) {
    for (int v = 0; v < V; v++) acc[r][v] = fw::zero();
  }
  const float* x = a.x + row * a.K + origin;
  const int64_t K = a.K;
  S::template stream<Panels>(w, stride, k0 - origin, k1 - origin, [&](int64_t k, const fw* b) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      const fw value = fw::set(x[r * K + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) acc[r][v] = fma(value, b[v], acc[r][v]);
    }
  });
  for (int r = 0; r < Rows; r++) {
    finish_row<V>(a, acc[r], row + r, panel * kPanel, k0 == 0, k1 == K);
  }
}

template <class S, int Rows, int Panels>
void all_blocks(const Layer& a, int64_t panel) {
  const int64_t stride = S::panel_bytes(a.K);
  for (int64_t k0 = 0; k0 < a.K; k0 += kBlock) {
    const int64_t k1 = std::min(a.K, k0 + kBlock);
    tile<S, Rows, Panels>(a, 0, panel, a.packed + panel * stride, stride, 0, k0, k1);
  }
}

// `Rows` rows are all there are: Panels together give enough chains to hide the fma's latency.
template <class S, int Rows>
void few_rows(const Layer& a) {
  constexpr int Wide = Rows == 1 ? 4 : Rows == 2 ? 3 : Rows == 3 ? 2 : 1;
  constexpr int Panels =
      std::is_same_v<S, StoredQ4_1> || std::is_same_v<S, StoredQ8_0> ? (Wide + 1) / 2 : Wide;
  const int64_t panels = panels_of(a.N);
  parallel_for((panels + Panels - 1) / Panels,
               [&](int64_t g) {
                 int64_t p = g * Panels;
                 if (panels - p >= Panels) return all_blocks<S, Rows, Panels>(a, p);
                 for (; p < panels; p++) all_blocks<S, Rows, 1>(a, p);
               },
               a.N * a.K < 1 << 14);
}

// The rows left of a chunk, Rows at most: one recursion step per row count.
template <int Rows, int Panels, class... Args>
void tail_rows(int64_t rows, const Args&... args) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return tile<StoredF32, Rows, Panels>(args...);
    tail_rows<Rows - 1, Panels>(rows, args...);
  }
}

// Rows [first, end) of Panels panels, block by block.
template <class S, int Panels>
void chunk(const Layer& a, int64_t first, int64_t end, int64_t panel) {
  const int64_t stored = S::panel_bytes(a.K);
  const uint8_t* source = a.packed + panel * stored;
  alignas(64) float wide[Panels * kBlock * kPanel];
  for (int64_t k0 = 0; k0 < a.K; k0 += kBlock) {
    const int64_t k1 = std::min(a.K, k0 + kBlock);
    const uint8_t* w = source;
    int64_t stride = stored, origin = 0;
    if constexpr (!std::is_same_v<S, StoredF32>) {
      S::template stream<Panels>(source, stored, k0, k1, [&](int64_t k, const fw* b) {
        for (int v = 0; v < Panels * kVectors; v++) {
          b[v].store(wide + (v / kVectors * kBlock + k - k0) * kPanel + v % kVectors * fw::W);
        }
      });
      w = reinterpret_cast<const uint8_t*>(wide);
      stride = kBlock * kPanel * 4;
      origin = k0;
    }
    int64_t r = first;
    for (; r + kTileRows <= end; r += kTileRows) {
      tile<StoredF32, kTileRows, Panels>(a, r, panel, w, stride, origin, k0, k1);
    }
    tail_rows<kTileRows - 1, Panels>(end - r, a, r, panel, w, stride, origin, k0, k1);
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
