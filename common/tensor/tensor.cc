#include "common/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "common/base/random.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

constexpr std::uint64_t kHashSeed = 0x63656E74726F6964ULL;  // "centroid"
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

/// Chain of mix64 over words.
class Hasher {
 public:
  void put(std::uint64_t word) { state_ = mix64(state_, word); }
  void put(std::string_view text) {
    put(text.size());
    for (std::size_t at = 0; at < text.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
      put(word);
    }
  }
  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = kHashSeed;
};

std::string quoted(const std::string& name) { return '"' + printable(name, 256) + '"'; }

std::string form(const TensorInfo& tensor) {
  return std::string(to_string(tensor.dtype)) + ' ' + to_string(tensor.shape);
}

std::string described(const TensorInfo& tensor) { return quoted(tensor.name) + ' ' + form(tensor); }

using Names = std::unordered_set<std::string_view>;

Names names_of(const Manifest& manifest) {
  Names names;
  for (const TensorInfo& tensor : manifest) names.insert(tensor.name);
  return names;
}

std::size_t count_missing(const Manifest& manifest, const Names& names) {
  return static_cast<std::size_t>(
      std::count_if(manifest.begin(), manifest.end(),
                    [&](const TensorInfo& t) { return !names.contains(t.name); }));
}

Error bad_tensor(std::size_t index, const std::string& name, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          "tensor " + std::to_string(index) + " " + quoted(name) + ": " + what};
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::uint64_t TensorInfo::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dimension : shape) product *= dimension;
  return product;
}

std::optional<std::uint64_t> checked_bytes(const TensorInfo& tensor) {
  std::uint64_t product = size_of(tensor.dtype);
  bool is_empty = false;
  for (const std::uint64_t dimension : tensor.shape) {
    if (dimension == 0) {
      is_empty = true;
      continue;
    }
    if (product > kMaxBytes / dimension) return std::nullopt;
    product *= dimension;
  }
  return is_empty ? 0 : product;
}

std::uint64_t manifest_hash(const Manifest& manifest) {
  Hasher hasher;
  hasher.put(manifest.size());
  for (const TensorInfo& tensor : manifest) {
    hasher.put(std::string_view(tensor.name));
    hasher.put(static_cast<std::uint64_t>(tensor.dtype));
    hasher.put(tensor.shape.size());
    for (const std::uint64_t dimension : tensor.shape) hasher.put(dimension);
  }
  return hasher.state();
}

Status validate(const Manifest& manifest) {
  if (manifest.empty()) return Error(ErrorCode::kInvalidArgument, "manifest: contains no tensor");
  if (manifest.size() > std::numeric_limits<std::uint32_t>::max())
    return Error(ErrorCode::kInvalidArgument, "manifest: more than 2^32-1 tensors");
  Names names;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const TensorInfo& tensor = manifest[i];
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes)
      return bad_tensor(i, tensor.name,
                        "name has " + std::to_string(tensor.name.size()) +
                            " bytes, allowed are 1.." + std::to_string(kMaxTensorNameBytes));
    if (!is_utf8(tensor.name)) return bad_tensor(i, tensor.name, "name is not UTF-8");
    if (tensor.name == "__metadata__")
      return bad_tensor(i, tensor.name, "name is reserved by the safetensors format");
    if (!names.insert(tensor.name).second)
      return bad_tensor(i, tensor.name, "name appears twice in the manifest");
    if (!dtype_from_wire(static_cast<std::uint8_t>(tensor.dtype)).ok())
      return bad_tensor(i, tensor.name, "dtype is unknown");
    if (tensor.shape.size() > kMaxTensorRank)
      return bad_tensor(i, tensor.name,
                        "rank " + std::to_string(tensor.shape.size()) + " is above " +
                            std::to_string(kMaxTensorRank));
    const auto bytes = checked_bytes(tensor);
    if (!bytes)
      return bad_tensor(i, tensor.name, "shape " + to_string(tensor.shape) + " overflows 63 bits");
    if (*bytes > kMaxBytes - total)
      return bad_tensor(i, tensor.name, "the tensors up to here overflow 63 bits of bytes");
    total += *bytes;
  }
  return {};
}

bool is_buffer(const TensorInfo& tensor) {
  std::string_view last = tensor.name;
  last.remove_prefix(last.find_last_of('.') + 1);  // npos + 1 is 0
  return last.starts_with("running_");
}

std::uint64_t trained_elements(const Manifest& manifest) {
  std::uint64_t elements = 0;
  const auto first = std::ranges::find_if(manifest, is_buffer);
  for (auto tensor = manifest.begin(); tensor != first; ++tensor) elements += tensor->elements();
  CENTROID_CHECK(std::all_of(first, manifest.end(), is_buffer));
  return elements;
}

std::string describe_difference(const Manifest& ours, const Manifest& theirs) {
  const auto [mine, other] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  if (mine == ours.end() && other == theirs.end()) return {};
  const std::string at = "tensor " + std::to_string(mine - ours.begin());
  if (mine != ours.end() && other != theirs.end() && mine->name == other->name)
    return at + " " + quoted(mine->name) + ": ours is " + form(*mine) + ", theirs is " +
           form(*other);

  const Names our_names = names_of(ours);
  const Names their_names = names_of(theirs);
  const std::size_t missing = count_missing(ours, their_names);
  const std::size_t extra = count_missing(theirs, our_names);
  std::string text = at + ": ours is " + (mine == ours.end() ? "nothing" : described(*mine)) +
                     ", theirs is " + (other == theirs.end() ? "nothing" : described(*other));
  if (missing + extra == 0) return text + "; the same names in another order";
  if (mine != ours.end() && !their_names.contains(mine->name))
    text += "; theirs lacks " + quoted(mine->name);
  if (other != theirs.end() && !our_names.contains(other->name))
    text += "; ours lacks " + quoted(other->name);
  return text + " (of " + std::to_string(ours.size()) + " tensors of ours theirs lacks " +
         std::to_string(missing) + ", and has " + std::to_string(extra) + " more)";
}

}  // namespace centroid
