// Matrix products and norms.
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {
namespace {

void add_bias_gradient(Weight* bias, const at::Tensor& gradient) {
  if (bias == nullptr || !bias->trainable) return;
  if (gradient.scalar_type() != at::kBFloat16 || gradient.stride(1) != 1)
    return add_gradient(*bias, at::sum(gradient, {0}, false, at::kFloat));
  const Bf16Rows rows = bf16_rows(gradient);
  accumulate_columns(bias->gradient.mutable_data_ptr<float>(), rows.data, rows.stride,
                     gradient.size(0), gradient.size(1), !bias->overwrite);
  bias->overwrite = false;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& matrix, const Weight* bias) {
  return bias == nullptr ? at::mm(x, matrix) : at::addmm(bias->value, x, matrix);
}

}  // namespace

Value Tape::linear(const Value& x, Weight& weight, Weight* bias) {
  ZINF_CHECK(weight.value.size(1) == x.size(1),
             str("linear of width ", weight.value.size(1), " on ", x.size(1)));
  const bool trains = weight.trainable || (bias != nullptr && bias->trainable);
  Value y = make(computes() ? product(x.data(), weight.value.t(), bias) : at::Tensor(),
                 {x.size(0), weight.value.size(0)}, trains || x.node()->wants_gradient);
  if (!records()) return y;
  if (weight.trainable) save(x);
  record([in = x.node(), out = y.node(), &weight, bias] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    if (weight.trainable) add_gradient_product(weight, gradient.t(), in->data);
    add_bias_gradient(bias, gradient);
    add_product_to_node(*in, gradient, weight.value);
  });
  return y;
}

Value Tape::linear_transposed(const Value& x, Weight& weight, Weight* bias) {
  ZINF_CHECK(weight.value.size(0) == x.size(1),
             str("linear of width ", weight.value.size(0), " on ", x.size(1)));
  const bool trains = weight.trainable || (bias != nullptr && bias->trainable);
  Value y = make(computes() ? product(x.data(), weight.value, bias) : at::Tensor(),
                 {x.size(0), weight.value.size(1)}, trains || x.node()->wants_gradient);
  if (!records()) return y;
  if (weight.trainable) save(x);
  record([in = x.node(), out = y.node(), &weight, bias] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    if (weight.trainable) add_gradient_product(weight, in->data.t(), gradient);
    add_bias_gradient(bias, gradient);
    add_product_to_node(*in, gradient, weight.value.t());
  });
  return y;
}

Value Tape::layer_norm(const Value& x, Weight& weight, Weight& bias, double epsilon) {
  at::Tensor normed, mean, rstd;
  if (computes()) {
    std::tie(normed, mean, rstd) =
        at::native_layer_norm(x.data(), weight.value.sizes(), weight.value, bias.value, epsilon);
  }
  const bool wants = x.node()->wants_gradient || weight.trainable || bias.trainable;
  Value y = make(std::move(normed), x.node()->shape, wants);
  if (!records()) return y;
  save(x);
  const auto saved_mean = make_saved(std::move(mean), {x.size(0), 1}, type_);
  const auto saved_rstd = make_saved(std::move(rstd), {x.size(0), 1}, type_);
  record([in = x.node(), out = y.node(), saved_mean, saved_rstd, &weight, &bias] {
    const at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    const auto [to_x, to_weight, to_bias] = at::native_layer_norm_backward(
        gradient, in->data, weight.value.sizes(), saved_mean->data, saved_rstd->data, weight.value,
        bias.value, {in->wants_gradient, weight.trainable, bias.trainable});
    if (weight.trainable) add_gradient(weight, to_weight);
    if (bias.trainable) add_gradient(bias, to_bias);
    if (in->wants_gradient) add_to_node(*in, to_x);
  });
  return y;
}

Value Tape::rms_norm(const Value& x, Weight& weight, double epsilon) {
  const std::int64_t group = weight.value.size(0);
  const std::int64_t groups = x.size(0) * (x.size(1) / group);
  ZINF_CHECK(x.size(1) % group == 0, str("rms_norm of ", group, " on ", x.size(1)));
  at::Tensor normed, rstd;
  if (computes()) {
    const at::Tensor wide = x.data().reshape({groups, group}).to(at::kFloat);
    rstd = at::mul(wide, wide).mean({1}, true).add_(epsilon).rsqrt_();
    normed = at::mul(wide, rstd).to(type_).mul_(weight.value).view(x.node()->shape);
  }
  Value y = make(std::move(normed), x.node()->shape, x.node()->wants_gradient || weight.trainable);
  if (!records()) return y;
  save(x);
  const auto saved_rstd = make_saved(std::move(rstd), {groups, 1}, at::kFloat);
  record([in = x.node(), out = y.node(), saved_rstd, &weight, groups, group, type = type_] {
    at::Tensor gradient = take_gradient(*out);
    if (!gradient.defined()) return;
    gradient = gradient.reshape({groups, group}).to(at::kFloat);
    const at::Tensor unit =
        at::mul(in->data.reshape({groups, group}), saved_rstd->data);  // x / rms(x)
    if (weight.trainable) add_gradient(weight, at::mul(gradient, unit).sum({0}));
    if (!in->wants_gradient) return;
    at::Tensor to_unit = at::mul(gradient, weight.value);
    const at::Tensor share = at::mul(to_unit, unit).mean({1}, true);
    to_unit.sub_(at::mul(unit, share)).mul_(saved_rstd->data);
    add_to_node(*in, to_unit.to(type).view(in->shape));
  });
  return y;
}

}  // namespace zinf::model
