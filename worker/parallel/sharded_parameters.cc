#include "worker/parallel/sharded_parameters.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/optim/norm.h"
#include "common/tensor/text.h"
#include "transport/collective/collectives.h"

namespace centroid::parallel {
namespace {

// Tags 2 * unit + 1 are those of Reducing.
constexpr std::uint64_t kNormTag = ~std::uint64_t{1};
constexpr std::uint64_t kCopyTag = std::uint64_t{1} << 62;  // plus the unit

Error wrong_use(const std::string& why) {
  return Error(ErrorCode::kFailedPrecondition, "sharded parameters: " + why);
}

Result<collective::Group> everyone(const collective::Group& group) {
  std::vector<std::uint32_t> ranks(group.world());
  for (std::uint32_t i = 0; i < group.world(); ++i) ranks[i] = i;
  return group.subgroup(std::move(ranks));
}

/// Elements of a unit's memory: room for as many largest parts as there are ranks (UnitParts).
std::uint64_t room_of(const ShardLayout& layout, std::size_t unit) {
  return layout.ranks() * layout.shard(unit, 0).count;
}

collective::CallOptions options_of_gather(std::size_t unit, std::chrono::milliseconds timeout) {
  collective::CallOptions options;
  options.tag = 2 * unit;
  options.timeout = timeout;
  return options;
}

/// Call `wait`, and add the time that it takes.
template <class Wait>
auto timed(double& seconds, const Wait& wait) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = wait();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::string name_of_unit(std::size_t unit) { return "unit " + std::to_string(unit); }

}  // namespace

Result<std::unique_ptr<ShardedParameters>> ShardedParameters::divide(
    const collective::Group& group, std::vector<ParameterShape> parameters,
    const ShardedOptions& options) {
  const std::uint32_t rank = group.rank(), world = group.world();
  CENTROID_ASSIGN(const Sharding sharding, Sharding::parse(options.sharding.text(), world));
  CENTROID_ASSIGN(std::unique_ptr<Optimizer> optimizer, make_optimizer(options.optimizer));
  const std::vector<std::uint32_t> ranks = sharding.shard_ranks(rank, world);
  CENTROID_ASSIGN(ShardLayout layout,
                  ShardLayout::make(std::move(parameters), static_cast<std::uint32_t>(ranks.size()),
                                    options.least_elements));
  CENTROID_ASSIGN(collective::Group shards, group.subgroup(ranks));
  CENTROID_ASSIGN(collective::Group replicas, group.subgroup(sharding.replica_ranks(rank, world)));
  if (options.replicas > 1 || options.replicas >= world)
    return Error(ErrorCode::kInvalidArgument,
                 "sharded parameters: replicas are 0 or 1, and fewer than the " +
                     std::to_string(world) + " ranks; asked for " +
                     std::to_string(options.replicas));
  return std::unique_ptr<ShardedParameters>(new ShardedParameters(
      std::move(layout), options, std::move(shards), std::move(replicas), std::move(optimizer)));
}

Result<std::unique_ptr<ShardedParameters>> ShardedParameters::make(
    const collective::Group& group, std::vector<ParameterShape> parameters,
    const ShardedOptions& options, const Initial& initial) {
  CENTROID_ASSIGN(std::unique_ptr<ShardedParameters> made,
                  divide(group, std::move(parameters), options));
  CENTROID_ASSIGN(const collective::Group all, everyone(group));
  if (Status filled = made->fill(all, initial); !filled.ok()) {
    all.abort(filled.error());
    return std::move(filled).error();
  }
  return made;
}

Result<std::unique_ptr<ShardedParameters>> ShardedParameters::resume(
    const collective::Group& group, std::vector<ParameterShape> parameters,
    const ShardedOptions& options, std::uint64_t steps, const Stored& stored,
    std::chrono::milliseconds patience) {
  CENTROID_ASSIGN(std::unique_ptr<ShardedParameters> made,
                  divide(group, std::move(parameters), options));
  CENTROID_ASSIGN(const collective::Group all, everyone(group));
  made->steps_ = steps;
  if (Status read = made->read(stored); !read.ok()) {
    all.abort(read.error());
    return std::move(read).error();
  }
  collective::CallOptions call;
  call.timeout = patience.count() > 0 ? patience : options.timeout;
  CENTROID_TRY(collective::barrier(all, call));  // another rank's failure is everyone's
  return made;
}

ShardedParameters::ShardedParameters(ShardLayout layout, const ShardedOptions& options,
                                     collective::Group shards, collective::Group replicas,
                                     std::unique_ptr<Optimizer> optimizer)
    : layout_(std::move(layout)),
      timeout_(options.timeout),
      shards_(std::move(shards)),
      replicas_(std::move(replicas)),
      parts_(options.parts),
      optimizer_(std::move(optimizer)),
      keeps_full_(!options.sharding.shards_parameters() || shards_.world() == 1),
      down_(shards_.world() == 1 ? PartCodec() : options.codec_down),
      gathered_(shards_, down_),
      is_safe_(options.replicas > 0 || parts_),
      units_(layout_.units().size()),
      copies_(options.replicas > 0 && replicas_.world() == 1 ? units_.size() : 0),
      copied_(buffers_),
      reducing_(layout_, shards_, replicas_, options.codec, buffers_, timeout_) {}

Status ShardedParameters::fill(const collective::Group& all, const Initial& initial) {
  collective::CallOptions options;
  options.timeout = timeout_;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Range& elements = layout_.units()[i].elements;
    const Range& parameters = layout_.units()[i].parameters;
    const Range shard = layout_.shard(i, shards_.rank());
    Buffer whole = buffers_.take(elements.count);
    const std::span<float> values = whole.as<float>();
    for (std::size_t index = parameters.begin; all.rank() == 0 && index < parameters.end();
         ++index) {
      const Range within = layout_.within_unit(index);
      Status filled = initial(index, values.subspan(within.begin, within.count));
      if (!filled.ok())
        return std::move(filled).error().with_context("initial values of " +
                                                      printable(layout_.parameters()[index].name));
    }
    CENTROID_TRY(collective::broadcast(all, values, 0, options));
    units_[i].state.assign(optimizer_->slots(), std::vector<float>(shard.count));
    if (has_copy()) {
      const Range copied = layout_.shard(i, copied_rank());
      copies_[i].values.assign(values.begin() + static_cast<std::ptrdiff_t>(copied.begin),
                               values.begin() + static_cast<std::ptrdiff_t>(copied.end()));
      copies_[i].state.assign(optimizer_->slots(), std::vector<float>(copied.count));
    }
    CENTROID_TRY(place(i, std::move(whole)));
  }
  return {};
}

