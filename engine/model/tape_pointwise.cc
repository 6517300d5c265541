// Operations position by position: rotation, activations, sums, rows of a learned table.
#include <ATen/Parallel.h>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {
namespace {

// One work item per this many positions: enough to be worth a thread.
constexpr std::int64_t kPositionsPerTask = 16;

template <typename T>
void rotate_rows(const at::Tensor& x, at::Tensor& y, std::int64_t heads, const float* cosines,
                 const float* sines, float direction) {
  const std::int64_t width = x.size(1) / heads;
  const std::int64_t half = width / 2;
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  const std::int64_t from_stride = x.stride(0), to_stride = y.stride(0);
  at::parallel_for(0, x.size(0), kPositionsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t position = begin; position < end; ++position) {
      const float* c = cosines + position * half;
      const float* s = sines + position * half;
      for (std::int64_t head = 0; head < heads; ++head) {
        const T* in = from + position * from_stride + head * width;
        T* out = to + position * to_stride + head * width;
        for (std::int64_t i = 0; i < half; ++i) {
          const float first = static_cast<float>(in[i]), second = static_cast<float>(in[i + half]);
          const float sine = direction * s[i];
          out[i] = static_cast<T>(first * c[i] - second * sine);
          out[i + half] = static_cast<T>(second * c[i] + first * sine);
        }
      }
    }
  });
}

at::Tensor rotated(const at::Tensor& x, std::int64_t heads, const at::Tensor& cosines,
                   const at::Tensor& sines, float direction) {
  at::Tensor y = at::empty({x.size(0), x.size(1)}, x.options());
  const float* c = cosines.const_data_ptr<float>();
  const float* s = sines.const_data_ptr<float>();
  if (x.scalar_type() == at::kFloat) {
    rotate_rows<float>(x, y, heads, c, s, direction);
  } else {
    rotate_rows<c10::BFloat16>(x, y, heads, c, s, direction);
  }
  return y;
}

const char* gelu_form(std::string_view name) {
  if (name == "gelu") return "none";
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return "tanh";
  return nullptr;
}

// LibTorch's own takes about as long as the matrix product beside it.
bool has_own_gelu(const at::Tensor& x, const char* form) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && std::string_view(form) == "tanh";
}

at::Tensor own_gelu(const at::Tensor& x) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  gelu_tanh(bf16_bits(x), bf16_bits_to_write(y), x.numel());
  return y;
}

at::Tensor own_gelu_backward(const at::Tensor& gradient, const at::Tensor& x) {
  at::Tensor to_x = at::empty(x.sizes(), x.options());
  gelu_tanh_backward(bf16_bits(gradient), bf16_bits(x), bf16_bits_to_write(to_x), x.numel());
  return to_x;
}

at::Tensor activate(const at::Tensor& x, std::string_view name) {
  if (const char* form = gelu_form(name))
    return has_own_gelu(x, form) ? own_gelu(x) : at::gelu(x, form);
  if (name == "silu" || name == "swish") return at::silu(x);
  ZINF_CHECK(name == "relu", str("activation ", name));
  return at::relu(x);
}

at::Tensor activate_backward(const at::Tensor& gradient, const at::Tensor& x,
                             std::string_view name) {
  if (const char* form = gelu_form(name))
    return has_own_gelu(x, form) ? own_gelu_backward(gradient.contiguous(), x)
                                 : at::gelu_backward(gradient, x, form);
  if (name == "relu") return at::threshold_backward(gradient, x, 0);
  return at::silu_backward(gradient, x);
}

}  // namespace

bool is_known_activation(std::string_view name) {
  return gelu_form(name) != nullptr || name == "silu" || name == "swish" || name == "relu";
}

Value Tape::rotate(const Value& x, std::int64_t heads, const at::Tensor& cosines,
                   const at::Tensor& sines) {
  ZINF_CHECK(cosines.size(0) == x.size(0) && cosines.size(1) * 2 * heads == x.size(1),
             "rotation table's shape");
  Value y = make(computes() ? rotated(x.data(), heads, cosines, sines, 1) : at::Tensor(),
                 x.node()->shape, x.node()->wants_gradient);
  if (!records()) return y;
  record([in = x.node(), out = y.node(), heads, cosines, sines] {
    const at::Tensor gradient = take_gradient(*out);
    if (gradient.defined()) add_to_node(*in, rotated(gradient, heads, cosines, sines, -1));
  });
  return y;
}

