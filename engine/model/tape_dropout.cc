// Dropout of hidden states. Masks are drawn again for backward: nothing is saved.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "engine/model/dropout.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;

template <typename T>
void drop(const T* from, T* to, std::int64_t count, const DropoutMask& mask) {
  at::parallel_for(0, count, kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, 256> factors;
    for (std::int64_t i = begin; i < end; i += 256) {
      const std::int64_t some = std::min<std::int64_t>(256, end - i);
      mask.factors(static_cast<std::uint64_t>(i), some, factors.data());
      for (std::int64_t j = 0; j < some; ++j)
        to[i + j] = static_cast<T>(static_cast<float>(from[i + j]) * factors[j]);
    }
  });
}

// `to` may be `from`.
void drop(const at::Tensor& from, at::Tensor& to, const DropoutMask& mask) {
  ZINF_CHECK(from.is_contiguous() && to.is_contiguous(), "contiguous hidden states");
  if (from.scalar_type() == at::kFloat) {
    drop(from.const_data_ptr<float>(), to.mutable_data_ptr<float>(), from.numel(), mask);
  } else {
    drop(from.const_data_ptr<c10::BFloat16>(), to.mutable_data_ptr<c10::BFloat16>(), from.numel(),
         mask);
  }
}

}  // namespace

Value Tape::dropout(Value x, double rate) {
  const DropoutMask mask(next_dropout_key(), rate);
  if (rate <= 0) return x;
  ZINF_CHECK(!x.node()->saved && !x.node()->external,
             "dropout() takes over memory that is still needed");
  at::Tensor dropped;
  if (computes()) {
    dropped = x.data().contiguous();
    drop(dropped, dropped, mask);
  }
  Value y = make(std::move(dropped), x.node()->shape, x.node()->wants_gradient);
  if (!records()) return y;
  record([in = x.node(), out = y.node(), mask] {
    const at::Tensor gradient = take_gradient(*out).contiguous();
    at::Tensor to_x = at::empty(gradient.sizes(), gradient.options());
    drop(gradient, to_x, mask);
    add_to_node(*in, to_x);
  });
  return y;
}

}  // namespace zinf::model