/// Store the values of all ranks as they are between two steps.
Status ShardedParameters::place(std::size_t unit, Buffer whole) {
  Unit& one = units_[unit];
  const Range shard = layout_.shard(unit, shards_.rank());
  one.full = std::move(whole);
  if (has_master()) {
    const std::span<const float> own = all_of(unit).subspan(shard.begin, shard.count);
    one.master.assign(own.begin(), own.end());
  }
  if (!keeps_full_) buffers_.give_back(std::move(one.full));
  return down_.is_f32() || !keeps_full_ ? Status() : gathered_.round(all_of(unit));
}

Status ShardedParameters::read(const Stored& stored) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& one = units_[i];
    const Range& elements = layout_.units()[i].elements;
    Range shard = layout_.shard(i, shards_.rank());
    shard.begin += elements.begin;
    if (keeps_full_) {
      Buffer whole = buffers_.take(elements.count);
      CENTROID_TRY(stored(0, elements, whole.as<float>()));
      CENTROID_TRY(place(i, std::move(whole)));
    } else {
      one.master.resize(shard.count);
      CENTROID_TRY(stored(0, shard, one.master));
    }
    for (std::size_t slot = 0; slot < optimizer_->slots(); ++slot) {
      one.state.emplace_back(shard.count);
      CENTROID_TRY(stored(1 + slot, shard, one.state.back()));
    }
    if (!has_copy()) continue;
    Range copied = layout_.shard(i, copied_rank());
    copied.begin += elements.begin;
    copies_[i].values.resize(copied.count);
    CENTROID_TRY(stored(0, copied, copies_[i].values));
    for (std::size_t slot = 0; slot < optimizer_->slots(); ++slot) {
      copies_[i].state.emplace_back(copied.count);
      CENTROID_TRY(stored(1 + slot, copied, copies_[i].state.back()));
    }
  }
  return {};
}

