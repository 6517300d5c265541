// The seam between a family and torch_compute: a stage's mathematics as a function over the tape.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model/batch_view.h"
#include "engine/model/tape.h"

namespace zinf::model {

// A stage's weights by their tensor names.
class StageWeights {
 public:
  void add(const std::string& name, Weight weight) { weights_.emplace(name, std::move(weight)); }
  Weight& operator()(const std::string& name);
  // nullptr when the stage has no such tensor (an absent bias).
  Weight* find(const std::string& name);
  auto begin() { return weights_.begin(); }
  auto end() { return weights_.end(); }

 private:
  std::unordered_map<std::string, Weight> weights_;
};

struct HeadResult {
  Value hidden;       // [positions, width]
  std::string table;  // logits = hidden x table^T; empty: hidden is [rows, 1], predictions with
                      // squared error
};

class StageFunctions {
 public:
  virtual ~StageFunctions() = default;
  // Output activations of a kBlock stage. Inputs are [positions, width].
  virtual std::vector<Value> block(int stage, Tape& tape, StageWeights& weights,
                                   const std::vector<Value>& inputs,
                                   const BatchView& batch) const = 0;
  // The kHead stage up to the logits.
  virtual HeadResult head(Tape& tape, StageWeights& weights, const Value& input,
                          const BatchView& batch) const = 0;
};

}  // namespace zinf::model
