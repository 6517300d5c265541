// Overwrites every range of a buffer with 0xFF as soon as its last user in a segment is done and
// nothing later reads it: whoever uses a buffer too long, or too early, works with garbage.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/plan/placement.h"
#include "engine/plan/program.h"

namespace zinf::testing {

class Poison {
 public:
  // What is passed in outlives this object. Arenas: where buffers lie.
  Poison(const plan::ProgramSet& set, const plan::CompileInput& input, std::byte* device_arena,
         std::byte* host_arena);

  // ExecutorOptions::finished. Thread-safe.
  void finished(const plan::Op& op, plan::Segment segment);

  std::size_t ranges() const { return groups_.size(); }

 private:
  struct Group {
    std::byte* memory = nullptr;
    Bytes bytes = 0;
    int users = 0;
    std::atomic<int> left{0};
  };
  void find_groups(const plan::ProgramSet& set, plan::Segment segment, int buffer,
                   std::byte* memory);
  void add_group(std::byte* memory, Bytes bytes, plan::Segment segment,
                 const std::vector<int>& users);

  const plan::ProgramSet& set_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::vector<std::vector<Group*>>> of_op_;  // [segment][op]
};

}  // namespace zinf::testing
