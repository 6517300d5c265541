#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/cli/command.h"
#include "engine/model/float_convert.h"
#include "engine/model/safetensors.h"
#include "engine/observe/atomic_file.h"
#include "engine/observe/format.h"
#include "engine/observe/status.h"
#include "engine/train/run_area.h"
#include "engine/train/run_folder.h"
#include "engine/train/stored_run.h"
#include "nvme/areas.h"
#include "nvme/directory.h"

namespace zinf::cli {

namespace {

// L2 norm of a piece's master weights.
double piece_norm(train::StoredRun& stored, int piece) {
  const std::int64_t elements = stored.model().model.spec.pieces[piece].elements;
  std::vector<float> master(static_cast<std::size_t>(step::StateAccess::kElements));
  double sum = 0;
  for (std::int64_t first = 0; first < elements; first += step::StateAccess::kElements) {
    const std::int64_t count = std::min(step::StateAccess::kElements, elements - first);
    stored.states().read_master(piece, stored.manifest().slot, first, count, master.data());
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(master[i]) * master[i];
  }
  return std::sqrt(sum);
}

template <typename T>
T at(const std::byte* raw, std::int64_t index) {
  T value;
  std::memcpy(&value, raw + static_cast<std::size_t>(index) * sizeof value, sizeof value);
  return value;
}

double value_at(model::SafeType type, const std::byte* raw, std::int64_t index) {
  switch (type) {
    case model::SafeType::kBF16:
      return model::from_bf16(at<std::uint16_t>(raw, index));
    case model::SafeType::kF16:
      return model::from_fp16(at<std::uint16_t>(raw, index));
    case model::SafeType::kF64:
      return at<double>(raw, index);
    default:  // is_weight_type() holds
      return at<float>(raw, index);
  }
}

double tensor_norm(const model::SafetensorsFile& file, const model::SafeTensor& tensor) {
  constexpr std::int64_t kElements = 1 << 16;
  std::vector<std::byte> raw(kElements * sizeof(double));
  double sum = 0;
  for (std::int64_t first = 0; first < tensor.elements; first += kElements) {
    const std::int64_t count = std::min(kElements, tensor.elements - first);
    file.read(tensor, first, count, raw.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = value_at(tensor.type, raw.data(), i);
      sum += value * value;
    }
  }
  return std::sqrt(sum);
}

// A model in safetensors: a folder or one file.
int inspect_tensors(const std::vector<std::string>& files) {
  Bytes all = 0;
  for (const std::string& name : files) {
    const model::SafetensorsFile file = model::SafetensorsFile::open(name);
    std::cout << file.path() << "\n";
    for (const model::SafeTensor& tensor : file.tensors()) {
      std::printf(
          "  %-48s %-5s %-20s %s", tensor.name.c_str(), std::string(name_of(tensor.type)).c_str(),
          model::shape_text(tensor.shape).c_str(), format_bytes(tensor.end - tensor.begin).c_str());
      if (is_weight_type(tensor.type)) std::printf("  norm %.6g", tensor_norm(file, tensor));
      std::printf("\n");
      all += tensor.end - tensor.begin;
    }
  }
  std::cout << "in all " << format_bytes(all) << "\n";
  return 0;
}

// The safetensors files that `path` is or holds, by name.
std::vector<std::string> safetensors_in(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.ends_with(".safetensors")) return {path};
  std::vector<std::string> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Bytes bytes_of(const checkpoint::Manifest& manifest, const std::string& piece) {
  Bytes all = 0;
  for (const checkpoint::ManifestExtent& extent : manifest.extents)
    all += extent.piece == piece ? extent.bytes : 0;
  return all;
}

// What a copy takes of the drives, whose files are sparse.
Bytes allocated(const std::string& folder, const checkpoint::Manifest& manifest) {
  Bytes all = 0;
  for (const std::string& drive : train::area_drives(folder, manifest.area, manifest.drives))
    all += nvme::taken_bytes(nvme::area_file(drive, manifest.area));
  return all;
}

void print_space(const std::string& folder, const checkpoint::Manifest& live) {
  for (const std::string& drive : train::area_drives(folder, live.area, live.drives))
    std::cout << "free on " << drive << " " << format_bytes(nvme::free_bytes(drive)) << "\n";
  const checkpoint::KeptCheckpoints kept(folder);
  for (const std::int64_t step : kept.steps())
    std::cout << "kept step " << step << "  "
              << format_bytes(allocated(folder, kept.manifest(step))) << "\n";
}

// One slot of each state, over all pieces, in the order of the area.
void print_states(const checkpoint::Manifest& manifest) {
  std::vector<std::pair<std::string, Bytes>> states;
  for (const checkpoint::ManifestExtent& extent : manifest.extents) {
    const auto found = std::find_if(states.begin(), states.end(),
                                    [&](const auto& state) { return state.first == extent.state; });
    if (found == states.end())
      states.emplace_back(extent.state, extent.bytes);
    else
      found->second += extent.bytes;
  }
  for (const auto& [state, bytes] : states)
    std::printf("  %-24s %12s\n", state.c_str(), format_bytes(bytes).c_str());
}

// What the run's process says of itself, and whether it still lives: one that was killed, or whose
// machine lost power, can't have said so.
void print_status(const std::string& folder) {
  const std::string file = folder + "/status.json";
  if (!std::filesystem::exists(file)) return;
  observe::StoredStatus found;
  try {
    found = observe::parse_status(observe::read_file(file));
  } catch (const Error& error) {  // the state is worth seeing all the same
    std::cout << "state unknown: " << file << ": " << error.what() << "\n";
    return;
  }
  const observe::Status& status = found.status;
  const bool running = train::in_use(folder);
  const std::string name(run_state_name(status.state));
  if (!status.exit_code && !running) {
    std::cout << "state killed: no process holds the folder; the last word of process "
              << status.pid << " was " << name << ", step " << status.step << " (" << found.updated
              << ")\n";
    return;
  }
  // A process that has just begun has not said anything yet.
  const bool earlier = running && status.exit_code;
  std::cout << "state " << (earlier ? "starting; the process before: " : "") << name << ", step "
            << status.step << " of " << status.steps;
  if (status.exit_code) std::cout << ", exit code " << *status.exit_code;
  if (!status.exit_code) std::cout << ", process " << status.pid;
  if (!status.exit_code && status.eta_seconds >= 0)
    std::cout << ", ETA " << observe::format_duration(status.eta_seconds);
  std::cout << " (" << found.updated << ")\n";
  if (!status.message.empty()) std::cout << "message " << status.message << "\n";
}

int inspect_run(const std::string& folder, std::optional<std::int64_t> step) {
  print_status(folder);  // first: a run that failed early has no commit
  std::cout.flush();
  train::StoredRun stored(folder, step);
  const checkpoint::Manifest& manifest = stored.manifest();
  std::cout << "step " << manifest.step << " of " << manifest.steps
            << (manifest.finished ? ", finished" : "") << "\n"
            << "format " << manifest.format << "\narea " << manifest.area << " on";
  for (const std::string& drive : train::area_drives(folder, manifest.area, manifest.drives))
    std::cout << " " << drive;
  std::cout << ", " << format_bytes(stored.tiers().nvme_bytes()) << "\n";
  print_space(folder, manifest);
  std::cout << "parameters " << stored.model().model.spec.parameters() << "\nstates, one slot\n";
  print_states(manifest);
  std::cout << "layers, with all their states\n";
  std::cout.flush();
  const auto& pieces = stored.model().model.spec.pieces;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::printf("  %-24s %12lld parameters  %12s  norm %.6g%s\n", pieces[p].name.c_str(),
                static_cast<long long>(pieces[p].parameters),
                format_bytes(bytes_of(manifest, pieces[p].name)).c_str(),
                piece_norm(stored, static_cast<int>(p)), pieces[p].trainable ? "" : "  frozen");
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  struct Options {
    std::string run;
    std::optional<std::int64_t> step;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("inspect", "say what a commit of a run holds");
  command->add_option("RUN", options->run, "run folder, or a .safetensors file or folder of them")
      ->required();
  command->add_option("--step", options->step, "a kept checkpoint instead of the newest commit");
  command->callback([options, &run] {
    run = [options] {
      const std::vector<std::string> tensors = safetensors_in(options->run);
      if (!tensors.empty()) return inspect_tensors(tensors);
      return inspect_run(options->run, options->step);
    };
  });
}

}  // namespace zinf::cli
