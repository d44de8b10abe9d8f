#include "worker/sharded_save.h"

#include <map>
#include <optional>
#include <string>

#include "common/base/log.h"
#include "common/checkpoint/safetensors.h"
#include "common/storage/file.h"
#include "common/tensor/finite.h"

namespace centroid::worker {

namespace fs = std::filesystem;

namespace {

/// A process that is killed leaves it, and the next one removes it.
fs::path draft_of(const fs::path& path) { return path.string() + ".draft"; }

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Result<SafetensorsWriter> begin(const fs::path& path, const Model& model) {
  CENTROID_TRY(file::remove(draft_of(path)));
  return SafetensorsWriter::create(draft_of(path), model.manifest(),
                                   {{"format", "pt"}, {"model", model.spec()}});
}

Status publish(SafetensorsWriter& writer, const fs::path& path) {
  const auto record = writer.finish();
  if (!record.ok()) return record.error();
  if (file::exists(path))
    return Error(ErrorCode::kAlreadyExists,
                 path.string() + " has come meanwhile: the model is in " + draft_of(path).string());
  CENTROID_TRY(file::rename(draft_of(path), path));
  CENTROID_TRY(file::sync_directory(folder_of(path)));
  log::info("sharded.saved", {{"path", path.string()}});
  return {};
}

}  // namespace

Status check_unwritten(const fs::path& path) {
  if (file::exists(path))
    return Error(ErrorCode::kAlreadyExists,
                 "the file is there: move it away, or choose another name");
  if (!file::is_directory(folder_of(path)))
    return Error(ErrorCode::kNotFound, "there is no folder " + folder_of(path).string());
  CENTROID_TRY(file::write_text(draft_of(path), ""));
  return file::remove(draft_of(path));
}

Status save_model(DividedReplica& replica, const fs::path& path, bool is_writer) {
  const Model& model = replica.model();
  std::optional<SafetensorsWriter> file;
  Status written;  // the others send their parts in any case
  if (is_writer) {
    auto begun = begin(path, model);
    if (begun.ok())
      file.emplace(std::move(*begun));
    else
      written = begun.error();
  }
  CENTROID_TRY(replica.visit([&](TensorId tensor, std::span<const float> values) -> Status {
    if (!file || !written.ok()) return {};
    written = is_finite(values)
                  ? file->append(std::as_bytes(values))
                  : Error(ErrorCode::kDataLoss,
                          "tensor " + model.manifest()[tensor.value].name + " is not finite");
    return {};
  }));
  if (file && written.ok()) written = publish(*file, path);
  return written;
}

}  // namespace centroid::worker