Status ShardedParameters::check_unit(std::size_t unit) const {
  if (failed_) return *failed_;
  if (unit < units_.size()) return {};
  return Error(ErrorCode::kInvalidArgument, "sharded parameters: " + name_of_unit(unit) + " of " +
                                                std::to_string(units_.size()));
}

Error ShardedParameters::fail(Error cause) {
  // A rank that fails in one of its groups ends the other, so it ends everywhere.
  shards_.abort(cause);
  replicas_.abort(cause);
  if (parts_) parts_->abort(cause);
  if (!failed_) failed_ = cause;
  return cause;
}

std::span<float> ShardedParameters::all_of(std::size_t unit) const {
  return units_[unit].full.as<float>().first(layout_.units()[unit].elements.count);
}

std::span<float> ShardedParameters::own(std::size_t unit) {
  if (has_master()) return units_[unit].master;
  const Range shard = layout_.shard(unit, shards_.rank());
  return all_of(unit).subspan(shard.begin, shard.count);
}

std::span<const float> ShardedParameters::shard(std::size_t unit) const {
  if (has_master()) return units_[unit].master;
  const Range shard = layout_.shard(unit, shards_.rank());
  return all_of(unit).subspan(shard.begin, shard.count);
}

void ShardedParameters::begin_gather(std::size_t unit) {
  if (down_.is_f32()) return begin_exact(unit);
  Unit& one = units_[unit];
  const std::uint64_t elements = layout_.units()[unit].elements.count;
  costs_.gathers.bytes += down_.bytes(elements - one.master.size());
  one.coded = buffers_.take(Reducing::room(down_, layout_, unit, 1));
  one.gathering =
      gathered_.gather(one.master, elements, one.coded, options_of_gather(unit, timeout_));
}

/// In float32, into the memory of the unit.
void ShardedParameters::begin_exact(std::size_t unit) {
  Unit& one = units_[unit];
  if (!one.full) one.full = buffers_.take(room_of(layout_, unit));
  const Range shard = layout_.shard(unit, shards_.rank());
  const std::span<float> full = all_of(unit), own = full.subspan(shard.begin, shard.count);
  if (has_master()) std::ranges::copy(one.master, own.begin());
  costs_.gathers.bytes += (full.size() - own.size()) * sizeof(float);
  one.gathering = collective::all_gather_async(shards_, std::span<const float>(own), full,
                                               options_of_gather(unit, timeout_),
                                               shard_counts(full.size(), shards_.world()));
}

Status ShardedParameters::end_gather(std::size_t unit) {
  Unit& one = units_[unit];
  Status gathered = timed(costs_.gathers.seconds, [&] { return one.gathering->wait(); });
  one.gathering.reset();
  if (gathered.ok() && one.coded) {
    if (!one.full) one.full = buffers_.take(room_of(layout_, unit));
    gathered = gathered_.take_parts(one.coded, all_of(unit));
  }
  buffers_.give_back(std::move(one.coded));
  return gathered;
}

Status ShardedParameters::prefetch(std::size_t unit) {
  CENTROID_TRY(check_unit(unit));
  if (keeps_full_) return {};
  Unit& one = units_[unit];
  if (one.gathering) return wrong_use("prefetch of " + name_of_unit(unit) + " was called twice");
  if (one.full) return wrong_use(name_of_unit(unit) + " is gathered already");
  begin_gather(unit);
  return {};
}

bool ShardedParameters::is_prefetched(std::size_t unit) const {
  return unit < units_.size() && units_[unit].gathering.has_value();
}

