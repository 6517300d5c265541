// What the Python tests ask of the model files:
//   model_files_probe verdict FILE...             one line each: "ok" or "refused: <reason>"
//   model_files_probe list FILE                   one line a tensor: name, type, shape, hash of the
//   data (tab between) model_files_probe export IN OUT TYPE BYTES    exports folder IN with its own
//   values; BYTES: of a shard, 0: one file
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/model/float_convert.h"
#include "engine/model/hf_export.h"

namespace {

using namespace zinf::model;

int verdict(int count, char** files) {
  for (int i = 0; i < count; ++i) {
    try {
      SafetensorsFile::open(files[i]);
      std::cout << "ok\n";
    } catch (const zinf::Error& error) {
      const std::string text = error.what();
      std::cout << "refused: " << text.substr(0, text.find('\n')) << "\n";
    }
  }
  return 0;
}

int list(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const SafeTensor& tensor : file.tensors()) {
    std::string data(tensor.end - tensor.begin, ' ');
    file.read_bytes(tensor, 0, data.size(), data.data());
    zinf::Hasher hash;
    hash.update(data.data(), data.size());
    std::cout << tensor.name << '\t' << name_of(tensor.type) << '\t' << shape_text(tensor.shape)
              << '\t' << hash.hex() << '\n';
  }
  return 0;
}

// Every weight of the folder is a piece of its own: no family is needed to carry a folder through.
int export_folder(const std::string& in, const std::string& out, const std::string& type,
                  zinf::Bytes shard_bytes) {
  const HfFolder folder = HfFolder::open(in);
  ModelSpec spec;
  spec.family = "any";
  TensorMap map;
  for (const std::string& name : folder.names()) {
    const SafeTensor& tensor = *folder.find(name);
    if (!is_weight_type(tensor.type)) {
      map.carried.push_back(name);
      continue;
    }
    PieceSpec piece;
    piece.name = name;
    piece.tensors.emplace_back();
    piece.tensors[0].name = name;
    piece.tensors[0].shape = tensor.shape;
    lay_out(piece);
    spec.pieces.push_back(std::move(piece));
    map.folder_name[name] = name;
  }
  ExportOptions options;
  options.type = type == "fp32" ? DType::kFloat32 : DType::kBFloat16;
  options.shard_bytes = shard_bytes;
  const auto weights = folder_weights(folder, map);
  std::vector<float> master(kExportChunk);
  const ExportValues values = [&](int piece, std::int64_t first, std::int64_t count, void* into) {
    if (options.type == DType::kFloat32) {
      weights->read_piece(spec.pieces[piece], first, count, static_cast<float*>(into));
      return;
    }
    weights->read_piece(spec.pieces[piece], first, count, master.data());
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<std::uint16_t*>(into)[i] = to_bf16_even(master[i]);
  };
  export_hf(spec, {&folder, &map, ""}, values, out, options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "verdict") return verdict(argc - 2, argv + 2);
    if (what == "list" && argc == 3) return list(argv[2]);
    if (what == "export" && argc == 6)
      return export_folder(argv[2], argv[3], argv[4], std::stoull(argv[5]));
  } catch (const zinf::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
  std::cerr << "usage: model_files_probe verdict FILE... | list FILE | export IN OUT fp32|bf16 "
               "SHARD_BYTES\n";
  return 2;
}
