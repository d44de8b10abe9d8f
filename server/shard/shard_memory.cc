#include "server/shard/shard_memory.h"

#include <algorithm>
#include <string>

#include "common/codec/codec.h"
#include "server/aggregate/aggregator.h"
#include "server/shard/placement.h"
#include "server/shard/staged_contributions.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {

/// Maximum bytes of the model on one server: an even share plus the imbalance of placement.
Result<std::uint64_t> share_of(const proto::ServerModel& model, std::uint64_t total) {
  CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(model.codec_down));
  std::uint64_t unit = std::min(total, model.chunk_bytes);  // the largest unit of placement
  if (down.feedback.enabled && down.kind == CodecSpec::Kind::kTopk)
    for (const TensorInfo& tensor : model.manifest) unit = std::max(unit, tensor.bytes());
  const std::uint64_t even = total / std::max<std::uint32_t>(model.servers, 1);
  unit =
      std::max(unit, static_cast<std::uint64_t>(static_cast<double>(even) * (kMaxImbalance - 1)));
  return even + unit;
}

/// `credit_bytes`: of one worker; 0: not known.
Result<MemoryQuestion> question_of(const proto::ServerModel& model, const FragmentPlan& fragments,
                                   std::uint64_t credit_bytes) {
  MemoryQuestion question;
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : model.manifest) total += tensor.bytes();
  CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(model.codec_down));
  CENTROID_ASSIGN(const std::uint64_t share, share_of(model, total));
  question.parameters = std::min(total, share) / sizeof(float);
  question.tensors = model.manifest.size();
  question.chunks = model.manifest.size() + total / std::max<std::uint64_t>(model.chunk_bytes, 1);
  question.stores_residual = down.feedback.enabled;
  question.compresses_results = true;  // every result is a copy
  question.applies_on_worker = model.apply_on_worker;
  question.is_elastic = model.is_elastic;
  if (model.is_elastic) question.kept = StagedContributions::kPerWorker;
  std::uint64_t largest = 0;  // of the fragments; each round has one
  for (std::uint32_t i = 0; i < fragments.count(); ++i)
    largest = std::max(largest, fragments[i].elements);
  question.result_bytes = std::min(question.parameters, largest) * sizeof(float);
  question.contribution_bytes = question.result_bytes;
  question.workers = model.workers;
  CENTROID_ASSIGN(const AggregateRule rule, AggregateRule::parse(model.aggregate));
  question.waits_for_all = !rule.is_mean();
  question.compared_at_once = rule.mixes() ? Aggregator::kAtOnce : 0;
  question.credit_bytes = credit_bytes == 0 ? UINT64_MAX : model.workers * credit_bytes;
  return question;
}

}  // namespace

Status ShardMemory::check(const proto::ServerModel& model, const FragmentPlan& fragments,
                          std::size_t optimizer_slots) {
  CENTROID_ASSIGN(MemoryQuestion question,
                  question_of(model, fragments, context_.leader.terms().credit_bytes));
  question.slots = optimizer_slots;
  question.snapshot_bytes =
      std::min<std::uint64_t>(kShardCopyBytes, context_.options.snapshot_budget);
  question.tables_bytes = rows_.reserved_bytes();
  const MemoryNeed need = memory_need(question);
  const MemoryLimit limit = memory_limit(context_.options.memory_limit);
  const Status fits = check_memory(need, limit);
  if (!fits.ok())
    return fits.error().with_context("server '" + context_.options.name +
                                     "', with its share of a model on " +
                                     std::to_string(model.servers) + " servers");
  // As on the leader: a round that needs more waits for the checkpoint's disk.
  const std::uint64_t more = std::max<std::uint64_t>(
      kShardCopyBytes, std::min(need.planes, (limit.bytes - need.total()) / 4));
  snapshot_budget_ = std::min(more, context_.options.snapshot_budget);
  const std::uint64_t beyond =
      snapshot_budget_ - std::min(snapshot_budget_, question.snapshot_bytes);
  rows_.set_beside(need.total() - need.tables + beyond);
  return fits;
}

}  // namespace centroid::server
