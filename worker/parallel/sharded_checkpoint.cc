#include "worker/parallel/sharded_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/checkpoint/inspect.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/pieces.h"
#include "common/checkpoint/range_reader.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/storage/file.h"
#include "common/storage/storage.h"
#include "common/tensor/finite.h"
#include "common/tensor/text.h"
#include "worker/parallel/agreement.h"

namespace centroid::parallel {
namespace {

namespace fs = std::filesystem;

/// This rank's elements of a plane that begins at `first`, with their values.
template <class Values>
void add_runs(std::vector<ElementRun>& runs, const ShardLayout& layout, std::uint32_t rank,
              const ElementMap& map, std::uint64_t first, const Values& values) {
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    Range shard = layout.shard(unit, rank);
    shard.begin += layout.units()[unit].elements.begin;
    for (const ElementMap::Run& run : map.runs(shard))
      if (run.is_own)
        runs.push_back(
            {first + run.elements.begin, run.elements.count, values(unit).data() + run.at});
  }
}

/// Write the index of the parts' tensors.
Result<FileRecord> write_index(const fs::path& folder, const char* stem, PartOf part) {
  std::vector<Manifest> tensors;
  for (part.part = 0; part.part < part.parts; ++part.part) {
    CENTROID_ASSIGN(const SafetensorsReader file,
                    SafetensorsReader::open(folder / part.file_name(stem)));
    tensors.push_back(file.manifest());
  }
  return write_shard_index(folder, stem, tensors);
}

/// What is not finite becomes no checkpoint, and so displaces none.
Status check_finite(const std::vector<ElementRun>& runs, const Manifest& tensors) {
  for (const ElementRun& run : runs) {
    const std::span values(run.values, run.count);
    if (is_finite(values)) continue;
    const auto wrong = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
    std::uint64_t at = run.begin + static_cast<std::uint64_t>(wrong - values.begin());
    std::size_t tensor = 0;
    for (; tensor + 1 < tensors.size() && at >= tensors[tensor].elements(); ++tensor)
      at -= tensors[tensor].elements();
    return Error(ErrorCode::kDataLoss, printable(tensors[tensor].name) +
                                           " is not finite: the checkpoints before it stay");
  }
  return {};
}

/// A file that rank 0 has seen, and this rank has not.
Status damage(Status status) {
  if (status.ok() || status.error().code() != ErrorCode::kNotFound) return status;
  return Error(ErrorCode::kDataLoss, status.error().message());
}

Error wrong(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "sharded checkpoint: " + what);
}

}  // namespace

struct ShardedCheckpoints::Image {
  CheckpointInfo info;
  PartOf part;
  bool is_writer = false;                    ///< its replicas have the same and write nothing
  std::vector<ElementRun> model, optimizer;  ///< of this rank
  std::vector<float> copy;                   ///< the runs' memory; empty: the parameters'
};

Result<std::unique_ptr<ShardedCheckpoints>> ShardedCheckpoints::open(
    const collective::Group& group, Manifest model, const ShardedCheckpointOptions& options) {
  CENTROID_TRY(validate(model));
  CENTROID_TRY(check_piece_names(model));
  for (const TensorInfo& tensor : model)
    if (tensor.dtype != DType::kF32)
      return wrong("parameter " + printable(tensor.name) + " is " +
                   std::string(to_string(tensor.dtype)) + "; shards are f32");
  std::vector<std::uint32_t> everyone(group.world());
  for (std::uint32_t i = 0; i < group.world(); ++i) everyone[i] = i;
  CENTROID_ASSIGN(collective::Group own, group.subgroup(everyone));
  std::unique_ptr<ShardedCheckpoints> made(
      new ShardedCheckpoints(group, std::move(own), std::move(model), options));
  Notice opened;
  if (group.rank() == 0) {
    auto directory = CheckpointDirectory::open(options.folder, options.keep);
    if (directory.ok())
      made->directory_.emplace(std::move(directory).value());
    else
      opened.status = directory.error();
    opened.text = ".tmp-shared-" + std::to_string(random_seed());  // a crash's is removed
    if (opened.status.ok()) opened.status = file::create_directory(options.folder / opened.text);
  }
  CENTROID_ASSIGN(const Notice result, announce(made->own_, opened, options.timeout));
  CENTROID_TRY(result.status);
  Notice seen;
  if (!file::exists(options.folder / result.text))
    seen.status =
        Error(ErrorCode::kFailedPrecondition,
              options.folder.string() + " is not that of rank 0: every rank needs the same folder");
  const auto notices = exchange(made->own_, seen, options.timeout);
  if (group.rank() == 0) (void)file::remove_all(options.folder / result.text);
  if (!notices.ok()) return notices.error();
  CENTROID_TRY(first_failure(*notices));
  return made;
}

