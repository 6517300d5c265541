#include "cpu_optim/vec_avx2.h"

#include "cpu_optim/kernel_body.h"

namespace zinf::optim {

namespace {

// As the scalar sum: lane j of 16 has the elements j, j + 16, ...
double sum_squares(const float* from, std::int64_t elements) {
  __m256d lane[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};
  const auto add = [&](const float* p) {
    for (int j = 0; j < 4; ++j) {
      const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * j));
      lane[j] = _mm256_fmadd_pd(x, x, lane[j]);  // the square is exact, so this is a plain addition
    }
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
  const __m256d four =
      _mm256_add_pd(_mm256_add_pd(lane[0], lane[2]), _mm256_add_pd(lane[1], lane[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

}  // namespace

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_table<Avx2>(sum_squares);
  return table;
}

}  // namespace zinf::optim
