#include "engine/model/tape.h"

#include "engine/model/aten.h"

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/bf16_gradient.h"
#include "engine/model/stage_functions.h"
#include "engine/model/tape_gradient.h"

namespace zinf::model {

Weight& StageWeights::operator()(const std::string& name) {
  Weight* weight = find(name);
  ZINF_CHECK(weight != nullptr, str("the stage has no tensor ", name));
  return *weight;
}

Weight* StageWeights::find(const std::string& name) {
  const auto found = weights_.find(name);
  return found == weights_.end() ? nullptr : &found->second;
}

void add_gradient(Weight& weight, const at::Tensor& gradient) {
  if (!weight.trainable) return;
  const at::Tensor shaped = gradient.view(weight.gradient.sizes());
  if (shaped.scalar_type() == at::kBFloat16 && shaped.is_contiguous()) {
    add_bf16(weight.gradient, shaped, !weight.overwrite);
  } else if (weight.overwrite) {
    weight.gradient.copy_(shaped);
  } else {
    weight.gradient.add_(shaped);
  }
  weight.overwrite = false;
}

void add_gradient_product(Weight& weight, const at::Tensor& a, const at::Tensor& b) {
  if (!weight.trainable) return;
  if (a.scalar_type() == at::kFloat) {
    at::addmm_out(weight.gradient, weight.gradient, a, b, weight.overwrite ? 0 : 1, 1);
  } else if (const at::Tensor by_position = a.t(); has_bf16_gradient(by_position, b)) {
    add_bf16_gradient(weight.gradient, by_position, b, !weight.overwrite);
  } else {
    return add_gradient(weight, at::mm(a, b));
  }
  weight.overwrite = false;
}

Tape::Value::Value(std::shared_ptr<Node> node) : hold_(std::make_shared<Hold>(std::move(node))) {}

Tape::Value::Hold::~Hold() {
  if (node && !node->saved && !node->external) node->data.reset();
}

Value Tape::make(at::Tensor data, std::vector<std::int64_t> shape, bool wants_gradient) {
  auto node = std::make_shared<Node>();
  node->data = std::move(data);
  node->shape = std::move(shape);
  node->type = type_;
  node->wants_gradient = wants_gradient;
  if (records()) nodes_.push_back(node);
  return Value(std::move(node));
}

std::shared_ptr<Tape::Node> Tape::make_saved(at::Tensor data, std::vector<std::int64_t> shape,
                                             at::ScalarType type) {
  auto node = std::make_shared<Node>();
  node->data = std::move(data);
  node->shape = std::move(shape);
  node->type = type;
  node->saved = true;
  nodes_.push_back(node);
  return node;
}

Value Tape::input(at::Tensor data, bool wants_gradient) {
  std::vector<std::int64_t> shape = data.sizes().vec();
  Value value = make(std::move(data), std::move(shape), wants_gradient);
  value.node()->external = true;
  return value;
}

std::vector<std::shared_ptr<Tape::Node>> Tape::saved_nodes() const {
  std::vector<std::shared_ptr<Node>> saved;
  for (const auto& node : nodes_) {
    if (node->saved && !node->external) saved.push_back(node);
  }
  return saved;
}

void Tape::backward(const std::vector<Value>& outputs, const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].node()->gradient = gradients[i];
  nodes_.clear();  // from here on the steps alone hold what they need
  while (!steps_.empty()) {
    steps_.back()();
    steps_.pop_back();
  }
}

}  // namespace zinf::model
