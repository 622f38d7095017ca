// Sampling (contract section 8): Philox draws, ranking, inverse-CDF and gumbel-id, log-probabilities.
//
// One token at a time on the calling thread; sums run in f64 in the contract's order.
#include "cpu/pool.h"
#include "cpu/ranking.h"

namespace {

struct Counter {
  uint32_t x[4];
};

// Philox4x32-10 (Salmon et al., SC 2011; Random123).
Counter philox(Counter c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.x[0], b = uint64_t{0xCD9E8D57u} * c.x[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.x[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.x[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

uint64_t word(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2) {
  const Counter r = philox({{c0, c1, c2, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uint64_t{r.x[0]} << 32 | r.x[1];
}

// ln of a positive f64, without fma: m in [sqrt(1/2), sqrt(2)), atanh series to 1/23.
double contract_ln(double v) {
  int64_t k = -1023;
  if (v < 0x1p-1022) {  // subnormal: scaling by a power of two is exact
    v = v * 0x1p54;
    k -= 54;
  }
  uint64_t u;
  std::memcpy(&u, &v, 8);
  k += static_cast<int64_t>(u >> 52);
  u = (u & ((1ull << 52) - 1)) | (1023ull << 52);
  double m;
  std::memcpy(&m, &u, 8);  // in [1, 2)
  if (m >= 1.4142135623730951) {
    m = m * 0.5;
    k++;
  }
  const double t = (m - 1.0) / (m + 1.0), s = t * t;
  double p = 1.0 / 23.0;
  for (int d = 21; d >= 1; d -= 2) p = p * s + 1.0 / static_cast<double>(d);
  return static_cast<double>(k) * 0.6931471805599453 + (2.0 * t) * p;
}

Status scaled(const float* logits, int64_t V, float temperature, std::vector<float>& z) {
  const Status status = check(logits, V);
  if (status != kOk) return status;
  z.resize(V);
  bool overflow = false;
  for (int64_t i = 0; i < V; i++) {
    z[i] = logits[i] / temperature;
    overflow |= std::isinf(z[i]) && std::isfinite(logits[i]);
  }
  return overflow ? kOverflow : kOk;
}

int32_t inverse_cdf(const std::vector<double>& c, const Ranked& r, int64_t kept, double u) {
  const double target = u * c[kept - 1];
  int64_t i = 0;
  while (i < kept - 1 && !(c[i] > target)) i++;
  return r.id(i);
}

int32_t gumbel_id(const std::vector<float>& e, const Ranked& r, int64_t kept, uint64_t seed, uint32_t draw) {
  int32_t best = -1;
  double least = 0.0;
  for (int64_t i = 0; i < kept; i++) {
    if (e[i] == 0.0f) continue;
    const int32_t id = r.id(i);
    const uint64_t w = word(seed, draw, static_cast<uint32_t>(id), 1);
    const double v = (static_cast<double>(w >> 12) + 0.5) * 0x1p-52;
    const double score = -contract_ln(v) / static_cast<double>(e[i]);
    if (best < 0 || score < least || (score == least && id < best)) {
      best = id;
      least = score;
    }
  }
  return best;
}

}  // namespace

// ctr[n][4], key[n][2] -> out[n][4].
CRUCIBLE_API void crucible_philox(const uint32_t* ctr, const uint32_t* key, uint32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const Counter r =
        philox({{ctr[4 * i], ctr[4 * i + 1], ctr[4 * i + 2], ctr[4 * i + 3]}}, key[2 * i], key[2 * i + 1]);
    std::memcpy(out + 4 * i, r.x, 16);
  }
}

CRUCIBLE_API void crucible_ln(const double* v, double* y, int64_t n) {
  FloatEnv env;
  for (int64_t i = 0; i < n; i++) y[i] = contract_ln(v[i]);
}

// Token of the largest logit, lowest id among equals.
CRUCIBLE_API int64_t crucible_greedy(const float* logits, int64_t V, int32_t* token) {
  FloatEnv env;
  const Status status = check(logits, V);
  if (status != kOk) return status;
  constexpr int64_t kPart = 1024;
  int64_t part = 0;  // the first one that holds the largest
  float top = largest(logits, std::min(V, kPart));
  for (int64_t i = kPart; i < V; i += kPart) {
    const float here = largest(logits + i, std::min(V - i, kPart));
    if (here > top) {
      top = here;
      part = i;
    }
  }
  int64_t best = part;
  while (logits[best] != top) best++;
  *token = static_cast<int32_t>(best);
  return kOk;
}

// ids of ranks 0..k-1 at a temperature.
CRUCIBLE_API int64_t crucible_rank(const float* logits, int64_t V, float temperature, int64_t k,
                                   int32_t* ids) {
  FloatEnv env;
  std::vector<float> z;
  const Status status = scaled(logits, V, temperature, z);
  if (status != kOk) return status;
  const Ranked r = rank(z.data(), V, std::min(k, V));
  for (size_t i = 0; i < r.order.size(); i++) ids[i] = r.id(i);
  return kOk;
}

// One sampled token. sampler: 0 inverse-CDF, 1 gumbel-id. u_override in [0, 1) replaces the draw of
// the inverse-CDF sampler; below 0 there is none. kept = ranks left after top_k and top_p.
CRUCIBLE_API int64_t crucible_sample(const float* logits, int64_t V, float temperature, int64_t top_k,
                                     double top_p, uint64_t seed, int64_t draw, int64_t sampler,
                                     double u_override, int32_t* token, int32_t* kept, double* u) {
  FloatEnv env;
  std::vector<float> z;
  const Status status = scaled(logits, V, temperature, z);
  if (status != kOk) return status;
  const int64_t k = top_k <= 0 || top_k > V ? V : top_k;
  const Ranked r = rank(z.data(), V, k);
  const f8 top = f8::set(z[r.id(0)]);
  std::vector<float> e(k + 8);
  for (int64_t i = 0; i < k; i++) e[i] = z[r.id(i)];
  for (int64_t i = 0; i < k; i += 8) exp_nonpositive(f8::load(e.data() + i) - top).store(e.data() + i);
  std::vector<double> c(k);
  double sum = 0.0;
  for (int64_t i = 0; i < k; i++) {
    sum = sum + static_cast<double>(e[i]);
    c[i] = sum;
  }
  int64_t n = k;
  if (top_p < 1.0) {
    const double target = top_p * c[k - 1];
    for (n = 1; n < k && !(c[n - 1] >= target); n++) {
    }
  }
  const uint32_t number = static_cast<uint32_t>(draw);
  *u = u_override >= 0.0 ? u_override : static_cast<double>(word(seed, number, 0, 0) >> 11) * 0x1p-53;
  *kept = static_cast<int32_t>(n);
  *token = sampler == 0 ? inverse_cdf(c, r, n, *u) : gumbel_id(e, r, n, seed, number);
  return kOk;
}

// Log-probabilities of the whole vocabulary at temperature 1, in f64.
CRUCIBLE_API int64_t crucible_logprobs(const float* logits, int64_t V, double* out) {
  FloatEnv env;
  const Status status = check(logits, V);
  if (status != kOk) return status;
  const float top = largest(logits, V);
  double c = 0.0;
  for (int64_t i = 0; i < V; i += 8) {
    const int64_t n = std::min<int64_t>(8, V - i);
    float e[8];
    exp_nonpositive(load_part(logits + i, n) - f8::set(top)).store(e);
    for (int64_t j = 0; j < n; j++) c = c + static_cast<double>(e[j]);
  }
  const double total = contract_ln(c);
  for (int64_t i = 0; i < V; i++) out[i] = static_cast<double>(logits[i] - top) - total;
  return kOk;
}