Value Tape::activation(const Value& x, std::string_view name) {
  Value y = make(computes() ? activate(x.data(), name) : at::Tensor(), x.node()->shape,
                 x.node()->wants_gradient);
  if (!records()) return y;
  save(x);
  record([in = x.node(), out = y.node(), name = std::string(name)] {
    const at::Tensor gradient = take_gradient(*out);
    if (gradient.defined()) add_to_node(*in, activate_backward(gradient, in->data, name));
  });
  return y;
}

Value Tape::multiply(const Value& a, const Value& b) {
  Value y = make(computes() ? at::mul(a.data(), b.data()) : at::Tensor(), a.node()->shape,
                 a.node()->wants_gradient || b.node()->wants_gradient);
  if (!records()) return y;
  save(a);
  save(b);
  record([first = a.node(), second = b.node(), out = y.node()] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    if (first->wants_gradient) add_to_node(*first, at::mul(gradient, second->data));
    if (second->wants_gradient) add_to_node(*second, at::mul(gradient, first->data));
  });
  return y;
}

Value Tape::add(const Value& x, Value update) {
  ZINF_CHECK(!update.node()->saved && !update.node()->external,
             "add() takes over memory that is still needed");
  Value y = make(computes() ? update.data().add_(x.data()) : at::Tensor(), x.node()->shape,
                 x.node()->wants_gradient || update.node()->wants_gradient);
  if (!records()) return y;
  record([first = x.node(), second = update.node(), out = y.node()] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    add_to_node(*first, gradient);
    add_to_node(*second, gradient);
  });
  return y;
}

Value Tape::add_rows(const Value& x, Weight& table, const at::Tensor& rows) {
  Value y = make(computes() ? table.value.index_select(0, rows).add_(x.data()) : at::Tensor(),
                 x.node()->shape, x.node()->wants_gradient || table.trainable);
  if (!records()) return y;
  record([in = x.node(), out = y.node(), &table, rows] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    add_to_node(*in, gradient);
    if (!table.trainable) return;
    if (table.overwrite) table.gradient.zero_();
    table.overwrite = false;
    // By hand: index_add_ promises no order when a row occurs twice.
    const at::Tensor wide = gradient.to(at::kFloat).contiguous();
    const std::int64_t width = wide.size(1);
    const std::int64_t* row = rows.const_data_ptr<std::int64_t>();
    for (std::int64_t position = 0; position < wide.size(0); ++position) {
      const float* from = wide.const_data_ptr<float>() + position * width;
      float* to = table.gradient.mutable_data_ptr<float>() + row[position] * width;
      for (std::int64_t i = 0; i < width; ++i) to[i] += from[i];
    }
  });
  return y;
}

std::vector<Value> Tape::split(const Value& x, const std::vector<std::int64_t>& widths) {
  std::vector<Value> parts;
  std::vector<std::shared_ptr<Node>> nodes;
  std::int64_t first = 0;
  for (const std::int64_t width : widths) {
    parts.push_back(make(computes() ? x.data().narrow(1, first, width) : at::Tensor(),
                         {x.size(0), width}, x.node()->wants_gradient));
    nodes.push_back(parts.back().node());
    first += width;
  }
  ZINF_CHECK(first == x.size(1), str("split of ", x.size(1), " into parts of ", first));
  if (!records()) return parts;
  record([in = x.node(), nodes, type = type_] {
    std::vector<at::Tensor> gradients;
    for (const auto& node : nodes) {
      at::Tensor gradient = take_gradient(*node);
      gradients.push_back(gradient.defined() ? std::move(gradient) : at::zeros(node->shape, type));
    }
    add_to_node(*in, at::cat(gradients, 1));
  });
  return parts;
}

}  // namespace zinf::model