ShardedCheckpoints::ShardedCheckpoints(collective::Group group, collective::Group own,
                                       Manifest model, ShardedCheckpointOptions options)
    : group_(std::move(group)),
      own_(std::move(own)),
      model_(std::move(model)),
      options_(std::move(options)),
      map_(model_, own_parameters(),
           options_.stage ? std::span<const Manifest>(options_.stage->parts)
                          : std::span<const Manifest>(),
           options_.stage ? options_.stage->part : 0) {}

ShardedCheckpoints::~ShardedCheckpoints() { writer_.join(); }

Range ShardedCheckpoints::own_parameters() const {
  return options_.stage ? options_.stage->parameters : Range{0, model_.size()};
}

/// Names and shapes of the parameters here.
std::span<const TensorInfo> ShardedCheckpoints::own_tensors() const {
  const bool has_parts = options_.stage && !options_.stage->parts.empty();
  const Manifest& all = has_parts ? options_.stage->parts[options_.stage->part] : model_;
  return std::span(all).subspan(own_parameters().begin, own_parameters().count);
}

Status ShardedCheckpoints::check_model(std::span<const ParameterShape> parameters) const {
  const std::span<const TensorInfo> own = own_tensors();
  if (parameters.size() != own.size())
    return wrong("there are " + std::to_string(parameters.size()) + " parameters, and " +
                 std::to_string(own.size()) + " names and shapes of them");
  for (std::size_t i = 0; i < own.size(); ++i) {
    const TensorInfo& tensor = own[i];
    if (parameters[i].name != tensor.name || parameters[i].elements != tensor.elements())
      return wrong("parameter " + std::to_string(i) + " is " + printable(parameters[i].name) +
                   " with " + std::to_string(parameters[i].elements) + " elements, not " +
                   printable(tensor.name) + " " + centroid::to_string(tensor.shape));
  }
  return {};
}

Result<ShardedCheckpoints::Image> ShardedCheckpoints::image_of(const ShardedParameters& parameters,
                                                               const CheckpointInfo& info) const {
  const ShardLayout& layout = parameters.layout();
  CENTROID_TRY(check_model(layout.parameters()));
  if (info.version.value == 0) return wrong("versions count from 1");
  Image image;
  image.info = info;
  image.info.optimizer = parameters.optimizer().config().name;
  image.info.slot_names = parameters.optimizer().slot_names();
  image.info.optimizer_step = parameters.steps();
  if (info.created_unix_seconds == 0) image.info.created_unix_seconds = unix_seconds();
  const std::uint32_t rank = parameters.shard_rank();
  image.part = {info.run_id, info.version, manifest_hash(model_), rank, layout.ranks()};
  if (options_.stage) {
    image.part.part += std::size_t{options_.stage->index} * layout.ranks();
    image.part.parts *= options_.stage->count;
  }
  image.is_writer = parameters.replica() == 0;
  if (!image.is_writer) return image;
  add_runs(image.model, layout, rank, map_, 0,
           [&](std::size_t unit) { return parameters.shard(unit); });
  for (std::size_t slot = 0; slot < image.info.slot_names.size(); ++slot)
    add_runs(image.optimizer, layout, rank, map_, slot * elements_of(model_),
             [&](std::size_t unit) { return parameters.state(unit, slot); });
  return image;
}

Status ShardedCheckpoints::write(const ShardedParameters& parameters, const CheckpointInfo& info) {
  CENTROID_TRY(wait());
  CENTROID_ASSIGN(const Image image, image_of(parameters, info));
  return write_image(image);
}

Status ShardedCheckpoints::begin(const ShardedParameters& parameters, const CheckpointInfo& info) {
  CENTROID_TRY(wait());
  CENTROID_ASSIGN(Image made, image_of(parameters, info));
  auto image = std::make_shared<Image>(std::move(made));
  std::uint64_t elements = 0;
  for (const auto* runs : {&image->model, &image->optimizer})
    for (const ElementRun& run : *runs) elements += run.count;
  image->copy.reserve(elements);  // so that no pointer changes
  for (auto* runs : {&image->model, &image->optimizer}) {
    for (ElementRun& run : *runs) {
      const float* const copied = image->copy.data() + image->copy.size();
      image->copy.insert(image->copy.end(), run.values, run.values + run.count);
      run.values = copied;
    }
  }
  writer_ = Thread("checkpoint", [this, image, storage = &storage::current()] {
    const storage::ScopedStorage bound(*storage);
    written_ = write_image(*image);
  });
  return {};
}

Status ShardedCheckpoints::wait() {
  writer_.join();
  return std::exchange(written_, Status());
}

