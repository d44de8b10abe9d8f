#include "worker/parallel/pipeline.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "transport/collective/collectives.h"

namespace centroid::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Action::Kind;

/// Of messages in one direction.
enum Tag : std::uint64_t { kActivation = 1, kGradient = 2 };
/// Gradients for which a stage waits at a time: one that is next, one that comes meanwhile.
constexpr std::size_t kGradientsAhead = 2;

/// A message on its way. The operation ends before its memory does.
struct Message {
  std::uint32_t micro_batch = 0;
  std::vector<float> values;
  collective::Handle handle{};
};

std::vector<std::uint32_t> micro_batches_of(const Actions& actions, Kind kind) {
  std::vector<std::uint32_t> out;
  for (const Action& action : actions)
    if (action.kind == kind) out.push_back(action.micro_batch);
  return out;
}

class Execution {
 public:
  Execution(const collective::Group& group, std::span<const Actions> schedule, Stage& stage,
            std::chrono::milliseconds timeout)
      : group_(group),
        rank_(group.rank()),
        is_last_(rank_ + 1 == schedule.size()),
        actions_(schedule[rank_]),
        forwards_(micro_batches_of(actions_, Kind::kForward)),
        backwards_(micro_batches_of(actions_, Kind::kBackward)),
        credits_(rank_ == 0 ? 0 : most_activations(schedule[rank_ - 1])),
        most_sends_(most_activations(actions_)),
        stage_(stage),
        timeout_(timeout) {}

  Status run() {
    for (const Action& action : actions_) {
      at_ = static_cast<std::size_t>(&action - actions_.data());
      expect_inputs();
      expect_gradients();
      CENTROID_TRY(action.kind == Kind::kForward ? forward(action.micro_batch)
                                                 : backward(action.micro_batch));
    }
    while (!sent_.empty()) CENTROID_TRY(end_send());
    return {};
  }
  Clock::duration computing() const { return computing_; }

 private:
  collective::CallOptions options(Tag tag) const {
    collective::CallOptions out;
    out.timeout = timeout_;
    out.tag = tag;
    return out;
  }
  void expect_inputs() {
    while (rank_ > 0 && expected_inputs_ < forwards_.size() && inputs_.size() + held_ < credits_) {
      const std::uint32_t micro_batch = forwards_[expected_inputs_++];
      expect(inputs_, micro_batch, stage_.input_elements(micro_batch), rank_ - 1, kActivation);
    }
  }
  void expect_gradients() {
    while (!is_last_ && expected_gradients_ < backwards_.size() &&
           gradients_.size() < kGradientsAhead) {
      const std::uint32_t micro_batch = backwards_[expected_gradients_++];
      expect(gradients_, micro_batch, stage_.output_elements(micro_batch), rank_ + 1, kGradient);
    }
  }
  void expect(std::deque<Message>& queue, std::uint32_t micro_batch, std::size_t elements,
              std::uint32_t from, Tag tag) {
    Message& message = queue.emplace_back();
    message.micro_batch = micro_batch;
    message.values.resize(elements);
    if (elements == 0) return;
    collective::CallOptions patient = options(tag);
    const Kind kind = tag == kActivation ? Kind::kForward : Kind::kBackward;
    patient.turns = turns_until({kind, micro_batch});
    message.handle =
        collective::receive_async(group_, std::span<float>(message.values), from, patient);
  }
  /// Each action before that one may take the timeout, here and on the other stages.
  std::uint32_t turns_until(const Action& action) const {
    const auto is_it = [&action](const Action& one) {
      return one.kind == action.kind && one.micro_batch == action.micro_batch;
    };
    const auto found =
        std::find_if(actions_.begin() + static_cast<std::ptrdiff_t>(at_), actions_.end(), is_it);
    const auto before = found - actions_.begin() - static_cast<std::ptrdiff_t>(at_);
    return static_cast<std::uint32_t>(before) + group_.world();
  }
  /// The oldest message of a queue, when it is here.
  Result<Message> take(std::deque<Message>& queue, const char* what) const {
    Message message = std::move(queue.front());
    queue.pop_front();
    if (message.values.empty()) return message;
    const Status received = message.handle.wait();
    if (!received.ok()) return named(received.error(), "waits for", what, message.micro_batch);
    return message;
  }
  Error named(const Error& cause, const char* verb, const char* what,
              std::uint32_t micro_batch) const {
    return cause.with_context("stage " + std::to_string(rank_) + " " + verb + " the " + what +
                              " of micro-batch " + std::to_string(micro_batch));
  }
  Status send(std::uint32_t micro_batch, std::vector<float> values, std::uint32_t to, Tag tag) {
    if (values.empty()) return {};
    while (!sent_.empty() && (sent_.size() >= most_sends_ || sent_.front().handle.test()))
      CENTROID_TRY(end_send());
    Message& message = sent_.emplace_back();
    message.micro_batch = micro_batch;
    message.values = std::move(values);
    collective::CallOptions patient = options(tag);
    patient.turns = static_cast<std::uint32_t>(most_sends_) + group_.world();
    message.handle =
        collective::send_async(group_, std::span<const float>(message.values), to, patient);
    return {};
  }
  Status end_send() {
    const Status sent = sent_.front().handle.wait();
    if (!sent.ok()) return named(sent.error(), "sends", "results", sent_.front().micro_batch);
    sent_.pop_front();
    return {};
  }
  template <class Compute>
  Status timed(const Compute& compute) {
    const auto begin = Clock::now();
    const Status computed = compute();
    computing_ += Clock::now() - begin;
    if (!computed.ok()) group_.abort(computed.error());
    return computed;
  }