Status ShardedParameters::gather(std::size_t unit) {
  CENTROID_TRY(check_unit(unit));
  Unit& one = units_[unit];
  if (!one.full && !one.gathering) CENTROID_TRY(prefetch(unit));
  if (!one.gathering) return {};
  Status gathered = end_gather(unit);
  if (gathered.ok()) return {};
  buffers_.give_back(std::move(one.full));
  return fail(std::move(gathered).error().with_context("gather " + name_of_unit(unit)));
}

Status ShardedParameters::gather_exact(std::size_t unit) {
  if (down_.is_f32()) return gather(unit);
  CENTROID_TRY(check_unit(unit));
  Unit& one = units_[unit];
  if (one.gathering || (one.full && !keeps_full_))
    return wrong_use(name_of_unit(unit) + " is gathered already");
  one.is_exact = true;
  begin_exact(unit);
  Status gathered = end_gather(unit);
  if (gathered.ok()) return {};
  return fail(std::move(gathered).error().with_context("gather " + name_of_unit(unit)));
}

bool ShardedParameters::is_gathered(std::size_t unit) const {
  return unit < units_.size() && units_[unit].full && !units_[unit].gathering;
}

Status ShardedParameters::release(std::size_t unit) {
  CENTROID_TRY(check_unit(unit));
  const bool was_exact = std::exchange(units_[unit].is_exact, false);
  if (keeps_full_) return was_exact ? gathered_.round(all_of(unit)) : Status();
  if (units_[unit].gathering) CENTROID_TRY(gather(unit));  // the operation uses the memory
  buffers_.give_back(std::move(units_[unit].full));
  return {};
}

Result<std::span<const float>> ShardedParameters::parameter(std::size_t index) const {
  if (failed_) return *failed_;
  if (index >= layout_.parameters().size())
    return Error(ErrorCode::kInvalidArgument, "sharded parameters: parameter " +
                                                  std::to_string(index) + " of " +
                                                  std::to_string(layout_.parameters().size()));
  const std::size_t unit = layout_.unit_of(index);
  if (!is_gathered(unit))
    return wrong_use(printable(layout_.parameters()[index].name) + " is in " + name_of_unit(unit) +
                     ", which is not gathered");
  const Range within = layout_.within_unit(index);
  return units_[unit].full.as<const float>().subspan(within.begin, within.count);
}

Result<std::span<float>> ShardedParameters::gradient(std::size_t index) {
  if (failed_) return *failed_;
  if (index >= layout_.parameters().size())
    return Error(ErrorCode::kInvalidArgument, "sharded parameters: gradient " +
                                                  std::to_string(index) + " of " +
                                                  std::to_string(layout_.parameters().size()));
  const std::size_t unit = layout_.unit_of(index);
  has_gradient_ = true;
  const Range within = layout_.within_unit(index);
  return gradient_of(unit).as<float>().subspan(within.begin, within.count);
}

/// 0 if it was not here.
Buffer& ShardedParameters::gradient_of(std::size_t unit) {
  Buffer& gradient = units_[unit].gradient;
  if (gradient) return gradient;
  gradient = buffers_.take(room_of(layout_, unit));
  std::ranges::fill(gradient.as<float>(), 0.0F);
  return gradient;
}

Status ShardedParameters::take_gradient(std::size_t unit) {
  CENTROID_TRY(check_unit(unit));
  has_gradient_ = true;
  Buffer& gradient = units_[unit].gradient;
  if (!gradient) gradient = buffers_.take(room_of(layout_, unit));
  return {};
}

Status ShardedParameters::reduce(std::size_t unit) {
  CENTROID_TRY(check_unit(unit));
  has_gradient_ = true;
  if (!is_syncing_) return {};
  Buffer gradient = std::move(gradient_of(unit));  // 0 without samples
  count_reduction(unit);
  Status begun =
      timed(costs_.reductions.seconds, [&] { return reducing_.begin(unit, std::move(gradient)); });
  if (begun.ok()) return {};
  return fail(std::move(begun).error().with_context("reduce gradients"));
}

