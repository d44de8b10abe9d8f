#include "worker/data/idx.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "worker/data/file.h"

namespace centroid::worker {

namespace {

constexpr std::uint32_t kImageMagic = 0x00000803;
constexpr std::uint32_t kLabelMagic = 0x00000801;
/// 512 MiB of pixels are 2 GiB of floats: ten times MNIST.
constexpr std::size_t kMaxIdxBytes = std::size_t{512} << 20;
constexpr std::uint32_t kMaxSide = 4096;

std::string hex(std::uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof(text), "0x%08x", value);
  return text;
}

Error bad(const std::string& file, const std::string& what) {
  return {ErrorCode::kDataLoss, file + ": " + what + "; fetch the file again"};
}

/// The sizes of a file with `dimensions` dimensions; `content` moves on to the elements.
Result<std::vector<std::uint32_t>> read_header(Bytes& content, std::uint32_t magic,
                                               std::size_t dimensions, const std::string& file) {
  const std::size_t header = 4 * (1 + dimensions);
  if (content.size() < header)
    return bad(file, "expected a header of " + std::to_string(header) + " bytes, found " +
                         std::to_string(content.size()));
  const auto word = [&](std::size_t i) {
    std::uint32_t value = 0;
    for (std::size_t b = 0; b < 4; ++b)
      value = value << 8 | std::to_integer<std::uint32_t>(content[4 * i + b]);
    return value;
  };
  if (word(0) != magic)
    return bad(file,
               "expected the magic number " + hex(magic) + " at byte 0, found " + hex(word(0)));
  std::vector<std::uint32_t> sizes;
  for (std::size_t i = 1; i <= dimensions; ++i) sizes.push_back(word(i));
  content = content.subspan(header);
  return sizes;
}

Status check_length(const Bytes& elements, std::uint64_t expected, const std::string& file) {
  if (elements.size() == expected) return {};
  return bad(file, "expected " + std::to_string(expected) + " bytes after the header, found " +
                       std::to_string(elements.size()));
}

Error no_samples(const std::string& file) {
  return {ErrorCode::kFailedPrecondition, file + " contains no samples"};
}

/// The file under any of the spellings in use; the plain one when there is none.
std::string find_file(const std::string& folder, const std::string& part, const std::string& kind) {
  const auto plain = std::filesystem::path(folder) / (part + "-" + kind);
  const auto dotted = std::filesystem::path(folder) / (part + "." + kind);
  for (const auto& stem : {plain, dotted}) {
    for (const char* ending : {"", ".gz"}) {
      const std::string name = stem.string() + ending;
      std::error_code ignored;
      if (std::filesystem::exists(name, ignored)) return name;
    }
  }
  return plain.string();
}

Result<Dataset> load_part(const std::string& folder, const std::string& part) {
  const std::string hint =
      "put the four files of MNIST or Fashion-MNIST (train-images-idx3-ubyte.gz, "
      "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz) into " +
      folder + ", or use data set 'digits', which `./centroid build` fetches";
  const std::string image_file = find_file(folder, part + "-images", "idx3-ubyte");
  const std::string label_file = find_file(folder, part + "-labels", "idx1-ubyte");
  CENTROID_ASSIGN(const std::string image_text, read_file(image_file, kMaxIdxBytes, hint));
  CENTROID_ASSIGN(const IdxImages images, parse_idx_images(as_bytes(image_text), image_file));
  CENTROID_ASSIGN(const std::string label_text, read_file(label_file, kMaxIdxBytes, hint));
  CENTROID_ASSIGN(const Bytes labels, parse_idx_labels(as_bytes(label_text), label_file));
  if (labels.size() != images.count)
    return bad(label_file, "expected " + std::to_string(images.count) + " labels as " + image_file +
                               " has images, found " + std::to_string(labels.size()));
  Dataset out;
  out.samples = images.count;
  out.features = std::uint64_t{images.rows} * images.columns;
  out.x.resize(images.pixels.size());
  std::transform(images.pixels.begin(), images.pixels.end(), out.x.begin(), [](std::byte pixel) {
    return static_cast<float>(std::to_integer<int>(pixel)) / 255.0F;
  });
  out.y.resize(labels.size());
  std::transform(labels.begin(), labels.end(), out.y.begin(),
                 [](std::byte label) { return std::to_integer<std::uint32_t>(label); });
  out.classes = *std::max_element(out.y.begin(), out.y.end()) + 1;
  out.name = "idx: " + folder + ", " + std::to_string(images.count) + " images of " +
             std::to_string(images.rows) + "x" + std::to_string(images.columns);
  return out;
}

}  // namespace

Result<IdxImages> parse_idx_images(Bytes content, const std::string& file) {
  CENTROID_ASSIGN(const auto sizes, read_header(content, kImageMagic, 3, file));
  IdxImages images{sizes[0], sizes[1], sizes[2], content};
  if (images.rows < 1 || images.rows > kMaxSide || images.columns < 1 || images.columns > kMaxSide)
    return bad(file, "expected images of 1 to " + std::to_string(kMaxSide) +
                         " rows and columns, found " + std::to_string(images.rows) + "x" +
                         std::to_string(images.columns));
  // 32 + 12 + 12 bits: the product fits.
  CENTROID_TRY(check_length(content, images.count * images.rows * images.columns, file));
  if (images.count == 0) return no_samples(file);
  return images;
}

Result<Bytes> parse_idx_labels(Bytes content, const std::string& file) {
  CENTROID_ASSIGN(const auto sizes, read_header(content, kLabelMagic, 1, file));
  CENTROID_TRY(check_length(content, sizes[0], file));
  if (sizes[0] == 0) return no_samples(file);
  return content;
}

Result<DataSplit> load_idx(const std::string& folder) {
  CENTROID_ASSIGN(Dataset train, load_part(folder, "train"));
  CENTROID_ASSIGN(Dataset test, load_part(folder, "t10k"));
  if (test.features != train.features)
    return bad(folder, "the held-out images have " + std::to_string(test.features) +
                           " pixels, the training images " + std::to_string(train.features));
  if (test.classes > train.classes)
    return bad(folder, "the held-out labels reach " + std::to_string(test.classes - 1) +
                           ", the training labels only " + std::to_string(train.classes - 1));
  test.classes = train.classes;
  return DataSplit{std::move(train), std::move(test)};
}

}  // namespace centroid::worker
