#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>

#include "common/proto/about.h"
#include "common/proto/messages.h"
#include "common/proto/pulls.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "common/proto/tables.h"
#include "common/tensor/text.h"

/// Checks of a message beyond its layout.
namespace centroid::proto {
namespace {

/// The layout of a frame, beside a head.
enum Form : unsigned { kMessage = 0, kRequest = 1, kPayload = 2, kNoHead = 4 };

struct Rule {
  template <class K>
  constexpr Rule(K of, std::string_view its_name, unsigned its_form = kMessage)
      : kind(static_cast<std::uint16_t>(of)), name(its_name), form(its_form) {}
  std::uint16_t kind;
  std::string_view name;
  unsigned form;
};

constexpr std::array kRules{
    Rule(Kind::kJoin, "Join", kRequest | kPayload),
    Rule(Kind::kInitRequest, "InitRequest", kNoHead),
    Rule(Kind::kInitChunk, "InitChunk", kPayload),
    Rule(Kind::kInitDone, "InitDone", kNoHead),
    Rule(Kind::kStateChunk, "StateChunk", kPayload),
    Rule(Kind::kRoundOpen, "RoundOpen"),
    Rule(Kind::kPush, "Push", kPayload),
    Rule(Kind::kPushEnd, "PushEnd"),
    Rule(Kind::kResult, "Result", kPayload),
    Rule(Kind::kRoundClosed, "RoundClosed"),
    Rule(Kind::kHeartbeat, "Heartbeat"),
    Rule(Kind::kLeave, "Leave", kRequest),
    Rule(Kind::kFinish, "Finish"),
    Rule(Kind::kReport, "Report"),
    Rule(Kind::kPeers, "Peers"),
    Rule(Kind::kStateRequest, "StateRequest"),
    Rule(Kind::kStateDone, "StateDone"),
    Rule(Kind::kComputed, "Computed"),
    Rule(Kind::kReady, "Ready"),
    Rule(Kind::kExchangeFailed, "ExchangeFailed"),
    Rule(Kind::kKeep, "Keep"),
    Rule(Kind::kWait, "Wait"),
    Rule(AboutKind::kMeasure, "Measure", kRequest),
    Rule(AboutKind::kKept, "Kept"),
    Rule(RowsKind::kOpen, "RowsOpen", kRequest),
    Rule(RowsKind::kPull, "RowsPull", kRequest | kPayload),
    Rule(RowsKind::kPush, "RowsPush", kRequest | kPayload),
    Rule(RowsKind::kRoute, "RowsRoute", kRequest | kNoHead),
    Rule(PullKind::kPull, "Pull", kRequest),
    Rule(PullKind::kValues, "Values", kPayload),
    Rule(ServersKind::kServerJoin, "ServerJoin", kRequest),
    Rule(ServersKind::kModel, "Model", kRequest | kPayload),
    Rule(ServersKind::kPlace, "Place", kRequest),
    Rule(ServersKind::kLoad, "Load", kRequest | kPayload),
    Rule(ServersKind::kBegin, "Begin", kRequest),
    Rule(ServersKind::kFetch, "Fetch", kRequest),
    Rule(ServersKind::kFreeze, "Freeze", kRequest),
    Rule(ServersKind::kMerge, "Merge", kRequest),
    Rule(ServersKind::kStep, "Step", kRequest),
    Rule(ServersKind::kCommit, "Commit", kRequest),
    Rule(ServersKind::kWhole, "Whole"),
    Rule(ServersKind::kForget, "Forget"),
    Rule(ServersKind::kRoute, "Route"),
    Rule(ServersKind::kEnter, "Enter", kRequest),
    Rule(ServersKind::kRecall, "Recall", kRequest),
    Rule(ServersKind::kOptimizer, "Optimizer", kRequest),
    Rule(ServersKind::kServerReport, "ServerReport"),
    Rule(ServersKind::kStatistics, "Statistics", kRequest),
    Rule(ServersKind::kRefused, "Refused"),
    Rule(ServersKind::kTokens, "Tokens", kRequest),
    Rule(ServersKind::kOpened, "Opened"),
    Rule(ServersKind::kMemoryPlan, "MemoryPlan", kRequest),
    Rule(TablesKind::kTables, "Tables", kRequest),
    Rule(TablesKind::kRowsLoad, "RowsLoad", kRequest | kPayload),
    Rule(TablesKind::kPushesLoad, "PushesLoad", kRequest | kPayload),
    Rule(TablesKind::kReplay, "Replay", kRequest | kNoHead),
    Rule(TablesKind::kServe, "Serve", kRequest),
    Rule(TablesKind::kRowsFreeze, "RowsFreeze", kRequest),
    Rule(TablesKind::kRowsRead, "RowsRead", kRequest),
    Rule(TablesKind::kPushesRead, "PushesRead", kRequest),
    Rule(TablesKind::kRowsThaw, "RowsThaw", kRequest),
    Rule(TablesKind::kTablesReport, "TablesReport", kRequest | kNoHead),
    Rule(TablesKind::kBucketsFind, "BucketsFind", kRequest),
    Rule(TablesKind::kBucketsBlock, "BucketsHold", kRequest),
    Rule(TablesKind::kBucketsRead, "BucketsRead", kRequest | kNoHead),
    Rule(TablesKind::kBucketsPut, "BucketsPut", kRequest | kPayload),
    Rule(TablesKind::kBucketsTake, "BucketsTake", kRequest),
    Rule(TablesKind::kBucketsRelease, "BucketsGive", kRequest),
    Rule(TablesKind::kBucketsRetain, "BucketsKeep", kRequest),
    Rule(TablesKind::kBucketsClaims, "BucketsClaims", kRequest | kNoHead),
};

Error wrong(std::string_view field, const std::string& value, std::string_view expected) {
  return Error(ErrorCode::kInvalidArgument, std::string(field) + " is " + value + ", it must be " +
                                                std::string(expected) +
                                                " (docs/reference/wire.md)");
}

std::string text(double number) {
  char out[32];
  std::snprintf(out, sizeof out, "%.17g", number);
  return out;
}

Status check_weight(std::string_view field, double weight, bool may_be_zero) {
  if (weight > 0 && weight <= kMaxWeight) return {};
  if (weight == 0 && may_be_zero) return {};
  return wrong(field, text(weight), may_be_zero ? "from 0 to 1e15" : "above 0, at most 1e15");
}

/// Of norms and rates.
Status check_positive(std::string_view field, double number) {
  if (std::isfinite(number) && number >= 0) return {};
  return wrong(field, text(number), "a finite number, not below 0");
}

Status check_seconds(std::string_view field, double seconds) {
  if (seconds >= 0 && seconds <= kMaxSeconds) return {};
  return wrong(field, text(seconds), "a number from 0 to 1e9");
}

Status check_loss(std::string_view field, double loss_sum) {
  if (std::abs(loss_sum) <= kMaxLoss) return {};
  return wrong(field, text(loss_sum), "a finite number, from -1e300 to 1e300");
}

Status check_correct(std::string_view field, std::uint64_t correct, std::uint64_t samples) {
  if (correct <= samples) return {};
  return wrong(field, std::to_string(correct),
               "at most the number of samples, " + std::to_string(samples));
}

/// Of PushEnd.
Status check_scalars(const std::vector<Scalar>& scalars) {
  if (scalars.size() > Scalars::kMaxNames)
    return wrong("PushEnd.scalars", std::to_string(scalars.size()) + " scalars", "at most 16");
  const std::string* before = nullptr;
  for (const Scalar& one : scalars) {
    if (!is_scalar_name(one.name))
      return wrong("PushEnd.scalars.name", "of " + std::to_string(one.name.size()) + " bytes",
                   "1 to 64 letters, digits, _ . / or -, a letter or _ first");
    if (before != nullptr && !(*before < one.name))
      return wrong("PushEnd.scalars.name", one.name, "after " + *before + ", ascending");
    if (!(std::abs(one.sum) <= Scalars::kMaxSum))
      return wrong("PushEnd.scalars." + one.name, text(one.sum),
                   "a finite number, from -1e300 to 1e300");
    if (one.count == 0) return wrong("PushEnd.scalars." + one.name, "of 0 numbers", "of some");
    before = &one.name;
  }
  return {};
}

}  // namespace

std::vector<Scalar> to_wire(const Scalars& scalars) {
  std::vector<Scalar> out;
  for (const auto& [name, sum] : scalars.all()) out.push_back({name, sum.sum, sum.count});
  return out;
}

Status check_frame(std::uint16_t kind, bool is_request, std::uint64_t head_bytes,
                   std::uint64_t payload_bytes) {
  const auto rule = std::ranges::find(kRules, kind, &Rule::kind);
  if (rule == kRules.end()) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string(rule->name) + " (" + std::to_string(kind) + ") arrived with" + why);
  };
  const bool wants_request = (rule->form & kRequest) != 0;
  if (is_request && !wants_request) return refuse(" the request flag, but is one-way");
  if (!is_request && wants_request) return refuse("out the request flag, but is a request");
  if (head_bytes != 0 && (rule->form & kNoHead) != 0)
    return refuse(" a head of " + std::to_string(head_bytes) + " bytes, but has none");
  if (payload_bytes != 0 && (rule->form & kPayload) == 0)
    return refuse(" a payload of " + std::to_string(payload_bytes) + " bytes, but has none");
  return {};
}

