#include "engine/plan/hardware.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace zinf::plan {

namespace {
constexpr double kTera = 1e12, kGiga = 1e9;
// Sustained bf16 rates are about half of the data sheets' dense peaks; copies are what PCIe 4 x16,
// PCIe 5 x16 and NVLink-C2C deliver in practice.
constexpr std::array<GpuClass, 10> kGpus = {{
    {"RTX3090", 24 * kGiB, 60 * kTera, 24 * kGiga},
    {"RTX4090", 24 * kGiB, 150 * kTera, 25 * kGiga},
    {"RTX5090", 32 * kGiB, 200 * kTera, 50 * kGiga},
    {"L40S", 48 * kGiB, 180 * kTera, 25 * kGiga},
    {"A100-40", 40 * kGiB, 180 * kTera, 24 * kGiga},
    {"A100-80", 80 * kGiB, 180 * kTera, 24 * kGiga},
    {"H100", 80 * kGiB, 500 * kTera, 50 * kGiga},
    {"H200", 141 * kGiB, 550 * kTera, 50 * kGiga},
    {"GH200", 96 * kGiB, 550 * kTera, 200 * kGiga},
    {"B200", 180 * kGiB, 1100 * kTera, 50 * kGiga},
}};

std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}
}  // namespace

std::optional<GpuClass> find_gpu(const std::string& name) {
  for (const GpuClass& gpu : kGpus) {
    if (plain(gpu.name) == plain(name)) return gpu;
  }
  return std::nullopt;
}

std::string gpu_names() {
  std::string names;
  for (const GpuClass& gpu : kGpus) names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

}  // namespace zinf::plan
