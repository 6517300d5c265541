// CPU seconds of one call of each kind of stage at GPT-2 125M's sizes, beside the bare matrix
// products that it needs. usage: model_compute_bench [fp32|bf16] [positions] [threads]
// [repetitions]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

double wall_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double cpu_ms() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct Line {
  const char* name;
  int stage;
  CallMode mode;
  bool first;
};

void bench(InMemoryModel& twin, const data::StepBatch& step, int repetitions) {
  twin.step(step);
  const int head = static_cast<int>(twin.spec().stages.size()) - 1;
  const Line lines[] = {{"embed forward", 1, CallMode::kForward, true},
                        {"layer forward, first of visit", 2, CallMode::kForward, true},
                        {"layer forward, later", 2, CallMode::kForward, false},
                        {"layer backward, first of visit", 2, CallMode::kBackward, true},
                        {"layer backward, later", 2, CallMode::kBackward, false},
                        {"head loss", head, CallMode::kForward, true},
                        {"head loss and gradients", head, CallMode::kBackward, true}};
  for (const Line& line : lines) {
    double best_cpu = 1e30, best_wall = 1e30;
    for (int i = 0; i < repetitions; ++i) {
      if (!line.first) twin.call(line.stage, line.mode, true);
      const double cpu = cpu_ms(), wall = wall_ms();
      twin.call(line.stage, line.mode, line.first);
      best_cpu = std::min(best_cpu, cpu_ms() - cpu);
      best_wall = std::min(best_wall, wall_ms() - wall);
    }
    const double flops = twin.spec().stages[line.stage].forward_flops_per_position *
                         (line.mode == CallMode::kForward ? 1
                          : line.stage == head            ? 3
                                                          : 4) *
                         static_cast<double>(step.micro_batches[0].ids.size());
    std::printf(
        "%-32s cpu %8.2f ms  wall %8.2f ms  %6.1f GFLOP/s per CPU second  workspace %.1f MiB\n",
        line.name, best_cpu, best_wall, flops / best_cpu * 1e-6,
        static_cast<double>(twin.compute().workspace_peak()) / 1048576);
  }
}

}  // namespace
}  // namespace zinf::model

int main(int argc, char** argv) {
  using namespace zinf::model;
  const bool bf16 = argc > 1 && std::strcmp(argv[1], "bf16") == 0;
  const int positions = argc > 2 ? std::atoi(argv[2]) : 256;
  const int repetitions = argc > 4 ? std::atoi(argv[4]) : 5;
  const std::string text =
      R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 1, "n_head": 12,
    "n_positions": 1024})";
  const auto source = random_weights(7);
  TwinOptions options;
  options.workspace = std::size_t{512} << 20;
  options.gradient_in_place = false;
  options.poison = false;
  options.threads = argc > 3 ? std::atoi(argv[3]) : 1;
  InMemoryModel twin(load_model(config_of(text), {bf16 ? DType::kBFloat16 : DType::kFloat32, {}}),
                     *source, options);
  bench(twin, step_of({packed_batch(positions, {{random_document(positions, 1, 50257)}})}),
        repetitions);
}
