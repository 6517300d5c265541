// Private to the compiler: emits the ops of one segment after the other.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/builder.h"
#include "engine/plan/visits.h"

namespace zinf::plan {

class Emitter {
 public:
  explicit Emitter(Builder& builder)
      : b_(builder),
        in_(builder.input),
        model_(*builder.input.model),
        facts_(derive_facts(*builder.input.model)) {}

  void forward_segment(Segment segment);
  void backward_segment(Segment segment);
  void update_segment(Segment segment);

 private:
  // emit_pieces.cc: weights, updates, gradients, by ranges of a piece
  void update_chunk(int piece, std::int64_t first, std::int64_t count, int device_weights);
  void write_back(int piece, std::int64_t first, std::int64_t count, int slot);
  void update_piece(int piece, int device_weights);
  // Elements of a piece; a device buffer that goes with them holds them from its start.
  struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  Part whole(int piece) const { return {0, model_.pieces[piece].elements}; }
  // each(first, count) for the part's chunks in order. Where only sizes are asked for, of many
  // chunks the first two and the last two: those between use the same buffers in the same order (at
  // most two take turns), so that no life begins or ends with them.
  template <typename Each>
  void each_chunk(Part part, std::int64_t chunk, Each each) const {
    const std::int64_t chunks = (part.count + chunk - 1) / chunk;
    for (std::int64_t i = 0; i < chunks; ++i) {
      if (b_.sizes_only() && i == 2) i = std::max(i, chunks - 2);
      const std::int64_t first = part.first + i * chunk;
      each(first, std::min(chunk, part.first + part.count - first));
    }
  }
  void fetch_weights(int piece, Part part, int device_weights, bool after_update);
  void gather_piece(int piece);
  void gather(int piece, std::int64_t first, std::int64_t count, Operand weights);
  void gradients_in(int piece, Part part, int device_gradients);
  void gradients_out(int piece, Part part, int device_gradients, bool last_group);
  Operand round(int piece, std::int64_t first, std::int64_t count, Operand sums);
  void spill(int piece, std::int64_t first, std::int64_t count, Operand gradient, bool complete);
  int device_sums(int piece);
  bool sums_stay(int piece) const;
  void update_early(int piece, int device_gradients, int device_weights);
  struct UpdateOps;
  UpdateOps update_ops(int piece, std::int64_t first, std::int64_t count, int slot,
                       int device_weights);
  void begin(Segment segment);
  void commit();
  void finish_table_gradient(int piece);
  void norm(int piece, std::int64_t first, std::int64_t count, Operand gradient);
  Operand gradient_home(int piece, std::int64_t first, std::int64_t count, int slot,
                        bool complete = true);

  // emit_visits.cc: the compute side
  void fetch_visit(std::size_t number, const Visit& visit);
  void run_visits(const std::vector<Visit>& visits);
  void run_visit(std::size_t number, const Visit& visit);
  // A compute op with a slice of the head's table, and where the slice is.
  struct SliceCall {
    int piece = -1;
    Part part;
    bool backward = false;
    bool last = false;           // of the table
    Operand weights, gradients;  // of the slice; buffer -1: none
  };
  void compute(std::size_t number, const Visit& visit, int micro_batch,
               const std::vector<int>& gradients, const SliceCall* slice = nullptr);
  std::vector<int> gradient_buffers(std::size_t number, const Visit& visit);
  void leave(std::size_t number, const Visit& visit, const std::vector<int>& gradients);
  void load(std::size_t number, const Visit& visit, int micro_batch);
  void store(std::size_t number, const Visit& visit, int micro_batch);
  void move_activation(int activation, int micro_batch, int device_buffer, bool to_device);
  int activation_buffer(int activation, int micro_batch, std::size_t visit, bool backward,
                        bool gradient);
  bool travels(int activation) const;
  bool keeps(int stage) const;
  int weights_buffer(std::size_t number, const Visit& visit, int piece);
  Bytes activation_bytes(int activation) const;

  // emit_slices.cc: a head whose table comes in slices
  bool in_slices(const Visit& visit) const;
  void run_slices(std::size_t number, const Visit& visit);
  Operand slice_weights(int piece, Part part, std::size_t turn);
  Operand slice_gradients(int piece, Part part, bool first_group);
  std::vector<Part> table_slices() const;
  std::int64_t largest_slice() const;  // elements

  Builder& b_;
  const CompileInput& in_;
  const model::ModelSpec& model_;
  ModelFacts facts_;
  std::vector<bool> updated_;  // per piece: done by the current segment or the one before
  std::map<std::size_t, std::vector<int>>
      weights_;  // per visit number: device buffers of its pieces
};

}  // namespace zinf::plan
