#include "common/checkpoint/merge.h"

#include <algorithm>
#include <map>
#include <vector>

#include "common/checkpoint/adapter_terms.h"
#include "common/checkpoint/safetensors.h"
#include "common/storage/file.h"
#include "common/tensor/fingerprint.h"
#include "common/tensor/text.h"

namespace centroid {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAdapterPrefix = "base_model.model.", kA = ".lora_A.weight",
                           kB = ".lora_B.weight";

Error bad(const fs::path& file, const std::string& what) {
  return {ErrorCode::kInvalidArgument, file.string() + ": " + what};
}

/// The adapters' tensors, by the names of the base.
struct Adapters {
  struct Pair {
    const TensorInfo *a = nullptr, *b = nullptr;
  };
  std::map<std::string, Pair> pairs;  ///< by name of the matrix
  std::map<std::string, const TensorInfo*> rest;
};

Result<Adapters> sort(const SafetensorsReader& reader, const fs::path& file, std::uint64_t rank) {
  Adapters out;
  for (const TensorInfo& tensor : reader.manifest()) {
    std::string name = tensor.name;
    if (name.starts_with(kAdapterPrefix)) name.erase(0, kAdapterPrefix.size());
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (is_a || is_b) {
      name.resize(name.size() - kA.size());
      (is_a ? out.pairs[name + ".weight"].a : out.pairs[name + ".weight"].b) = &tensor;
    } else if (name.find("lora_") != std::string::npos) {
      return bad(file, "tensor " + printable(tensor.name, 200) + " is no adapter of a matrix");
    } else {
      out.rest[name] = &tensor;
    }
  }
  for (const auto& [name, pair] : out.pairs) {
    const auto matrix = printable(name, 200);
    if (pair.a == nullptr || pair.b == nullptr)
      return bad(file, "the adapters of " + matrix + " lack lora_" + (pair.a ? "B" : "A"));
    const bool fits = pair.a->shape.size() == 2 && pair.b->shape.size() == 2 &&
                      pair.a->shape[0] == rank && pair.b->shape[1] == rank &&
                      pair.a->elements() > 0;
    if (!fits)
      return bad(file, "the adapters of " + matrix + " have shapes " + to_string(pair.a->shape) +
                           " and " + to_string(pair.b->shape) + ", of rank " +
                           std::to_string(rank) + " they are [rank, in] and [out, rank]");
  }
  return out;
}

/// Every adapter has a matrix of its shape.
Status check(const Adapters& adapters, const Manifest& base, const fs::path& file) {
  for (const auto& [name, pair] : adapters.pairs) {
    const auto found = std::ranges::find(base, name, &TensorInfo::name);
    if (found == base.end())
      return bad(file, "contains no matrix " + printable(name, 200) + " for the adapters of it");
    const Shape expected{pair.b->shape[0], pair.a->shape[1]};
    if (found->shape != expected)
      return bad(file, "matrix " + printable(name, 200) + " has shape " + to_string(found->shape) +
                           ", its adapters are for " + to_string(expected));
  }
  return {};
}

Result<std::vector<float>> read(const SafetensorsReader& reader, const TensorInfo& tensor) {
  std::vector<float> out(tensor.elements());
  CENTROID_TRY(reader.read_f32(tensor.name, out));
  return out;
}

/// The fingerprint of the numbers of a file, in its order, as of one tensor.
Result<std::uint64_t> fingerprint_of(const SafetensorsReader& reader) {
  std::vector<float> all;
  for (const TensorInfo& tensor : reader.manifest()) {
    CENTROID_ASSIGN(const auto values, read(reader, tensor));
    all.insert(all.end(), values.begin(), values.end());
  }
  return fingerprint(all);
}

Status check_base(const SafetensorsReader& base, const fs::path& base_file,
                  const SafetensorsReader& adapters, const fs::path& adapter_file) {
  const auto recorded = adapters.metadata().find("base_fingerprint");
  if (recorded == adapters.metadata().end()) return {};  // another program's, without a fingerprint
  CENTROID_ASSIGN(const std::uint64_t found, fingerprint_of(base));
  if (recorded->second == std::to_string(found)) return {};
  return bad(
      adapter_file,
      "was trained beside base weights with fingerprint " + printable(recorded->second) + ", " +
          base_file.string() + " has " + std::to_string(found) +
          ": use that file, or --any-base if this one contains the same numbers in another order");
}

class Output {
 public:
  Output(SafetensorsWriter writer, DType dtype) : writer_(std::move(writer)), dtype_(dtype) {}

