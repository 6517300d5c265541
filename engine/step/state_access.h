// Reads and writes states of pieces wherever they live, while no segment is running: loading the
// first weights, hashes, export. Works through a few small page-aligned buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cpu_optim/state_schema.h"
#include "engine/plan/placement.h"
#include "engine/plan/program.h"
#include "gpu/host_memory.h"
#include "swap/tiers.h"

namespace zinf::step {

class StateAccess {
 public:
  // Elements handled at a time, at most; a multiple of every chunk alignment that the schema can
  // need.
  static constexpr std::int64_t kElements = 1 << 18;

  // All references outlive this object. format: of the trainable pieces.
  StateAccess(const plan::ProgramSet& programs, const plan::CompileInput& input,
              const optim::Format& format, swap::Tiers& tiers);

  // [first, first + count) of one state, as stored. first: a multiple of kElements; count: at most
  // kElements. Blocks; throws what I/O throws.
  void read(int piece, int state, int slot, std::int64_t first, std::int64_t count, std::byte* to);
  void write(int piece, int state, int slot, std::int64_t first, std::int64_t count,
             const std::byte* from);

  // Initial state of a piece's range from fp32 masters: working weight and master or remainder.
  // Moments are not written: they are zero by a flag until the first update.
  void store_master(int piece, int slot, std::int64_t first, std::int64_t count,
                    const float* master);
  // fp32 master values; of a frozen piece, the weights widened.
  void read_master(int piece, int slot, std::int64_t first, std::int64_t count, float* master);

  // Copies the states that live in memory to their extents (write_through) and back (restore).
  // Nothing is durable before a sync. moments_are_zero: moments hold nothing yet and are passed
  // over.
  void write_through(int slot, bool moments_are_zero);
  void restore(int slot, bool moments_are_zero);

  struct Hashes {
    std::string weights;
    std::string state;
  };
  // Canonical: independent of placement, chunks and slots. moments_are_zero: before the first
  // update. Empty once go_on, asked every few MiB, says no.
  Hashes hashes(std::int64_t version, int slot, bool moments_are_zero,
                const std::function<bool()>& go_on = {});

 private:
  struct Place {
    std::byte* memory = nullptr;  // where the state lives, when that is memory
    int extent = -1;
  };
  void for_each_resident(
      bool moments_are_zero,
      const std::function<void(int, int, std::int64_t, std::int64_t)>& visit) const;
  // Moves every resident state, several transfers at a time.
  void transfer(int slot, bool moments_are_zero, bool out);
  std::vector<std::vector<Place>> places_;  // [piece][state]

  const plan::CompileInput& input_;
  optim::Format format_;
  swap::Tiers& tiers_;
  static constexpr int kBuffers = 4;
  Bytes buffer_bytes_ = 0;
  gpu::HostMemory scratch_;  // kBuffers of them; single transfers use the first
};

}  // namespace zinf::step
