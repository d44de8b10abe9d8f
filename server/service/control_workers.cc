#include <algorithm>

#include "common/base/log.h"
#include "common/proto/about.h"
#include "server/service/control.h"
#include "server/service/scale.h"
#include "server/service/waits.h"
#include "transport/echo.h"

/// What operators say of workers: who may not join, how many are wanted, how they are reached. The
/// first two are kept beside the checkpoints.
namespace centroid::server {

namespace {

constexpr std::size_t kScaleRounds = 50;
constexpr double kUsualEfficiency = 0.5;
constexpr std::chrono::milliseconds kMeasureTime{300};
/// Of a worker that connects with another one first.
constexpr std::chrono::seconds kMeasurePatience{8};

/// What was done, and what is to be kept of it.
template <class View>
struct Act {
  View view{};
  OperatorCommands::Copy copy;
};

}  // namespace

Task<Result<EvictionView>> Control::evict(std::uint64_t member, double seconds, std::string why) {
  auto act = [this, member, seconds, why]() -> Result<Act<EvictionView>> {
    CENTROID_TRY(gate_.check_lead());
    const Member* const found = members_.roster.find(MemberId(member));
    if (found == nullptr)
      return Error(ErrorCode::kNotFound,
                   "there is no worker with member id " + std::to_string(member));
    if (commands_.evicted().size() >= kMaxEvictions)
      return Error(ErrorCode::kResourceExhausted, "1000 names are evicted: allow some");
    const std::string name = found->name;
    for (const auto& [id, worker] :
         members_.present)  // else the name is refused, and its worker trains on
      if (id != found->id && worker->join.name == name)
        return Error(ErrorCode::kFailedPrecondition,
                     "membership " + std::to_string(member) + " of '" + name +
                         "' is over: its present one is " + to_string(id));
    Eviction eviction;
    eviction.why = why.empty() ? "no reason given" : why;
    eviction.since_unix_seconds = clock_.unix_seconds();
    if (seconds > 0) {
      const auto span = std::chrono::duration<double>(seconds);
      eviction.until = clock_.now() + std::chrono::duration_cast<Duration>(span);
      eviction.until_unix_seconds = eviction.since_unix_seconds + seconds;
    }
    commands_.evict(name, eviction);
    const std::string reason = "evicted by an operator: " + eviction.why;
    tell(events_, log::Level::kWarn, "member.evicted",
         {{"worker", name}, {"member", member}, {"seconds", seconds}, {"why", eviction.why}});
    // Who is evicted for a while comes back by itself; who is not, ends.
    const auto code = eviction.until ? ErrorCode::kAborted : ErrorCode::kFailedPrecondition;
    if (members_.roster.leave(MemberId(member), reason))
      server_.parts().member_gone(MemberId(member), Error(code, reason));
    Act<EvictionView> done;
    done.view.name = name;
    done.view.why = eviction.why;
    done.view.since_unix_seconds = eviction.since_unix_seconds;
    done.view.until_unix_seconds = eviction.until_unix_seconds;
    done.copy = commands_.copy();
    return done;
  };
  CENTROID_CO_ASSIGN(const Act<EvictionView> done, co_await run_on(executor_, std::move(act)));
  CENTROID_CO_TRY(co_await commands_.save(done.copy.state, done.copy.revision));
  co_return done.view;
}

Task<std::vector<EvictionView>> Control::evictions() {
  auto read = [this] {
    std::vector<EvictionView> views;
    for (const auto& [name, eviction] : commands_.evicted())
      views.push_back({.name = name,
                       .why = eviction.why,
                       .since_unix_seconds = eviction.since_unix_seconds,
                       .until_unix_seconds = eviction.until_unix_seconds});
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<Status> Control::allow(std::string name) {
  auto act = [this, name]() -> Result<OperatorCommands::Copy> {
    CENTROID_TRY(gate_.check_lead());
    if (!commands_.allow(name))
      return Error(ErrorCode::kNotFound, "no worker '" + name + "' is evicted");
    return commands_.copy();
  };
  CENTROID_CO_ASSIGN(const auto copy, co_await run_on(executor_, std::move(act)));
  co_return co_await commands_.save(copy.state, copy.revision);
}

ScaleView Control::scale_view(double efficiency) const {
  ScaleQuestion question;
  question.efficiency = efficiency;
  question.adds_at_server = !open_.among_peers;
  question.max_workers = config_.workers.max;
  for (const auto& [id, worker] : members_.present)
    if (worker->measured.sums.rounds > 0)
      question.workers.push_back({worker->join.name, worker->measured.step_seconds});
  double first = 0, last = 0;
  for (const RoundView& round : job_.history) {  // newest first
    if (round.outcome != "committed" || round.generation != members_.roster.generation().value)
      continue;
    const double end = round.opened_unix_seconds + round.seconds;
    if (question.rounds == 0) last = end;
    first = end;
    if (++question.rounds > kScaleRounds) break;
  }
  if (question.rounds > 1)
    question.round_seconds = (last - first) / static_cast<double>(question.rounds - 1);
  const ScaleAdvice advice = advise_scale(question);
  const std::uint64_t useful =
      std::clamp(advice.useful_workers, std::max(config_.workers.min, config_.workers.min_continue),
                 config_.workers.max);
  return ScaleView{
      .workers = advice.workers,
      .useful_workers = advice.useful_workers,
      .efficiency = advice.efficiency,
      .speedup = advice.speedup,
      .round_seconds = advice.round_seconds,
      .compute_seconds = advice.compute_seconds,
      .overhead_seconds = advice.overhead_seconds,
      .limited_by = advice.limited_by,
      .straggler = advice.straggler,
      .advice = advice.advice,
      .target_workers = commands_.scale_hint.workers > 0 ? commands_.scale_hint.workers : useful,
      .hint_workers = commands_.scale_hint.workers,
      .hint_why = commands_.scale_hint.why,
      .hint_since_unix_seconds = commands_.scale_hint.since_unix_seconds};
}

Task<ScaleView> Control::scale(double efficiency) {
  auto read = [this, efficiency] { return scale_view(efficiency); };
  co_return co_await run_on(executor_, std::move(read));
}

Task<Result<ScaleView>> Control::hint_scale(std::uint64_t workers, std::string why) {
  auto act = [this, workers, why]() -> Result<Act<ScaleView>> {
    CENTROID_TRY(gate_.check_lead());
    const auto refuse = [&](const char* bound, std::uint64_t value, const char* action) {
      return Error(ErrorCode::kFailedPrecondition,
                   std::to_string(workers) + " workers are against " + bound + ", which is " +
                       std::to_string(value) + ": " + action +
                       " it first: `centroidctl config set` (PATCH /v1/config)");
    };
    if (workers > config_.workers.max) return refuse("max_workers", config_.workers.max, "raise");
    if (workers > 0 && workers < config_.workers.min)
      return refuse("min_workers", config_.workers.min, "lower");
    if (workers > 0 && workers < config_.workers.min_continue)
      return refuse("keep_min_workers", config_.workers.min_continue, "lower");
    commands_.scale_hint = {};
    if (workers > 0) {
      commands_.scale_hint.workers = workers;
      commands_.scale_hint.why = why;
      commands_.scale_hint.since_unix_seconds = clock_.unix_seconds();
    }
    probe_.scale_hint(workers);
    tell(events_, log::Level::kInfo, "scale.requested", {{"workers", workers}, {"why", why}});
    Act<ScaleView> done;
    done.view = scale_view(kUsualEfficiency);
    done.copy = commands_.copy();
    return done;
  };
  CENTROID_CO_ASSIGN(const Act<ScaleView> done, co_await run_on(executor_, std::move(act)));
  CENTROID_CO_TRY(co_await commands_.save(done.copy.state, done.copy.revision));
  co_return done.view;
}

namespace {

using Measured = std::optional<Result<transport::EchoReport>>;

/// A child of the session's group, so that the session outlives it.
Task<void> measure_for(Task<Result<transport::EchoReport>> measuring, std::shared_ptr<Measured> out,
                       Event* changed) {
  auto report = co_await std::move(measuring);
  out->emplace(std::move(report));
  changed->notify_all();
}

/// Have a worker measure its way to another one.
Task<Result<transport::EchoReport>> measure_between(transport::Session* session,
                                                    std::vector<std::byte> head) {
  const auto kind = static_cast<std::uint16_t>(proto::AboutKind::kMeasure);
  const TimePoint late = centroid::now() + kMeasurePatience;
  const auto reply = co_await session->request(kind, head, Bytes(), late);
  if (!reply.ok()) co_return reply.error();
  CENTROID_CO_ASSIGN(const auto told, proto::decode<proto::Measured>(reply->head));
  transport::EchoReport report;
  report.round_trips = told.round_trips;
  report.median_seconds = told.median_seconds;
  report.p99_seconds = told.p99_seconds;
  report.bytes_per_second_out = told.bytes_per_second_out;
  report.bytes_per_second_in = told.bytes_per_second_in;
  co_return report;
}

}  // namespace

Task<Result<NetworkView>> Control::measure(std::uint64_t member, std::optional<std::uint64_t> to) {
  auto ask = [](Control* self, MemberId id,
                std::optional<std::uint64_t> other) -> Task<Result<NetworkView>> {
    const auto nobody = [](MemberId whom) {
      return Error(ErrorCode::kNotFound,
                   "there is no worker with member id " + to_string(whom) + " here now");
    };
    const auto worker = self->members_.find(id);
    if (!worker) co_return nobody(id);
    const auto there = other ? self->members_.find(MemberId(*other)) : nullptr;
    if (other && !there) co_return nobody(MemberId(*other));
    const bool meets_others = self->open_.among_peers;
    if (other && (there == worker || !meets_others || there->join.peer_endpoint.empty()))
      co_return Error(ErrorCode::kFailedPrecondition,
                      there == worker ? "worker '" + worker->join.name + "' is no way from itself"
                                      : "worker '" + there->join.name +
                                            "' listens to no others: with exchange " +
                                            (meets_others ? there->join.exchange : "star") +
                                            " nothing goes between workers. Leave `to` away");
    if (self->is_measuring_network_)
      co_return Error(ErrorCode::kAborted, "another worker's network is being measured: repeat");
    self->is_measuring_network_ = true;
    const auto out = std::make_shared<Measured>();
    const auto bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(self->config_.transfer.chunk_bytes, transport::kMaxEchoBytes));
    if (there) {
      proto::Measure measure;
      measure.endpoint = there->join.peer_endpoint;
      measure.ms = static_cast<std::uint32_t>(kMeasureTime.count());
      measure.bytes = bytes;
      auto measuring = measure_between(worker->session, proto::encode(measure));
      worker->tasks->spawn(measure_for(std::move(measuring), out, &self->changed_));
    } else {
      auto measuring = transport::measure_echo(*worker->session, kMeasureTime, bytes);
      worker->tasks->spawn(measure_for(std::move(measuring), out, &self->changed_));
    }
    const auto is_over = [out, worker] { return out->has_value() || worker->is_gone; };
    BlockedOn on{WaitCause::kOperator, "a measurement of the network", "worker",
                 [worker] { return "echoes of worker '" + worker->join.name + "'"; }};
    const bool goes_on = co_await self->until(is_over, std::move(on));
    self->is_measuring_network_ = false;
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the call was cancelled");
    if (!*out)
      co_return Error(ErrorCode::kAborted, "worker '" + worker->join.name + "' left meanwhile");
    if (!(*out)->ok() && there)
      co_return Error((*out)->error().code(),
                      "worker '" + worker->join.name + "' could not measure its way to '" +
                          there->join.name + "' at " + there->join.peer_endpoint + ": " +
                          (*out)->error().message());
    if (!(*out)->ok()) co_return (*out)->error();
    const transport::EchoReport& report = (*out)->value();
    NetworkView view;
    view.member = id.value;
    view.name = worker->join.name;
    view.to = other;
    if (there) view.to_name = there->join.name;
    view.round_trips = report.round_trips;
    view.median_seconds = report.median_seconds;
    view.p99_seconds = report.p99_seconds;
    view.bytes_per_second_to = report.bytes_per_second_out;
    view.bytes_per_second_from = report.bytes_per_second_in;
    co_return view;
  };
  co_return co_await run_on(executor_, ask(this, MemberId(member), to));
}

}  // namespace centroid::server