double wire_loss(double loss_sum) {
  return std::isfinite(loss_sum) ? std::clamp(loss_sum, -kMaxLoss, kMaxLoss) : kMaxLoss;
}

Status Beat::check() const {
  if (std::isfinite(unix_seconds)) return {};
  return wrong("Beat.unix_seconds", text(unix_seconds), "finite");
}

Status Measure::check() const {
  constexpr std::uint32_t kMostBytes = 1u << 20;
  if (ms < 1 || ms > kMaxMeasureMs)
    return wrong("Measure.ms", std::to_string(ms), "from 1 to " + std::to_string(kMaxMeasureMs));
  if (bytes >= 1 && bytes <= kMostBytes) return {};
  return wrong("Measure.bytes", std::to_string(bytes), "from 1 to 1 MiB");
}

Status Join::check() const {
  // They stand in checkpoints, which are JSON.
  for (const std::string* text : {&name, &exchange, &codec, &model, &peer_endpoint, &node})
    if (!is_utf8(*text)) return wrong("Join", printable(*text), "UTF-8 in all its texts");
  if (batch > kMaxBatch) return wrong("Join.batch", std::to_string(batch), "at most 2^32");
  if (train_samples <= kMaxTrainSamples) return {};
  return wrong("Join.train_samples", std::to_string(train_samples), "at most 2^48");
}