/// All but the own part of the whole gradient, and twice most of that part if others have it, too.
void ShardedParameters::count_reduction(std::size_t unit) {
  const std::uint64_t whole = layout_.units()[unit].elements.count;
  const std::uint64_t part = layout_.shard(unit, shards_.rank()).count;
  const std::uint64_t others = replicas_.world() - 1;
  const std::uint64_t received = whole - part + 2 * part * others / replicas_.world();
  costs_.reductions.bytes += reducing_.codec().bytes(received);
}

Status ShardedParameters::check_step() const {
  if (failed_) return *failed_;
  if (!has_gradient_)
    return wrong_use("step without a gradient since the last one; was backward called before it?");
  for (std::size_t unit = 0; unit < units_.size() && !keeps_full_; ++unit)
    if (units_[unit].full || units_[unit].gathering)
      return wrong_use("step while " + name_of_unit(unit) +
                       (units_[unit].gathering ? " is prefetched" : " is gathered") +
                       "; release it before");
  return {};
}

Status ShardedParameters::reduce_rest() {
  const bool was_syncing = std::exchange(is_syncing_, true);
  Status reduced;
  for (std::size_t unit = 0; unit < units_.size() && reduced.ok(); ++unit)
    if (units_[unit].gradient || !reducing_.has(unit)) reduced = reduce(unit);
  is_syncing_ = was_syncing;
  CENTROID_TRY(reduced);
  Status ended = timed(costs_.reductions.seconds, [&] { return reducing_.finish(); });
  if (!ended.ok()) return fail(std::move(ended).error().with_context("reduce gradients"));
  return {};
}

/// Send the mean gradient of the own shard to the next rank, and receive that of the copy.
std::vector<collective::Handle> ShardedParameters::begin_copies() {
  std::vector<collective::Handle> copying;
  for (std::size_t unit = 0; unit < copies_.size(); ++unit) {
    collective::CallOptions options;
    options.tag = kCopyTag + unit;
    options.timeout = timeout_;
    const std::size_t count = copies_[unit].values.size();
    std::span<float>& mean = copies_[unit].mean;
    mean = copied_.find(count);
    if (mean.empty() && count > 0) mean = copied_.add(buffers_.take(room_of(layout_, unit)), count);
    costs_.copies.bytes += mean.size_bytes();
    if (!mean.empty())
      copying.push_back(collective::receive_async(shards_, mean, copied_rank(), options));
    const std::span<const float> own = reducing_.mean(unit);
    if (!own.empty())
      copying.push_back(
          collective::send_async(shards_, own, (shards_.rank() + 1) % shards_.world(), options));
  }
  return copying;
}

Status ShardedParameters::end_copies(std::vector<collective::Handle> copying) {
  for (collective::Handle& handle : copying)
    if (Status copied = timed(costs_.copies.seconds, [&] { return handle.wait(); }); !copied.ok())
      return fail(std::move(copied).error().with_context("copy gradients"));
  return {};
}

/// Sum of the squares of this rank's mean gradient of a unit, of the parameters that count.
double ShardedParameters::squares(std::size_t unit) {
  const Range shard = layout_.shard(unit, shards_.rank());
  const Range parameters = layout_.units()[unit].parameters;
  const std::span<const float> mean = reducing_.mean(unit);
  double sum = 0;
  std::uint64_t begin = shard.begin;
  const auto add_up_to = [&](std::uint64_t end) {
    end = std::min(end, shard.end());
    if (begin < end) sum += sum_of_squares(mean.subspan(begin - shard.begin, end - begin));
  };
  for (std::size_t i = parameters.begin; i < parameters.end(); ++i) {
    if (layout_.parameters()[i].is_counted) continue;
    add_up_to(layout_.within_unit(i).begin);
    begin = std::max(begin, layout_.within_unit(i).end());
  }
  add_up_to(shard.end());
  return sum;
}