  Status forward(std::uint32_t micro_batch) {
    Message input;
    if (rank_ > 0) {
      CENTROID_ASSIGN(input, take(inputs_, "activation"));
    }
    std::vector<float> output(is_last_ ? 0 : stage_.output_elements(micro_batch));
    CENTROID_TRY(timed([&] { return stage_.forward(micro_batch, input.values, output); }));
    if (!backwards_.empty()) ++held_;
    return send(micro_batch, std::move(output), rank_ + 1, kActivation);
  }
  Status backward(std::uint32_t micro_batch) {
    Message gradient;
    if (!is_last_) {
      CENTROID_ASSIGN(gradient, take(gradients_, "gradient"));
    }
    std::vector<float> input(rank_ == 0 ? 0 : stage_.input_elements(micro_batch));
    CENTROID_TRY(timed([&] { return stage_.backward(micro_batch, gradient.values, input); }));
    --held_;
    return send(micro_batch, std::move(input), rank_ - 1, kGradient);
  }

  const collective::Group& group_;
  const std::uint32_t rank_;
  const bool is_last_;
  const Actions& actions_;
  const std::vector<std::uint32_t> forwards_, backwards_;
  const std::size_t credits_, most_sends_;
  Stage& stage_;
  const std::chrono::milliseconds timeout_;
  std::deque<Message> inputs_, gradients_, sent_;
  std::size_t expected_inputs_ = 0, expected_gradients_ = 0;
  std::size_t at_ = 0;    ///< the present one of `actions_`
  std::size_t held_ = 0;  ///< micro-batches between their forward and their backward
  Clock::duration computing_{};
};

}  // namespace

Bubble PipelineReport::bubble() const {
  if (computing.count() <= 0) return {};
  const double waiting = (all - computing).count();
  return {waiting / computing.count(), waiting / all.count()};
}

Result<PipelineReport> run_pipeline(const collective::Group& group,
                                    std::span<const Actions> schedule, Stage& stage,
                                    std::chrono::milliseconds timeout) {
  if (schedule.size() != group.world())
    return Error(ErrorCode::kInvalidArgument, "pipeline: a schedule of " +
                                                  std::to_string(schedule.size()) + " stages for " +
                                                  std::to_string(group.world()) + " ranks");
  const auto begin = Clock::now();
  Execution execution(group, schedule, stage, timeout);
  const Status ran = execution.run();
  if (!ran.ok()) return ran.error().with_context("pipeline");
  PipelineReport report;
  report.computing = execution.computing();
  report.all = Clock::now() - begin;
  return report;
}

}  // namespace centroid::parallel
