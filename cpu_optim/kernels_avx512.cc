#include "cpu_optim/vec_avx512.h"

#include "cpu_optim/kernel_body.h"

namespace zinf::optim {

namespace {

// As the scalar sum: lane j of 16 has the elements j, j + 16, ...
double sum_squares(const float* from, std::int64_t elements) {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  const auto add = [&](const float* p) {
    const __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(p));
    const __m512d y = _mm512_cvtps_pd(_mm256_loadu_ps(p + 8));
    low = _mm512_fmadd_pd(x, x, low);  // the square is exact, so this is a plain addition
    high = _mm512_fmadd_pd(y, y, high);
  };
  std::int64_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    __builtin_prefetch(from + i + kPrefetchOnlyStream);
    add(from + i);
  }
  if (i < elements) {
    float tail[16] = {};
    std::memcpy(tail, from + i, static_cast<std::size_t>(elements - i) * sizeof(float));
    add(tail);
  }
  const __m512d eight = _mm512_add_pd(low, high);
  const __m256d four =
      _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

}  // namespace

const KernelTable& avx512_kernels() {
  static const KernelTable table = make_table<Avx512>(sum_squares);
  return table;
}

}  // namespace zinf::optim