Result<StepReport> ShardedParameters::measure() {
  StepReport report;
  report.step = steps_ + 1;
  const double bound = optimizer_->config().clip_norm;
  if (bound <= 0) return report;
  double sum = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) sum += squares(unit);
  collective::CallOptions options;
  options.tag = kNormTag;
  options.timeout = timeout_;
  for (const collective::Group* group : {&shards_, parts_ ? &*parts_ : nullptr}) {
    if (group == nullptr || group->world() == 1) continue;
    Status summed = timed(costs_.agreements.seconds, [&] {
      return collective::all_reduce(*group, std::span(&sum, 1), options);
    });
    if (!summed.ok()) return fail(std::move(summed).error().with_context("sum gradient norms"));
  }
  report.gradient_norm = std::sqrt(sum);
  return report;
}

void ShardedParameters::clip(const StepReport& report) {
  if (!report.gradient_norm) return;
  const float factor = clip_factor(*report.gradient_norm, optimizer_->config().clip_norm);
  for (std::size_t unit = 0; unit < units_.size() && factor != 1; ++unit) {
    for (float& value : reducing_.mean(unit)) value *= factor;
    if (!has_copy()) continue;
    for (float& value : copies_[unit].mean) value *= factor;
  }
}

/// Nobody makes the step before all can: the survivors of a loss then agree on it.
Status ShardedParameters::prepare() {
  if (!is_safe_) return {};
  is_prepared_ = true;
  collective::CallOptions options;
  options.tag = kNormTag;
  options.timeout = timeout_;
  for (const collective::Group* group : {&shards_, &replicas_, parts_ ? &*parts_ : nullptr}) {
    if (group == nullptr) continue;
    Status all =
        timed(costs_.agreements.seconds, [&] { return collective::barrier(*group, options); });
    if (!all.ok()) return fail(std::move(all).error().with_context("commit the step"));
  }
  return {};
}

void ShardedParameters::apply() {
  ++steps_;
  std::vector<std::span<float>> slots;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    slots.assign(units_[unit].state.begin(), units_[unit].state.end());
    optimizer_->step(steps_, own(unit), reducing_.mean(unit), slots, own(unit));
    if (!has_copy()) continue;
    Copy& copy = copies_[unit];
    slots.assign(copy.state.begin(), copy.state.end());
    optimizer_->step(steps_, copy.values, copy.mean, slots, copy.values);
    copy.mean = {};
  }
  reducing_.clear();
  copied_.clear();
  has_gradient_ = is_prepared_ = false;
}

Status ShardedParameters::share_updates() {
  if (!keeps_full_ || shards_.world() == 1) return {};
  Status shared;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    begin_gather(unit);
    // Encoded units need memory: of two at most.
    if (unit > 0 && units_[unit].coded && shared.ok()) shared = end_gather(unit - 1);
  }
  for (std::size_t unit = 0; unit < units_.size() && shared.ok(); ++unit)
    if (units_[unit].gathering) shared = end_gather(unit);
  if (shared.ok()) return {};
  return fail(std::move(shared).error().with_context("gather updated parameters"));
}

Result<StepReport> ShardedParameters::step() {
  CENTROID_TRY(check_step());
  CENTROID_TRY(reduce_rest());
  std::vector<collective::Handle> copying = begin_copies();
  CENTROID_ASSIGN(const StepReport report, measure());
  CENTROID_TRY(end_copies(std::move(copying)));
  clip(report);
  CENTROID_TRY(prepare());
  apply();
  CENTROID_TRY(share_updates());
  return report;
}

ShardedMemory ShardedParameters::memory() const {
  ShardedMemory out;
  out.gradients = buffers_.used() * sizeof(float);
  out.spare = buffers_.spare() * sizeof(float);
  for (const Unit& unit : units_) {
    const std::uint64_t gathered = unit.full.size() + unit.coded.size();
    out.parameters += unit.master.size() * sizeof(float) + gathered;
    out.gradients -= gathered;
    for (const std::vector<float>& slot : unit.state) out.state += slot.size() * sizeof(float);
  }
  for (const Copy& copy : copies_) {
    out.parameters += copy.values.size() * sizeof(float);
    for (const std::vector<float>& slot : copy.state) out.state += slot.size() * sizeof(float);
  }
  return out;
}

}  // namespace centroid::parallel
