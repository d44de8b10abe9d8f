#include "server/api/pending_answers.h"

#include <algorithm>
#include <utility>

#include "server/api/problem.h"

namespace centroid::server {

namespace {

/// Between two checks of the token of a client that reads a file: each hashes the sent secret once
/// for every named token.
constexpr std::chrono::seconds kCheckInterval{1};

bool is_anybody(const Caller& caller) { return caller.name == "local" || caller.name.empty(); }

}  // namespace

/// Passes on another stream while the caller may read it.
class PendingAnswers::Stream final : public BodyStream {
 public:
  Stream(PendingAnswers& answers, std::shared_ptr<BodyStream> inner, std::string caller,
         std::function<bool()> is_allowed)
      : answers_(answers),
        inner_(std::move(inner)),
        is_file_(inner_->length().has_value()),
        caller_(std::move(caller)),
        is_allowed_(std::move(is_allowed)) {}
  ~Stream() override { answers_.give_back(is_file_, caller_); }

  Task<Result<std::string>> next() override {
    auto piece = co_await inner_->next();
    if (centroid::now() >= next_check_) {
      if (!is_allowed_())
        co_return Error(ErrorCode::kFailedPrecondition, "the token is no longer valid");
      if (is_file_) next_check_ = centroid::now() + kCheckInterval;
    }
    co_return piece;
  }
  std::optional<std::uint64_t> length() const override { return inner_->length(); }

 private:
  PendingAnswers& answers_;
  const std::shared_ptr<BodyStream> inner_;
  const bool is_file_;
  const std::string caller_;
  const std::function<bool()> is_allowed_;
  TimePoint next_check_ = TimePoint::min();
};

PendingAnswers::PendingAnswers(std::size_t max_bytes, const ApiMetrics& metrics)
    : max_bytes_(max_bytes), metrics_(metrics) {}

void PendingAnswers::show() const {
  metrics_.answer_bytes.show(bytes_, max_bytes_);
  metrics_.event_streams.show(events_.all, max_streams_);
  metrics_.file_streams.show(files_.all, max_streams_);
}

void PendingAnswers::give_back(bool is_file, const std::string& caller) {
  Count& count = is_file ? files_ : events_;
  --count.all;
  if (--count.of[caller] == 0) count.of.erase(caller);
  show();
}

void PendingAnswers::take(HttpResponse& response, const Caller& caller, std::size_t max_streams,
                          std::string_view instance, std::function<bool()> is_allowed) {
  max_streams_ = max_streams;
  show();
  const auto refuse = [&](const metrics::Budget& budget, const std::string& why) {
    budget.refused.add();
    response = make_problem(503, ErrorCode::kResourceExhausted, why, instance);
  };
  if (response.stream) {
    const bool is_file = response.stream->length().has_value();
    const std::string what = is_file ? "files" : "streams of events";
    Count& count = is_file ? files_ : events_;
    const auto& budget = is_file ? metrics_.file_streams : metrics_.event_streams;
    if (count.all >= max_streams)
      return refuse(budget,
                    "all " + std::to_string(max_streams) + " " + what +
                        " that may be sent at a time are: wait until a client has done, or raise "
                        "api.max_streams");
    const std::size_t most = std::max<std::size_t>(1, max_streams / 2);
    const auto mine = count.of.find(caller.name);
    if (!is_anybody(caller) && mine != count.of.end() && mine->second >= most)
      return refuse(budget,
                    "the token '" + caller.name + "' has " + std::to_string(most) + " " + what +
                        ", half of what is there for all: end one, or use a token of its own "
                        "(centroidctl tokens create)");
    ++count.all;
    ++count.of[caller.name];
    response.stream = std::make_shared<Stream>(*this, std::move(response.stream), caller.name,
                                               std::move(is_allowed));
    return show();
  }
  const std::size_t size = response.body.size();
  if (size <= kSmallBytes) return;
  if (bytes_ > 0 && bytes_ + size > max_bytes_)
    return refuse(metrics_.answer_bytes, "unread answers take " + std::to_string(bytes_) +
                                             " bytes, and this one would be " +
                                             std::to_string(size) +
                                             " more: retry, or request less (limit=, seconds=)");
  bytes_ += size;
  response.hold = std::shared_ptr<void>(nullptr, [this, size](void*) {
    bytes_ -= size;
    show();
  });
  show();
}

}  // namespace centroid::server