Status JoinReply::check() const {
  if (local_steps == 0) return wrong("JoinReply.local_steps", "0", "at least 1");
  if (fragments == 0 || local_steps % fragments != 0)
    return wrong("JoinReply.fragments", std::to_string(fragments),
                 "a divisor of local_steps, " + std::to_string(local_steps));
  if (!(scale_ratio >= 0 && scale_ratio <= 1000))
    return wrong("JoinReply.scale_ratio", text(scale_ratio), "from 0 to 1000");
  return {};
}

Status RoundOpen::check() const {
  if (rates.learning_rate != -1)
    CENTROID_TRY(check_positive("RoundOpen.learning_rate", rates.learning_rate));
  if (rates.inner != -1) CENTROID_TRY(check_positive("RoundOpen.inner_learning_rate", rates.inner));
  return {};
}

Status Push::check() const { return check_weight("Push.weight", weight, false); }

Status PushEnd::check() const {
  CENTROID_TRY(check_weight("PushEnd.weight", weight, true));
  if (samples > static_cast<std::uint64_t>(kMaxWeight))
    return wrong("PushEnd.samples", std::to_string(samples), "at most 1e15");
  CENTROID_TRY(check_correct("PushEnd.correct", correct, samples));
  CENTROID_TRY(check_loss("PushEnd.loss_sum", loss_sum));
  CENTROID_TRY(check_seconds("PushEnd.compute_seconds", compute_seconds));
  CENTROID_TRY(check_seconds("PushEnd.wait_seconds", wait_seconds));
  CENTROID_TRY(check_seconds("PushEnd.encode_seconds", encode_seconds));
  CENTROID_TRY(check_seconds("PushEnd.decode_seconds", decode_seconds));
  CENTROID_TRY(check_positive("PushEnd.residual_norm", residual_norm));
  CENTROID_TRY(check_seconds("PushEnd.exchange_seconds", exchange_seconds));
  CENTROID_TRY(check_seconds("PushEnd.send_seconds", send_seconds));
  CENTROID_TRY(check_seconds("PushEnd.addition_seconds", addition_seconds));
  CENTROID_TRY(check_seconds("PushEnd.apply_seconds", apply_seconds));
  if (divergence != -1) CENTROID_TRY(check_positive("PushEnd.divergence", divergence));
  if (norm != -1) CENTROID_TRY(check_positive("PushEnd.norm", norm));
  if (parameter_norm != -1) CENTROID_TRY(check_positive("PushEnd.parameter_norm", parameter_norm));
  CENTROID_TRY(check_scalars(scalars));
  if (dense_chunks <= chunks) return {};
  return wrong("PushEnd.dense_chunks", std::to_string(dense_chunks),
               "at most PushEnd.chunks, " + std::to_string(chunks));
}

Status Opened::check() const {
  for (std::size_t i = 1; i < members.size(); ++i)
    if (members[i].member <= members[i - 1].member)
      return wrong("Opened.members", to_string(members[i].member),
                   "after " + to_string(members[i - 1].member) + ", ascending");
  std::set<MemberId> seen;
  for (const MemberId member : summed)
    if (!seen.insert(member).second) return wrong("Opened.summed", to_string(member), "named once");
  return {};
}