Status ShardedCheckpoints::write_image(const Image& image) {
  if (own_.rank() == 0) return write_as_first(image);
  CENTROID_ASSIGN(const Notice begun, announce(own_, {}, options_.timeout));
  CENTROID_TRY(begun.status);
  CheckpointManifest of_rank_0;
  CENTROID_TRY(write_own(image, options_.folder / begun.text, of_rank_0));
  CENTROID_ASSIGN(const Notice ended, announce(own_, {}, options_.timeout));
  return ended.status;
}

Status ShardedCheckpoints::write_as_first(const Image& image) {
  const auto fill = [&](const fs::path& folder, CheckpointManifest& content) -> Status {
    Notice begun;
    begun.text = folder.filename().string();
    CENTROID_TRY(announce(own_, begun, options_.timeout));
    return write_own(image, folder, content);
  };
  const auto entry = directory_->write(image.info, fill);
  Notice result;  // also if it has not begun
  if (entry.ok())
    log::info("checkpoint.written",
              {{"path", entry->path.string()}, {"version", image.info.version.value}});
  else
    result.status = entry.error();
  const auto announced = announce(own_, result, options_.timeout);
  CENTROID_TRY(result.status);
  return announced.ok() ? Status() : Status(announced.error());
}

/// Write this rank's files, and on rank 0 what follows when all have theirs.
Status ShardedCheckpoints::write_own(const Image& image, const fs::path& folder,
                                     CheckpointManifest& content) {
  const auto write = [&](const char* stem, const Manifest& tensors,
                         const std::vector<ElementRun>& runs, Notice& notice,
                         std::size_t first) -> Status {
    CENTROID_TRY(check_finite(runs, tensors));
    CENTROID_ASSIGN(const FileRecord record, write_part(folder, stem, image.part, tensors, runs));
    notice.numbers[first] = record.bytes;
    notice.numbers[first + 1] = record.crc32c;
    return {};
  };
  Notice own;
  if (image.is_writer) {
    own.numbers[4] = image.part.part + 1;
    if (!image.info.slot_names.empty())
      own.status = write(kOptimizerStem, optimizer_manifest(model_, image.info.slot_names),
                         image.optimizer, own, 2);
    if (own.status.ok()) own.status = write(kModelStem, model_, image.model, own, 0);
    if (own.status.ok()) own.status = file::sync_directory(folder);
  }
  CENTROID_ASSIGN(const std::vector<Notice> notices, exchange(own_, own, options_.timeout));
  if (own_.rank() != 0) return {};  // rank 0 returns the failure of any
  CENTROID_TRY(first_failure(notices));
  PartOf part = image.part;
  for (std::size_t rank = 0; rank < notices.size(); ++rank) {
    const auto& numbers = notices[rank].numbers;
    if (numbers[4] == 0) continue;
    part.part = numbers[4] - 1;
    content.files[part.file_name(kModelStem)] = {numbers[0],
                                                 static_cast<std::uint32_t>(numbers[1])};
    if (!image.info.slot_names.empty())
      content.files[part.file_name(kOptimizerStem)] = {numbers[2],
                                                       static_cast<std::uint32_t>(numbers[3])};
  }
  return commit(image, folder, content);
}

/// Add what belongs to all parts.
Status ShardedCheckpoints::commit(const Image& image, const fs::path& folder,
                                  CheckpointManifest& content) const {
  for (const auto& [name, record] : content.files) {
    CENTROID_ASSIGN(const auto found, file::attributes_of(folder / name));
    if (!found || found->bytes != record.bytes)
      return Error(ErrorCode::kFailedPrecondition, (folder / name).string() +
                                                       ", which another rank wrote, is " +
                                                       (found ? "not complete" : "not there") +
                                                       ": every rank needs the same folder");
  }
  if (image.part.parts == 1) return {};
  content.tensors = model_;
  content.has_columns = options_.stage && !options_.stage->parts.empty();
  CENTROID_ASSIGN(content.files[shard_index_name(kModelStem)],
                  write_index(folder, kModelStem, image.part));
  if (image.info.slot_names.empty()) return {};
  CENTROID_ASSIGN(content.files[shard_index_name(kOptimizerStem)],
                  write_index(folder, kOptimizerStem, image.part));
  return {};
}

