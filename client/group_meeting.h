#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/group_rendezvous.h"
#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/result.h"
#include "transport/strangers.h"
#include "transport/transport.h"

namespace centroid::client {

/// A process of a job.
struct Member {
  std::uint32_t number = 0;   ///< in the order of entry; of the first ones their rank
  transport::Endpoint place;  ///< of its Meeting
  std::string address;        ///< of its PeerGroup
};

/// The processes of a job at some time.
struct Membership {
  std::string job;               ///< the same on all, and not on those of another job
  std::uint64_t generation = 0;  ///< of their group
  std::uint32_t next = 0;        ///< number of the next newcomer
  std::vector<Member> members;   ///< by number
  bool has(std::uint32_t number) const;
};

/// The first of these settings, as in MeetingOptions, in which another process differs from the
/// job; empty: none.
std::string difference(const std::string& of_job, const std::string& of_other);

struct MeetingOptions {
  std::string token;
  std::shared_ptr<transport::StreamLayer> layer;  ///< TLS among the members; nullptr: none
  std::chrono::milliseconds patience{60'000};     ///< for a member that does not come
  /// "name=value" of what all members need to have in common, separated by tabs.
  std::string settings;
  /// Where newcomers come first; none: nobody does.
  std::optional<transport::Endpoint> rendezvous;
  bool is_host = false;                                     ///< as Redirector
  transport::Factory make_transport = transport::make_tcp;  ///< how it reaches the others
};

/// Where the processes of a job find each other after a loss, and take in others, without a server.
/// Each one listens at a place that all know.
///
/// leader     the member with the lowest number that is left: the others call the lower ones in
///            order, until one answers. It waits for all whose process lives
/// lost       members whose system refuses or ends the connection: the process is gone
/// missing    members that are silent, or whose machine is: left out when the patience is over
/// majority   the survivors must be more than the missing ones, which may have met elsewhere: of
///            the members, and of those of the last group that was complete here. So a divided
///            network never makes two jobs of one
/// newcomers  wait at the leader, who refuses other settings than its own. A meeting that takes
///            newcomers makes them members; they lead none before their first group is complete
/// thread     one at a time, but `newcomers`: any
class Meeting {
 public:
  /// `host`: of this machine, where the others reach it.
  ///
  /// fails  as Transport::listen
  static Result<std::unique_ptr<Meeting>> open(const std::string& host, MeetingOptions options);
  /// Newcomers that wait ask again elsewhere.
  ~Meeting();

  const transport::Endpoint& place() const { return place_; }

  /// The members of a job that begins, this process among them.
  void begin(Membership members);
  /// Become a member of the job whose leader is there, with this address of a PeerGroup. Blocks
  /// until the job has its next meeting.
  ///
  /// fails  unavailable: nobody leads a job there, it may be elsewhere; failed_precondition: other
  ///        settings, another token; cancelled: the job has ended well; deadline_exceeded
  Result<Membership> join(const transport::Endpoint& leader, const std::string& address,
                          Deadline deadline);
  /// What a meeting does with newcomers; what the leader says counts.
  enum class Newcomers {
    kTake,   ///< those that wait become members
    kKeep,   ///< those that are members since the last complete group stay so
    kRefuse  ///< these leave, too
  };
  /// Block until the members are known; the same on all of them. Each one calls it.
  ///
  /// fails  unavailable: as many members are missing as are here; aborted: the others went on
  ///        without this one
  Result<Membership> meet(Newcomers newcomers = Newcomers::kTake);
  /// The group of the last meeting is complete: each of its members has its part.
  void complete();
  /// The job has ended well: members and newcomers that come learn that, from any member that is
  /// still there.
  void end();

  /// How many wait here to become members.
  std::uint32_t newcomers() const { return waiting_; }
  /// Send those away that wait now.
  void refuse_newcomers(const std::string& why);

 private:
  class Leader;
  class Caller;
  struct Newcomer {
    Member member;
    std::shared_ptr<transport::Connection> connection;
  };
  struct Arrival {
    std::uint64_t generation = 0;
    std::shared_ptr<transport::Connection> connection;
  };
  struct Hello;
  explicit Meeting(MeetingOptions options);

  bool leads() const;
  void adopt(Membership members);
  void send_newcomers_to(const transport::Endpoint& place);
  static Task<void> answer(Meeting* self, std::shared_ptr<transport::Connection> connection,
                           transport::Strangers::Place& place, const transport::InFrame& frame);
  static Task<void> wait_member(Meeting* self, const Hello* hello,
                                std::shared_ptr<transport::Connection> connection);
  static Task<void> wait_newcomer(Meeting* self, const Hello* hello,
                                  std::shared_ptr<transport::Connection> connection);
  static Task<void> refuse_all(Meeting* self, std::string why);
  static Task<void> stop(Meeting* self);
  static Task<Result<Membership>> ask(Meeting* self, transport::Endpoint leader,
                                      std::string address, Deadline deadline);

  const MeetingOptions options_;
  transport::Endpoint place_;
  std::atomic<std::uint32_t> waiting_ = 0;  ///< of newcomers_
  IoThread io_{"meeting"};
  // On its thread:
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
  std::optional<Redirector> redirector_;
  Membership now_;                    ///< no members: not yet known
  std::set<std::uint32_t> complete_;  ///< members of the last complete group
  bool has_ended_ = false;
  std::uint32_t number_ = 0;                   ///< of this process
  std::map<std::uint32_t, Arrival> arrivals_;  ///< members that wait for this one to lead
  std::list<Newcomer> newcomers_;
  transport::Strangers strangers_;
  Event changed_;
  TaskGroup tasks_;
};

}  // namespace centroid::client
