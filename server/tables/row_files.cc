#include "server/tables/row_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"

namespace centroid::server {
namespace {

namespace fs = std::filesystem;

/// Rows per read.
constexpr std::uint64_t kRowsAtOnce = 4096;

constexpr const char* kFormat = "centroid-rows-1";
/// Metadata by field.
constexpr const char* kCounterNames[] = {"pulled",  "pushed",  "admitted",  "held_back",
                                         "evicted", "expired", "duplicates"};

std::array<std::uint64_t*, 7> fields(RowCounters& c) {
  return {&c.pulled, &c.pushed, &c.admitted, &c.held_back, &c.evicted, &c.expired, &c.duplicates};
}

std::string exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// Settings that the values of a row depend on, except rates.
std::map<std::string, std::string> identity(const RowSpec& spec) {
  constexpr const char* kKinds[] = {"zeros", "uniform", "normal"};
  const auto kind = static_cast<std::size_t>(spec.initializer.kind);
  return {{"table", spec.name},
          {"dim", std::to_string(spec.dim)},
          {"optimizer", std::string(to_string(spec.rule))},
          {"init", kKinds[kind] + (kind == 0 ? "" : ":" + exact(spec.initializer.scale))},
          {"seed", std::to_string(spec.seed)}};
}

TensorInfo tensor(const char* name, DType dtype, std::vector<std::uint64_t> shape) {
  TensorInfo info;
  info.name = name;
  info.dtype = dtype;
  info.shape = {shape.begin(), shape.end()};
  return info;
}

void put_shape(std::map<std::string, std::string>& metadata, const std::string& of,
               const RecordMap::Shape& shape) {
  metadata[of + "_slabs"] = std::to_string(shape.slabs);
  metadata[of + "_slab_places"] = std::to_string(shape.slab_places);
  metadata[of + "_index_places"] = std::to_string(shape.index_places);
}

/// Reads numbers of a file's metadata; records the first that is missing or invalid.
class Numbers {
 public:
  Numbers(const fs::path& path, const std::map<std::string, std::string>& metadata)
      : path_(path), metadata_(metadata) {}
  std::uint64_t get(const std::string& name) {
    const auto found = metadata_.find(name);
    std::uint64_t value = 0;
    if (found != metadata_.end()) {
      const char* const end = found->second.data() + found->second.size();
      const auto [at, error] = std::from_chars(found->second.data(), end, value);
      if (error == std::errc() && at == end) return value;
    }
    if (status.ok())
      status = Error(ErrorCode::kDataLoss,
                     path_.string() + ": its metadata have no number \"" + name + "\"");
    return 0;
  }
  RecordMap::Shape shape(const std::string& of) {
    RecordMap::Shape shape;
    shape.slabs = get(of + "_slabs");
    shape.slab_places = get(of + "_slab_places");
    shape.index_places = get(of + "_index_places");
    return shape;
  }
  Status status;

