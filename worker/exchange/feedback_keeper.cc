#include "worker/exchange/feedback_keeper.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/replace_file.h"
#include "common/storage/file.h"

namespace centroid::worker {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kKeep = 3;

/// A text as a file's name: what is not a letter, a digit, '-', '_' or '.' becomes %XX.
std::string file_name(const std::string& text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string name;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (is_plain)
      name += c;
    else
      (name += '%') += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return name;
}

std::uint64_t elements_of(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) total += tensor.elements();
  return total;
}

/// Numbers of both planes end to end.
struct Copy {
  explicit Copy(const ErrorFeedback::State& state)
      : values(state.residual.begin(), state.residual.end()) {
    values.insert(values.end(), state.momentum.begin(), state.momentum.end());
  }
  std::vector<float> values;
};

Status write_left(const fs::path& path, Round round) {
  return replace_file(path, to_string(round) + "\n", Replacement{fault::Stem("feedback.left")});
}

std::optional<Round> read_left(const fs::path& path) {
  const auto text = file::read_text(path);
  if (!text.ok()) return std::nullopt;
  std::uint64_t round = 0;
  const char* const end = text->data() + text->size();
  if (std::from_chars(text->data(), end, round).ec != std::errc()) return std::nullopt;
  return Round(round);
}

}  // namespace

fs::path state_folder(const fs::path& dir, const std::string& run_id, const std::string& worker) {
  return dir / (file_name(run_id) + "@" + file_name(worker));
}

Result<std::unique_ptr<FeedbackKeeper>> FeedbackKeeper::open(const fs::path& dir,
                                                             Identity identity) {
  const fs::path folder = state_folder(dir, identity.run_id, identity.worker);
  auto directory = CheckpointDirectory::open(folder, kKeep);
  if (!directory.ok()) return std::move(directory).error().with_context("state_dir");
  return std::unique_ptr<FeedbackKeeper>(
      new FeedbackKeeper(std::move(directory).value(), std::move(identity)));
}

FeedbackKeeper::~FeedbackKeeper() { wait_for_write(); }

void FeedbackKeeper::wait_for_write() { writing_.join(); }

Manifest FeedbackKeeper::manifest_of(bool has_momentum) const {
  Manifest manifest;
  for (const std::string plane : {"residual/", "momentum/"}) {
    if (plane == "momentum/" && !has_momentum) continue;
    for (TensorInfo tensor : identity_.manifest) {
      tensor.name = plane + tensor.name;
      manifest.push_back(std::move(tensor));
    }
  }
  return manifest;
}

/// The state to take before the round after `wanted`; else why there is none.
std::optional<CheckpointEntry> FeedbackKeeper::find(Round wanted, std::string& why) const {
  const auto entries = directory_.list(false);
  const auto of = [&](Round round) {
    return std::find_if(entries.begin(), entries.end(), [&](const CheckpointEntry& entry) {
      return entry.version.value == round.value;
    });
  };
  if (const auto entry = of(wanted); entry != entries.end()) return *entry;
  if (const auto left = read_left(left_file()); left && *left < wanted)
    if (const auto entry = of(*left); entry != entries.end()) return *entry;
  why = "no state after round " + to_string(wanted) + " in " + directory_.root().string();
  if (!entries.empty())
    why += ", the newest is after round " + std::to_string(entries.front().version.value);
  return std::nullopt;
}

Status FeedbackKeeper::restore(const CheckpointEntry& entry, ErrorFeedback& feedback) const {
  const bool has_momentum = !feedback.state().momentum.empty();
  const std::uint64_t n = elements_of(identity_.manifest);
  std::vector<float> values(n * (has_momentum ? 2 : 1));
  const auto write = [&](std::size_t, std::uint64_t offset, std::span<const float> from) {
    std::ranges::copy(from, values.begin() + static_cast<std::ptrdiff_t>(offset));
    return Status();
  };
  if (!entry.problem.empty()) return Error(ErrorCode::kDataLoss, entry.problem);
  CENTROID_TRY(directory_.read(entry, manifest_of(has_momentum), write));
  ErrorFeedback::State state;
  state.residual = std::span(values).first(n);
  state.momentum = std::span(values).subspan(n);
  if (const auto rounds = entry.info.extra.find("codec_rounds"); rounds != entry.info.extra.end())
    std::from_chars(rounds->second.data(), rounds->second.data() + rounds->second.size(),
                    state.rounds);
  return feedback.restore(state);
}

