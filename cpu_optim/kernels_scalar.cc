#include "cpu_optim/kernel_body.h"
#include "cpu_optim/vec_scalar.h"

namespace zinf::optim {

namespace {

// Sixteen running sums, as the vector sets have; see norm.h for the order.
double sum_squares(const float* from, std::int64_t elements) {
  double lane[16] = {};
  for (std::int64_t i = 0; i < elements; ++i) {
    const double x = from[i];
    lane[i & 15] += x * x;  // the square is exact in fp64
  }
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int j = 0; j < apart; ++j) lane[j] += lane[j + apart];
  }
  return lane[0];
}

}  // namespace

std::uint32_t keep_split_nan(std::uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) <= 0x7F800000u) return bits;
  if ((bits & 0x007F8000u) == 0) return bits | 0x00400000u;  // would round to infinity
  if ((bits & 0x007F8000u) == 0x007F8000u)
    return bits & 0xFFFF7FFFu;  // would round past NaN, to zero
  return bits;
}

const KernelTable& scalar_kernels() {
  static const KernelTable table = make_table<Scalar>(sum_squares);
  return table;
}

}  // namespace zinf::optim
