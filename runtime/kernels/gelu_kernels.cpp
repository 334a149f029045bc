// This file is compiled with -ffp-contract=off. Multiply-adds that ATen's build contracts are written
// explicitly.
#include "runtime/kernels/gelu_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/ones_like.h>

#include "runtime/base/check.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_AVX512 __attribute__((target("avx512f,avx512dq")))
#include <immintrin.h>
#endif

namespace millrace {

#ifdef MILLRACE_AVX512
namespace {

MILLRACE_AVX512 inline __m512 all(float value) {
  return _mm512_set1_ps(value);
}

/// Returns 2^n for whole numbers n.
MILLRACE_AVX512 inline __m512 power(__m512i n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/// Computes exp(x) as SLEEF's expf of 1.0 ulp: x = q ln 2 + s with ln 2 in two parts, a polynomial in s,
/// times 2^q in two steps.
MILLRACE_AVX512 inline __m512 exp_of(__m512 x) {
  const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, all(1.442695040888963407F)));
  const __m512 whole = _mm512_cvtepi32_ps(q);
  __m512 s = _mm512_fmadd_ps(whole, all(-0.693145751953125F), x);
  s = _mm512_fmadd_ps(whole, all(-1.428606765330187045e-06F), s);
  __m512 u = all(0.000198527617612853646278381F);
  for (const float next : {0.00139304355252534151077271F, 0.00833336077630519866943359F,
                           0.0416664853692054748535156F, 0.166666671633720397949219F, 0.5F})
    u = _mm512_fmadd_ps(u, s, all(next));
  u = _mm512_add_ps(all(1), _mm512_fmadd_ps(_mm512_mul_ps(s, s), u, s));
  const __m512i half = _mm512_srai_epi32(q, 1);
  u = _mm512_mul_ps(_mm512_mul_ps(u, power(half)), power(_mm512_sub_epi32(q, half)));
  u = _mm512_mask_mov_ps(u, _mm512_cmp_ps_mask(x, all(-104), _CMP_LT_OQ), all(0));
  return _mm512_mask_mov_ps(u, _mm512_cmp_ps_mask(all(100), x, _CMP_LT_OQ),
                            all(std::numeric_limits<float>::infinity()));
}

/// Computes the error function by Abramowitz and Stegun, 7.1.26.
MILLRACE_AVX512 inline __m512 erf_of(__m512 x) {
  const __m512 sign = all(-0.F);
  const __m512 t = _mm512_div_ps(all(1), _mm512_fmadd_ps(all(0.3275911F), _mm512_abs_ps(x), all(1)));
  __m512 r = all(1.061405429F);
  for (const float next : {-1.453152027F, 1.421413741F, -0.284496736F, 0.254829592F})
    r = _mm512_fmadd_ps(r, t, all(next));
  const __m512 e = exp_of(_mm512_xor_ps(sign, _mm512_mul_ps(x, x)));
  const __m512 positive = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_xor_ps(sign, e), t), r, all(1));
  return _mm512_xor_ps(_mm512_and_ps(sign, x), positive);
}

MILLRACE_AVX512 void run(const float* from, float* y, float* derivative, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(from + i);
    const __m512 both = _mm512_add_ps(all(1), erf_of(_mm512_mul_ps(x, all(M_SQRT1_2))));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_mul_ps(x, all(0.5F)), both));
    if (!derivative) continue;
    const __m512 cdf = _mm512_mul_ps(all(0.5F), both);
    const __m512 e = exp_of(_mm512_mul_ps(_mm512_mul_ps(x, x), all(-0.5F)));
    const __m512 pdf = _mm512_mul_ps(all(M_2_SQRTPI * M_SQRT1_2 * 0.5), e);
    _mm512_storeu_ps(derivative + i, _mm512_fmadd_ps(x, pdf, cdf));  // contracted by ATen's compiler
  }
}

/// Returns whether the kernel has the bits of ATen's vector kernel. ATen uses that kernel for tensors that
/// are dense but not contiguous (basic_layers.cpp, Gelu).
bool is_atens() {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kCount = 1 << 12;
  const at::Tensor memory = at::empty({kCount}, at::kFloat), y = at::empty({kCount}, at::kFloat),
                   derivative = at::empty({kCount}, at::kFloat);
  float* x = memory.mutable_data_ptr<float>();
  std::uint32_t seed = 1;
  for (std::int64_t i = 0; i < kCount; ++i) {
    seed = seed * 1664525 + 1013904223;
    const float number = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-31F;
    x[i] = std::ldexp(number, static_cast<int>(i % 12) - 5);  // up to 64
  }
  const auto inf = std::numeric_limits<float>::infinity();
  int at = 0;
  for (const float special :
       {0.F, -0.F, inf, -inf, std::nanf(""), 1e-30F, -1e-30F, 1e-42F, 13.F, -13.F, 20.F})
    x[at++] = special;
  const auto interleaved = [](const at::Tensor& t) { return t.view({2, -1}).t(); };
  run(x, y.mutable_data_ptr<float>(), derivative.mutable_data_ptr<float>(), kCount);
  const auto same = [&](const at::Tensor& atens, const at::Tensor& ours) {
    const at::Tensor flat = atens.t().reshape({-1});
    const float *a = flat.const_data_ptr<float>(), *b = ours.const_data_ptr<float>();
    for (std::int64_t i = 0; i < kCount; ++i)
      if (std::memcmp(a + i, b + i, sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
        return false;
    return true;
  };
  const at::Tensor apart = interleaved(memory);
  return same(at::gelu(apart, "none"), y) &&
         same(at::gelu_backward(at::ones_like(apart), apart, "none"), derivative);
}

}  // namespace

bool has_gelu_kernel() {
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && is_atens();
  return has;
}

void gelu_with_derivative(const float* x, float* y, float* derivative, std::int64_t count) {
  MILLRACE_CHECK(count % kGeluElements == 0, count << " elements");
  run(x, y, derivative, count);
}

#else

bool has_gelu_kernel() {
  return false;
}
void gelu_with_derivative(const float*, float*, float*, std::int64_t) {
  MILLRACE_CHECK(false, "no AVX-512");
}

#endif

}  // namespace millrace