  Status append(std::span<const float> values) {
    if (dtype_ == DType::kF32) return writer_.append(std::as_bytes(values));
    halves_.resize(values.size());
    const bool is_bf16 = dtype_ == DType::kBF16;
    for (std::size_t i = 0; i < values.size(); ++i)
      halves_[i] = is_bf16 ? bf16_from_f32(values[i]) : f16_from_f32(values[i]);
    return writer_.append(std::as_bytes(std::span(halves_)));
  }
  Status finish() {
    CENTROID_TRY(writer_.finish());
    return {};
  }

 private:
  SafetensorsWriter writer_;
  DType dtype_;
  std::vector<std::uint16_t> halves_;
};

/// w += scale b a, rounded once.
void add_product(std::span<float> w, std::span<const float> b, std::span<const float> a,
                 double scale, std::size_t rank) {
  const std::size_t in = a.size() / rank;
  std::vector<double> row(in);
  for (std::size_t i = 0; i < w.size() / in; ++i) {
    std::ranges::fill(row, 0.0);
    for (std::size_t k = 0; k < rank; ++k) {
      const double factor = scale * static_cast<double>(b[i * rank + k]);
      for (std::size_t j = 0; j < in; ++j) row[j] += factor * static_cast<double>(a[k * in + j]);
    }
    float* const to = w.data() + i * in;
    for (std::size_t j = 0; j < in; ++j)
      to[j] = static_cast<float>(static_cast<double>(to[j]) + row[j]);
  }
}

}  // namespace

Status merge_adapters(const fs::path& base, const fs::path& adapters, const fs::path& target,
                      const MergeOptions& options) {
  const bool is_known =
      options.dtype == DType::kF32 || options.dtype == DType::kF16 || options.dtype == DType::kBF16;
  if (!is_known)
    return Error(ErrorCode::kInvalidArgument,
                 "merge as " + std::string(to_string(options.dtype)) + ": take f32, bf16 or f16");
  if (target.extension() != ".safetensors")
    return Error(ErrorCode::kInvalidArgument,
                 "merge into " + target.string() + ": the name must end in .safetensors");
  const fs::path file = adapters / "adapter_model.safetensors";
  CENTROID_ASSIGN(const AdapterTerms terms, read_adapter_terms(adapters / "adapter_config.json"));
  CENTROID_ASSIGN(const SafetensorsReader from, SafetensorsReader::open(base));
  CENTROID_ASSIGN(const SafetensorsReader added, SafetensorsReader::open(file));
  CENTROID_ASSIGN(const Adapters sorted, sort(added, file, terms.rank));
  CENTROID_TRY(check(sorted, from.manifest(), base));
  if (!options.any_base) CENTROID_TRY(check_base(from, base, added, file));

  struct Part {
    const SafetensorsReader* reader;
    const TensorInfo* tensor;
    const Adapters::Pair* pair;
  };
  std::vector<Part> parts;
  Manifest out;
  for (const TensorInfo& tensor : from.manifest()) {
    const auto pair = sorted.pairs.find(tensor.name);
    const auto rest = sorted.rest.find(tensor.name);
    if (rest != sorted.rest.end())
      parts.push_back({&added, rest->second, nullptr});
    else
      parts.push_back({&from, &tensor, pair == sorted.pairs.end() ? nullptr : &pair->second});
    out.push_back({tensor.name, options.dtype, parts.back().tensor->shape});
  }
  for (const auto& [name, tensor] : sorted.rest) {
    if (std::ranges::find(from.manifest(), name, &TensorInfo::name) != from.manifest().end())
      continue;
    parts.push_back({&added, tensor, nullptr});
    out.push_back({name, options.dtype, tensor->shape});
  }
  CENTROID_ASSIGN(auto writer, SafetensorsWriter::create(target, out, {{"format", "pt"}}));
  Output output(std::move(writer), options.dtype);
  for (const Part& part : parts) {
    CENTROID_ASSIGN(auto values, read(*part.reader, *part.tensor));
    if (part.pair != nullptr) {
      CENTROID_ASSIGN(const auto a, read(added, *part.pair->a));
      CENTROID_ASSIGN(const auto b, read(added, *part.pair->b));
      add_product(values, b, a, terms.scale, static_cast<std::size_t>(terms.rank));
    }
    CENTROID_TRY(output.append(values));
  }
  CENTROID_TRY(output.finish());
  return file::sync_directory(fs::absolute(target).parent_path());
}

}  // namespace centroid