void FeedbackKeeper::resume(Round next, ErrorFeedback& feedback) {
  if (is_before(next)) return;
  wait_for_write();
  if (next.value <= 1 && !is_used_) return;  // nothing has been left out yet
  const Round wanted(next.value - 1);
  std::string why;
  const auto entry = find(wanted, why);
  if (entry) {
    const Status restored = restore(*entry, feedback);
    if (restored.ok()) {
      after_ = saved_ = wanted;
      log::info("feedback.restored", {{"path", entry->path.string()},
                                      {"after_round", entry->version.value},
                                      {"round", next.value}});
    } else {
      why = "state " + entry->path.string() + " is refused: " + restored.error().message();
    }
  }
  if (!why.empty())
    log::warn(is_used_ ? "feedback.retained" : "feedback.reset",
              {{"round", next.value}, {"why", why}});
  forget_after(wanted);
}

/// Rounds that the cluster has gone back behind, and a leave that has come to its end.
void FeedbackKeeper::forget_after(Round round) {
  (void)file::remove(left_file());
  for (const CheckpointEntry& entry : directory_.list(false))
    if (entry.version.value > round.value) (void)file::remove_all(entry.path);
  if (saved_ && saved_->value > round.value) saved_.reset();
}

void FeedbackKeeper::undone(Round round) {
  wait_for_write();
  forget_after(Round(round.value - 1));
  after_.reset();
}

bool FeedbackKeeper::closed(Round round) {
  after_ = round;
  is_used_ = true;
  return identity_.every_rounds > 0 && round.value % identity_.every_rounds == 0;
}

Result<bool> FeedbackKeeper::is_wanted(Round round) const {
  if (after_ == round) return saved_ != round;
  if (!after_ && !is_used_) return false;
  return Error(ErrorCode::kFailedPrecondition,
               after_ ? "what is in memory is the state after round " + to_string(*after_)
                      : "what is in memory is the state after no round");
}

void FeedbackKeeper::save(const ErrorFeedback& feedback) {
  const Round round = *after_;
  wait_for_write();  // one at a time
  CheckpointInfo info;
  info.run_id = identity_.run_id;
  info.version = Version(round.value);
  info.round = round;
  info.extra["what"] = "error feedback of worker " + identity_.worker + ", codec " +
                       feedback.spec() + ", after a round";
  info.extra["codec_rounds"] = std::to_string(feedback.rounds());
  const auto copy = std::make_shared<const Copy>(feedback.state());
  const bool has_momentum = !feedback.state().momentum.empty();
  saved_ = round;
  writing_ = Thread("feedback", [this, info, copy, storage = &storage::current(),
                                 manifest = manifest_of(has_momentum)] {
    const storage::ScopedStorage own(*storage);
    const auto read = [&](std::size_t, std::uint64_t offset, std::span<float> into) {
      std::copy_n(copy->values.begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                  into.begin());
      return Status();
    };
    const auto written = directory_.write(info, manifest, read);
    if (written.ok())
      log::debug("feedback.saved", {{"path", written->path.string()}});
    else
      log::error("feedback.save_failed",
                 {{"why", written.error()}, {"action", "training goes on"}});
    if (tell_) tell_(info.round, written.ok() ? Status() : Status(written.error()));
  });
}

void FeedbackKeeper::leave(const ErrorFeedback& feedback) {
  if (!is_used_) return;
  if (!after_) {
    log::warn("feedback.save_failed", {{"why", "the worker leaves in the middle of a round"}});
    return;
  }
  if (saved_ != after_) save(feedback);
  wait_for_write();
  const Status marked = write_left(left_file(), *after_);
  if (!marked.ok()) log::error("feedback.save_failed", {{"why", marked.error()}});
}

}  // namespace centroid::worker