 private:
  const fs::path& path_;
  const std::map<std::string, std::string>& metadata_;
};

Status check_tensors(const fs::path& path, Manifest found, Manifest expected) {
  // By name: empty tensors have equal offsets.
  std::ranges::sort(found, {}, &TensorInfo::name);
  std::ranges::sort(expected, {}, &TensorInfo::name);
  const std::string difference = describe_difference(expected, found);
  if (difference.empty()) return {};
  return Error(ErrorCode::kDataLoss, path.string() + ": holds other tensors: " + difference);
}

/// [n] elements of a tensor whose rows have `width` of them, from row `first` on.
template <class T>
Status read_part(const SafetensorsReader& file, const char* name, std::uint64_t first,
                 std::size_t width, std::vector<T>& into, std::size_t rows) {
  into.resize(rows * width);
  if (into.empty()) return {};
  return file.read(name, first * width * sizeof(T), std::as_writable_bytes(std::span(into)));
}

Manifest tensors_of(const RowSpec& spec, std::uint64_t rows, std::uint64_t candidates) {
  return {tensor("keys", DType::kI64, {rows}),
          tensor("values", DType::kF32, {rows, spec.dim}),
          tensor("state", DType::kF32, {rows, spec.slot_floats()}),
          tensor("ages", DType::kI32, {rows}),
          tensor("counts", DType::kI32, {rows}),
          tensor("waiting_keys", DType::kI64, {candidates}),
          tensor("waiting_ages", DType::kI32, {candidates}),
          tensor("waiting_counts", DType::kI32, {candidates})};
}

}  // namespace

Result<FileRecord> write_rows(const fs::path& path, const RowSpec& spec,
                              const RowTable::State& state, const RowReader& read) {
  std::map<std::string, std::string> metadata = identity(spec);
  metadata["format"] = kFormat;
  metadata["settings"] = to_string(spec);
  metadata["clock"] = std::to_string(state.now);
  RowCounters counters = state.counters;
  const auto of = fields(counters);
  for (std::size_t i = 0; i < of.size(); ++i) metadata[kCounterNames[i]] = std::to_string(*of[i]);
  put_shape(metadata, "rows", state.rows_shape);
  put_shape(metadata, "waiting", state.candidates_shape);
  const Manifest tensors = tensors_of(spec, state.rows, state.candidates);
  CENTROID_ASSIGN(auto writer, SafetensorsWriter::create_striped(path, tensors, metadata));
  RowTable::Block block;
  for (;;) {
    CENTROID_ASSIGN(const bool is_there, read(block));
    if (!is_there) break;
    const auto append = [&](std::size_t place, auto& numbers) {
      return writer.append(place, std::as_bytes(std::span(numbers)));
    };
    const std::size_t first = block.is_candidates ? 5 : 0;
    CENTROID_TRY(append(first, block.keys));
    if (!block.is_candidates) {
      CENTROID_TRY(append(1, block.values));
      CENTROID_TRY(append(2, block.slots));
    }
    CENTROID_TRY(append(block.is_candidates ? 6 : 3, block.ages));
    CENTROID_TRY(append(block.is_candidates ? 7 : 4, block.counts));
  }
  fault::point("checkpoint.rows_torn");
  return writer.finish();
}

Status restore_block(RowTable& table, const RowTable::Block& block, std::uint64_t now,
                     std::uint64_t* left_out) {
  if (block.is_candidates) {
    for (std::size_t i = 0; i < block.keys.size(); ++i)
      CENTROID_TRY(table.restore_candidate(block.keys[i], block.ages[i], block.counts[i], now));
    return {};
  }
  const std::size_t dim = table.spec().dim, slots = table.spec().slot_floats();
  for (std::size_t i = 0; i < block.keys.size(); ++i) {
    const RowTable::Row row{block.keys[i], block.ages[i], block.counts[i],
                            std::span(block.values).subspan(i * dim, dim),
                            std::span(block.slots).subspan(i * slots, slots)};
    Status put = table.restore(row, now);
    if (put.ok()) continue;
    if (left_out == nullptr || put.error().code() != ErrorCode::kResourceExhausted) return put;
    ++*left_out;
  }
  return {};
}

Result<RowTable::State> read_rows(const fs::path& path, const RowSpec& spec, const RowsSink& sink) {
  CENTROID_ASSIGN(const SafetensorsReader file, SafetensorsReader::open(path));
  const auto& metadata = file.metadata();
  for (const auto& [name, value] : identity(spec)) {
    const auto found = metadata.find(name);
    const std::string was = found == metadata.end() ? "nothing" : found->second;
    if (was != value)
      return Error(ErrorCode::kFailedPrecondition, path.string() + ": " + name + " was " + was +
                                                       ", the setting `tables` says " + value +
                                                       ": its rows depend on it");
  }
  Numbers numbers(path, metadata);
  RowTable::State state;
  state.now = numbers.get("clock");
  const auto of = fields(state.counters);
  for (std::size_t i = 0; i < of.size(); ++i) *of[i] = numbers.get(kCounterNames[i]);
  state.rows_shape = numbers.shape("rows");
  state.candidates_shape = numbers.shape("waiting");
  CENTROID_TRY(numbers.status);
  for (const TensorInfo& info : file.manifest()) {
    if (info.shape.empty()) continue;
    if (info.name == "keys") state.rows = info.shape[0];
    if (info.name == "waiting_keys") state.candidates = info.shape[0];
  }
  CENTROID_TRY(
      check_tensors(path, file.manifest(), tensors_of(spec, state.rows, state.candidates)));
  if (!sink.begin(state)) return state;
  RowTable::Block block;
  const auto put = [&]() -> Status {
    Status taken = sink.put(block, state.now);
    if (!taken.ok()) return std::move(taken).error().with_context(path.string());
    return {};
  };
  for (std::uint64_t at = 0; at < state.rows; at += kRowsAtOnce) {
    const auto n = static_cast<std::size_t>(std::min(kRowsAtOnce, state.rows - at));
    const std::size_t slots = spec.slot_floats();
    CENTROID_TRY(read_part(file, "keys", at, 1, block.keys, n));
    CENTROID_TRY(read_part(file, "values", at, spec.dim, block.values, n));
    CENTROID_TRY(read_part(file, "state", at, slots, block.slots, n));
    CENTROID_TRY(read_part(file, "ages", at, 1, block.ages, n));
    CENTROID_TRY(read_part(file, "counts", at, 1, block.counts, n));
    CENTROID_TRY(put());
  }
  block = {};
  block.is_candidates = true;
  for (std::uint64_t at = 0; at < state.candidates; at += kRowsAtOnce) {
    const auto n = static_cast<std::size_t>(std::min(kRowsAtOnce, state.candidates - at));
    CENTROID_TRY(read_part(file, "waiting_keys", at, 1, block.keys, n));
    CENTROID_TRY(read_part(file, "waiting_ages", at, 1, block.ages, n));
    CENTROID_TRY(read_part(file, "waiting_counts", at, 1, block.counts, n));
    CENTROID_TRY(put());
  }
  return state;
}

Result<RowTable::State> read_rows(const fs::path& path, RowTable& table) {
  RowsSink sink;
  bool was_spread = false;
  std::uint64_t left_out = 0;
  sink.begin = [&](const RowTable::State& state) {
    table.begin_restore(state);
    was_spread = state.rows > 0 && state.rows_shape.slabs == 0;
    return true;
  };
  sink.put = [&](const RowTable::Block& block, std::uint64_t now) {
    return restore_block(table, block, now, was_spread ? &left_out : nullptr);
  };
  CENTROID_ASSIGN(RowTable::State state, read_rows(path, table.spec(), sink));
  if (left_out > 0)
    log::warn("rows.skipped",
              {{"table", table.spec().name}, {"rows", left_out}, {"why", "max_bytes"}});
  return state;
}

namespace {
constexpr std::size_t kWindowBytes = PushWindows::kWindow / 8;

Manifest tensors_of_pushes(std::uint64_t clients) {
  return {tensor("clients", DType::kI64, {clients}), tensor("newest", DType::kI64, {clients}),
          tensor("applied", DType::kU8, {clients, kWindowBytes})};
}
}  // namespace

Result<FileRecord> write_pushes(const fs::path& path, const PushedRows& pushed) {
  std::map<std::string, std::string> metadata{{"format", kFormat},
                                              {"journal", std::to_string(pushed.journal)}};
  if (!pushed.server.empty()) metadata["server"] = pushed.server;
  if (pushed.is_followed) metadata["followed"] = "1";
  if (pushed.route != 0) metadata["route"] = std::to_string(pushed.route);
  if (pushed.route != 0) metadata["buckets"] = pushed.buckets;
  const Manifest tensors = tensors_of_pushes(pushed.clients.size());
  CENTROID_ASSIGN(auto writer, SafetensorsWriter::create_striped(path, tensors, metadata));
  for (const PushWindows::Entry& entry : pushed.clients) {
    CENTROID_TRY(writer.append(0, std::as_bytes(std::span(&entry.client, 1))));
    CENTROID_TRY(writer.append(1, std::as_bytes(std::span(&entry.newest, 1))));
    CENTROID_TRY(writer.append(2, entry.bytes()));
  }
  return writer.finish();
}

Result<PushedRows> read_pushes(const fs::path& path) {
  CENTROID_ASSIGN(const SafetensorsReader file, SafetensorsReader::open(path));
  PushedRows out;
  Numbers numbers(path, file.metadata());
  if (file.metadata().contains("journal")) out.journal = numbers.get("journal");
  if (const auto server = file.metadata().find("server"); server != file.metadata().end())
    out.server = server->second;
  out.is_followed = file.metadata().contains("followed");
  if (file.metadata().contains("route")) out.route = numbers.get("route");
  if (const auto buckets = file.metadata().find("buckets"); buckets != file.metadata().end())
    out.buckets = buckets->second;
  CENTROID_TRY(numbers.status);
  std::uint64_t clients = 0;
  for (const TensorInfo& info : file.manifest())
    if (info.name == "clients" && !info.shape.empty()) clients = info.shape[0];
  CENTROID_TRY(check_tensors(path, file.manifest(), tensors_of_pushes(clients)));
  std::vector<std::uint64_t> ids, newest;
  std::vector<std::byte> applied;
  const auto n = static_cast<std::size_t>(clients);
  CENTROID_TRY(read_part(file, "clients", 0, 1, ids, n));
  CENTROID_TRY(read_part(file, "newest", 0, 1, newest, n));
  CENTROID_TRY(read_part(file, "applied", 0, kWindowBytes, applied, n));
  std::vector<PushWindows::Entry>& entries = out.clients;
  entries.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    entries[i].client = ids[i];
    entries[i].newest = newest[i];
    entries[i].take_bytes(std::span(applied).subspan(i * kWindowBytes, kWindowBytes));
  }
  return out;
}

}  // namespace centroid::server