Status MemoryPlan::check() const {
  if (workers == 0) return wrong("MemoryPlan.workers", "0", "1 or more");
  if (servers == 0) return wrong("MemoryPlan.servers", "0", "1 or more");
  return {};
}

Status RoundClosed::check() const {
  if (std::isfinite(weight) && weight >= 0) return {};
  return wrong("RoundClosed.weight", text(weight), "a finite number, not below 0");
}

Status Peers::check() const {
  if (ranks.size() <= kMaxPeers) return {};
  return wrong("Peers.ranks", std::to_string(ranks.size()) + " ranks", "at most 4096");
}

Status Report::check() const {
  CENTROID_TRY(check_correct("Report.correct", correct, samples));
  return check_loss("Report.loss_sum", loss_sum);
}

namespace {

Status check_rows(std::string_view field, std::uint32_t rows) {
  if (rows >= 1 && rows <= kMaxRows) return {};
  return wrong(field, std::to_string(rows), "from 1 to " + std::to_string(kMaxRows));
}

}  // namespace

Status RowsOpen::check() const {
  if (client != 0) return {};
  return wrong("RowsOpen.client", "0", "a random number, not 0");
}

Status RowsOpenReply::check() const {
  if (dim == 0) return wrong("RowsOpenReply.dim", "0", "at least 1");
  return check_rows("RowsOpenReply.max_rows", max_rows);
}

Status RowsPull::check() const { return check_rows("RowsPull.rows", rows); }

Status RowsPush::check() const {
  if (sequence == 0) return wrong("RowsPush.sequence", "0", "at least 1");
  return check_rows("RowsPush.rows", rows);
}

Status Tables::check() const {
  CENTROID_TRY(route.check());
  if (route.owners.size() == kRowBuckets) return {};
  return wrong("Tables.route.owners", std::to_string(route.owners.size()) + " owners",
               "one of each of the " + std::to_string(kRowBuckets) + " buckets");
}

namespace {

Status check_buckets(const char* what, const std::vector<std::uint16_t>& buckets) {
  for (const std::uint16_t bucket : buckets)
    if (bucket >= kRowBuckets)
      return wrong(what, std::to_string(bucket), "below " + std::to_string(kRowBuckets));
  return {};
}

}  // namespace

Status Buckets::check() const { return check_buckets("Buckets.buckets", buckets); }

Status BucketsPut::check() const {
  if (rows <= kMaxRows) return {};
  return wrong("BucketsPut.rows", std::to_string(rows), "at most " + std::to_string(kMaxRows));
}

Status BucketsRoute::check() const {
  CENTROID_TRY(route.check());
  if (route.owners.size() != kRowBuckets)
    return wrong("BucketsRoute.route.owners", std::to_string(route.owners.size()) + " owners",
                 "one of each of the " + std::to_string(kRowBuckets) + " buckets");
  return check_buckets("BucketsRoute.buckets", buckets);
}

Status RowsBlock::check() const {
  if (rows <= kMaxRows) return {};
  return wrong("RowsBlock.rows", std::to_string(rows), "at most " + std::to_string(kMaxRows));
}

Status Route::check() const {
  if (servers.empty()) return wrong("Route.servers", "empty", "a list with the leader first");
  for (const std::uint16_t owner : owners)
    if (owner >= servers.size())
      return wrong("Route.owners", std::to_string(owner),
                   "below the number of servers, " + std::to_string(servers.size()));
  return {};
}

Status WeighedContribution::check() const {
  return check_weight("WeighedContribution.weight", weight, true);
}

Status Whole::check() const {
  CENTROID_TRY(check_weight("Whole.weight", weight, true));
  if (squares >= 0) return {};
  return wrong("Whole.squares", text(squares), "not below 0");
}

Status Refused::check() const {
  constexpr auto kFirst = static_cast<std::uint8_t>(ErrorCode::kUnavailable);
  constexpr auto kLast = static_cast<std::uint8_t>(ErrorCode::kInternal);
  if (code >= kFirst && code <= kLast) return {};
  return wrong("Refused.code", std::to_string(code), "from 1 to 12");
}

Status Merge::check() const {
  if (!(total_weight > 0 && std::isfinite(total_weight)))
    return wrong("Merge.total_weight", text(total_weight), "above 0, finite");
  if (!(rate_factor >= 1 && std::isfinite(rate_factor)))
    return wrong("Merge.rate_factor", text(rate_factor), "at least 1, finite");
  return {};
}

}  // namespace centroid::proto
