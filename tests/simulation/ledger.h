#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/exchange/exchange.h"

namespace centroid::simulation {

/// What a job's numbers must be, kept apart from the product: each version must follow from the one
/// before by the contributions of its round, each wholly or not at all, and once.
///
/// source  the update is SGD without momentum: new = old - rate * sum(w g) / sum(w)
class Ledger {
 public:
  enum class Fate : std::uint8_t {
    kOpen,     ///< its worker has heard nothing yet, or was lost: it may count
    kCounted,  ///< its worker was told that it counts
    kIgnored,  ///< its worker was told that it does not
  };
  struct Contribution {
    std::string worker;
    std::uint64_t version = 0;  ///< of the parameters that it was made from
    std::uint64_t epoch = 0, begin = 0, end = 0;
    std::vector<float> gradient;
    Fate fate = Fate::kOpen;
    std::uint64_t counted_in = 0;  ///< version
  };

  /// `may_go_back`: a job without a journal may lose its newest versions, and makes them again.
  Ledger(std::size_t parameters, double rate, bool may_go_back)
      : parameters_(parameters), rate_(rate), may_go_back_(may_go_back) {}

  static std::vector<float> initial(std::size_t parameters);
  static void gradient(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end,
                       std::span<float> out);

  std::size_t add(const std::string& worker, const worker::Share& share,
                  std::vector<float> gradient);
  void decide(std::size_t contribution, Fate fate, std::uint64_t counted_in = 0);
  /// The job lost a version with the workers that held it, and makes it again from `to` on.
  void go_back(std::uint64_t version, std::uint64_t to);
  /// A worker has these parameters of a committed version.
  void see(const std::string& worker, std::uint64_t version, std::span<const float> parameters);
  /// What is known of a job's policy and numbers.
  enum class Rule : std::uint8_t {
    kReplicas,  ///< only that replicas are equal
    kWhole,     ///< each version follows from the one before by whole contributions
    kEachOnce,  ///< and each sample of an epoch that is over counted once
  };
  /// All faults found so far, and those of every version whose predecessor is known.
  std::vector<std::string> check(Rule rule, std::uint64_t samples);
  std::uint64_t checked() const { return checked_; }

 private:
  struct State {
    std::string first;  ///< worker
    std::vector<float> parameters;
  };
  struct Seen {
    std::vector<State> states;  ///< one more each time that the version was made again
    std::size_t most = 1;       ///< of them
  };
  void compare(std::uint64_t version, const Seen& seen);
  using Choice = std::vector<const Contribution*>;
  std::optional<Choice> choose(std::uint64_t version, const std::vector<float>& before,
                               const std::vector<float>& after) const;
  std::optional<Choice> follows(std::uint64_t version, const State& state) const;
  void note_share(std::uint64_t version);
  void check_samples(const std::vector<Choice>& counted, std::uint64_t samples);
  bool fits(const Choice& chosen, const std::vector<float>& before,
            const std::vector<float>& after) const;

  const std::size_t parameters_;
  const double rate_;
  const bool may_go_back_;
  bool went_back_ = false;
  std::uint64_t at_ = 0;          ///< version of the newest share
  std::uint64_t made_again_ = 0;  ///< up to this version, since the job has said that it is lost
  std::vector<Contribution> contributions_;
  std::map<std::uint64_t, Seen> versions_;
  std::vector<std::string> faults_;
  std::uint64_t checked_ = 0;
};

}  // namespace centroid::simulation
