#include "tests/simulation/ledger.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "common/base/random.h"

namespace centroid::simulation {

std::vector<float> Ledger::initial(std::size_t parameters) {
  std::vector<float> values(parameters);
  for (std::size_t i = 0; i < parameters; ++i) values[i] = static_cast<float>(i % 17) / 8;
  return values;
}

void Ledger::gradient(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end,
                      std::span<float> out) {
  CounterRng random(mix64(epoch, begin), end);
  for (float& x : out) x = static_cast<float>(random.below(17)) / 8 - 1;
}

std::size_t Ledger::add(const std::string& worker, const worker::Share& share,
                        std::vector<float> gradient) {
  if (may_go_back_) note_share(share.version.value);
  contributions_.push_back({.worker = worker,
                            .version = share.version.value,
                            .epoch = share.epoch,
                            .begin = share.begin,
                            .end = share.end,
                            .gradient = std::move(gradient)});
  return contributions_.size() - 1;
}

void Ledger::decide(std::size_t contribution, Fate fate, std::uint64_t counted_in) {
  contributions_[contribution].fate = fate;
  contributions_[contribution].counted_in = counted_in;
}

/// A share that repeats a version although a later one was seen: those behind it may be made once
/// more. (Each worker's share counts, and so does that of one that stood still and comes late; then
/// less is checked.)
void Ledger::note_share(std::uint64_t version) {
  const std::uint64_t before = std::exchange(at_, version);
  const std::uint64_t newest = versions_.empty() ? 0 : versions_.rbegin()->first;
  const bool is_made_again = version == before && version < made_again_;
  if (version > before || version >= newest || is_made_again) return;
  went_back_ = true;
  for (std::uint64_t again = version + 1; again <= newest; ++again) ++versions_[again].most;
}

void Ledger::see(const std::string& worker, std::uint64_t version,
                 std::span<const float> parameters) {
  Seen& seen = versions_[version];
  const auto is_same = [&](const State& state) {
    return std::memcmp(state.parameters.data(), parameters.data(), parameters.size_bytes()) == 0;
  };
  if (!std::ranges::any_of(seen.states, is_same))
    seen.states.push_back({worker, {parameters.begin(), parameters.end()}});
}

void Ledger::go_back(std::uint64_t version, std::uint64_t to) {
  went_back_ = true;
  at_ = to;  // the shares that follow are no sign of another loss
  made_again_ = version;
  for (std::uint64_t again = to + 1; again <= version; ++again) ++versions_[again].most;
}

/// Are there more states of a version than it was made?
void Ledger::compare(std::uint64_t version, const Seen& seen) {
  if (seen.states.size() <= seen.most) return;
  const State &known = seen.states.front(), &other = seen.states.back();
  const auto differs = std::ranges::mismatch(known.parameters, other.parameters).in1;
  std::size_t different = 0;
  for (std::size_t i = 0; i < parameters_; ++i)
    different += known.parameters[i] != other.parameters[i] ? 1 : 0;
  faults_.push_back("version " + std::to_string(version) + " of " + other.first +
                    " has other bits than that of " + known.first + " in " +
                    std::to_string(different) + " numbers, from number " +
                    std::to_string(differs - known.parameters.begin()) + " on");
}

bool Ledger::fits(const Choice& chosen, const std::vector<float>& before,
                  const std::vector<float>& after) const {
  std::vector<double> sum(parameters_);
  double weight = 0;
  for (const Contribution* one : chosen) {
    const auto samples = static_cast<double>(one->end - one->begin);
    if (samples == 0) continue;
    for (std::size_t i = 0; i < parameters_; ++i) sum[i] += samples * one->gradient[i];
    weight += samples;
  }
  for (std::size_t i = 0; i < parameters_; ++i) {
    const double expected = before[i] - (weight > 0 ? rate_ * sum[i] / weight : 0);
    if (std::abs(expected - after[i]) > 1e-5 * std::max(1.0, std::abs(expected))) return false;
  }
  return true;
}

/// A choice among the contributions that may have counted that gives the version: of each worker at
/// most one, and that which it was told counts.
std::optional<Ledger::Choice> Ledger::choose(std::uint64_t version,
                                             const std::vector<float>& before,
                                             const std::vector<float>& after) const {
  std::map<std::string, Choice> of;  // by worker; nullptr: none
  for (const Contribution& one : contributions_) {
    if (one.version != version - 1 || one.fate == Fate::kIgnored) continue;
    if (one.fate == Fate::kCounted && one.counted_in != version) continue;
    Choice& choices = of.try_emplace(one.worker, 1, nullptr).first->second;
    if (one.fate == Fate::kOpen)
      choices.push_back(&one);
    else if (one.fate == Fate::kCounted)
      choices.insert(choices.begin(), &one);
  }
  for (auto& [worker, choices] : of)
    if (choices.front() != nullptr && !went_back_) choices.resize(1);
  Choice chosen;
  std::function<bool(decltype(of)::const_iterator)> next_of = [&](auto next) {
    if (next == of.end()) return fits(chosen, before, after);
    for (const Contribution* one : next->second) {
      if (one != nullptr) chosen.push_back(one);
      if (next_of(std::next(next))) return true;
      if (one != nullptr) chosen.pop_back();
    }
    return false;
  };
  if (!next_of(of.begin())) return std::nullopt;
  return chosen;
}

/// By which contributions a state follows from one of the version before.
std::optional<Ledger::Choice> Ledger::follows(std::uint64_t version, const State& state) const {
  for (const State& before : versions_.at(version - 1).states)
    if (auto choice = choose(version, before.parameters, state.parameters)) return choice;
  return std::nullopt;
}

std::vector<std::string> Ledger::check(Rule rule, std::uint64_t samples) {
  checked_ = 0;
  for (const auto& [version, seen] : versions_) compare(version, seen);
  if (rule == Rule::kReplicas) return faults_;
  std::vector<Choice> counted;
  bool is_complete = true;
  for (const auto& [version, seen] : versions_) {
    if (version <= 1) continue;
    const auto before = versions_.find(version - 1);
    if (before == versions_.end() || before->second.states.empty()) {  // no worker has seen it
      is_complete = false;
      continue;
    }
    for (const State& state : seen.states) {
      ++checked_;
      if (auto choice = follows(version, state))
        counted.push_back(std::move(*choice));
      else
        faults_.push_back("version " + std::to_string(version) + " of " + state.first +
                          " does not follow from the one before by any choice of whole "
                          "contributions");
    }
  }
  const bool is_whole = is_complete && !went_back_ && faults_.empty();
  if (rule == Rule::kEachOnce && is_whole) check_samples(counted, samples);
  return faults_;
}

/// Of every epoch but the last, which may not be over. Positions behind the end of an epoch are the
/// next one's.
void Ledger::check_samples(const std::vector<Choice>& counted, std::uint64_t samples) {
  std::map<std::uint64_t, std::vector<unsigned>> times;  // by epoch
  for (const Choice& choice : counted)
    for (const Contribution* one : choice)
      for (std::uint64_t position = one->begin; position < one->end; ++position) {
        const std::uint64_t epoch = one->epoch + position / samples;
        ++times.try_emplace(epoch, samples).first->second[position % samples];
      }
  for (const auto& [epoch, each] : times) {
    const bool is_last = std::next(times.find(epoch)) == times.end();
    for (std::uint64_t position = 0; position < samples; ++position) {
      if (each[position] == 1 || (is_last && each[position] == 0)) continue;
      faults_.push_back("sample " + std::to_string(position) + " of epoch " +
                        std::to_string(epoch) + " counted " + std::to_string(each[position]) +
                        " times");
      return;
    }
  }
}

}  // namespace centroid::simulation