/// The next folder to try, as rank 0 sees them.
Result<fs::path> ShardedCheckpoints::choose(std::vector<CheckpointEntry>& candidates,
                                            const std::optional<Version>& version,
                                            const Status& so_far) {
  Notice next;
  Status refused = so_far;
  const auto refuse = [&](const CheckpointEntry& entry) {
    log::warn("checkpoint.refused", {{"path", entry.path.string()}, {"reason", entry.problem}});
    if (refused.ok())
      refused = Error(ErrorCode::kDataLoss, entry.path.string() + ": " + entry.problem);
  };
  std::erase_if(candidates,
                [&](const auto& entry) { return version && entry.version != *version; });
  while (!candidates.empty() && !candidates.front().problem.empty() &&
         !candidates.front().is_unreadable) {
    refuse(candidates.front());
    candidates.erase(candidates.begin());
  }
  if (!candidates.empty() && candidates.front().is_unreadable) {
    next.status = unreadable(candidates.front());
  } else if (!candidates.empty()) {
    next.text = candidates.front().path.filename().string();
    candidates.erase(candidates.begin());
  } else if (refused.ok()) {
    next.status =
        Error(ErrorCode::kNotFound, "there is no checkpoint" +
                                        (version ? " of version " + to_string(*version) : "") +
                                        " in " + options_.folder.string());
  } else {
    next.status = std::move(refused).error().with_context("no checkpoint is sound; the newest");
  }
  CENTROID_ASSIGN(const Notice chosen, announce(own_, next, options_.timeout));
  CENTROID_TRY(chosen.status);
  return options_.folder / chosen.text;
}

/// Compare the optimizer, and the checksums of some files; other ranks compare those of others.
Status ShardedCheckpoints::examine(const CheckpointManifest& content, const fs::path& folder,
                                   const Optimizer& optimizer) const {
  if (content.info.optimizer != optimizer.config().name ||
      content.info.slot_names != optimizer.slot_names())
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + folder.string() + " was made with optimizer '" +
                     printable(content.info.optimizer) + "', this job has '" +
                     optimizer.config().name + "'");
  std::uint32_t number = 0;
  for (const auto& [name, record] : content.files)
    if (number++ % own_.world() == own_.rank()) CENTROID_TRY(check_bytes(folder / name, record));
  return {};
}

Result<RestoredShards> ShardedCheckpoints::restore(std::vector<ParameterShape> parameters,
                                                   const ShardedOptions& options,
                                                   std::optional<Version> version) {
  CENTROID_TRY(wait());
  CENTROID_TRY(check_model(parameters));
  CENTROID_ASSIGN(const std::unique_ptr<Optimizer> optimizer, make_optimizer(options.optimizer));
  std::vector<CheckpointEntry> candidates;
  Status listed;
  if (directory_) {
    auto found = directory_->entries(false);
    if (found.ok())
      candidates = std::move(found).value();
    else
      listed = found.error();
  }
  for (Status refused = listed;;) {
    CENTROID_ASSIGN(const fs::path folder, choose(candidates, version, refused));
    CheckpointManifest content;
    std::optional<RangeReader> reader;
    const auto look = [&]() -> Status {
      CENTROID_ASSIGN(content, read_manifest(folder));
      CENTROID_ASSIGN(RangeReader opened, RangeReader::open(folder, content));
      const std::string difference = describe_difference(model_, opened.manifest());
      if (!difference.empty())
        return Error(ErrorCode::kFailedPrecondition,
                     folder.string() + " contains another model (theirs): " + difference);
      reader.emplace(std::move(opened));
      if (options_.check) CENTROID_TRY(options_.check(content.info));
      return examine(content, folder, *optimizer);
    };
    Notice own;
    own.status = damage(look());
    CENTROID_ASSIGN(const std::vector<Notice> notices, exchange(own_, own, options_.timeout));
    const Status all = first_failure(notices);
    if (all.ok()) {
      const auto stored = [&](std::size_t plane, Range elements, std::span<float> out) -> Status {
        for (const ElementMap::Run& run : map_.runs(elements))
          CENTROID_TRY(damage(
              reader->read(plane, run.elements.begin, out.subspan(run.at, run.elements.count))));
        return {};
      };
      auto made = ShardedParameters::resume(options_.stage ? options_.stage->ranks : group_,
                                            std::move(parameters), options,
                                            content.info.optimizer_step, stored, options_.timeout);
      if (options_.stage) {  // the failure of one stage is that of all
        own.status = made.ok() ? Status() : Status(made.error());
        CENTROID_ASSIGN(const auto results, exchange(own_, own, options_.timeout));
        CENTROID_TRY(first_failure(results));
      }
      if (!made.ok()) return made.error();
      return RestoredShards{std::move(*made), std::move(content.info), folder};
    }
    if (all.error().code() != ErrorCode::kDataLoss) return all.error();
    if (own_.rank() == 0)
      log::warn("checkpoint.refused",
                {{"path", folder.string()}, {"reason", all.error().message()}});
    if (refused.ok()) refused = all;
  }
}

}  // namespace centroid::parallel
