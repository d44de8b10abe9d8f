#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/service/elastic_round.h"
#include "server/service/job_part.h"
#include "server/service/model_servers.h"
#include "server/service/round_journal.h"
#include "server/service/wait_report.h"

namespace centroid::server {

/// The attempts at a round: one is opened, what the round machine decides is kept for the round
/// loop, and it is closed; one that loses members is repeated with the rest. Of one thread.
class RoundAttempts : private JobPart {
 public:
  RoundAttempts(JobContext& context, DataShares& data, LocalShard& local,
                RoundServers& round_servers, ElasticRound& elastic, WaitReport& wait_report)
      : JobPart(context),
        data_(data),
        local_(local),
        round_servers_(round_servers),
        elastic_(elastic),
        wait_report_(wait_report) {}

  void open_attempt(std::vector<MemberId> members, std::vector<proto::RoundOpen> shares,
                    bool resend);
  void decide(RoundDecision decision);
  /// Open the next attempt for those of the members that are left. False: nobody is, or too few.
  bool retry(const RoundDecision& decision);
  void close_attempt(proto::Outcome outcome, double weight, std::uint32_t contributors,
                     std::string reason);
  /// When those that are missing have had their time.
  TimePoint round_limit() const;
  void exclude_silent();
  /// A member has its results, or is gone: contributions that waited for their memory go in now.
  void results_taken();
  /// A server is gone with its chunks.
  void lose_server();
  void give_up_merge(const Error& why);

 private:
  void tell_peers();
  void announce_generation();
  void begin_round();
  std::size_t missing_tolerated() const;
  proto::RoundRates round_rates() const;
  std::uint64_t contributors() const;
  MemberId first_elsewhere() const;
  void set_silent(WorkerSession& worker);

  DataShares& data_;
  LocalShard& local_;
  RoundServers& round_servers_;
  ElasticRound& elastic_;
  WaitReport& wait_report_;
  Generation generation_sent_;
  MemberId first_elsewhere_;  ///< at the last look for who is silent
};

}  // namespace centroid::server
