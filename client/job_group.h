#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/group.h"
#include "client/group_meeting.h"

namespace centroid::client {

/// Whether an operation of a group ended because of another rank.
bool is_loss(const Error& error);

struct JobGroupOptions {
  PeerOptions peers;
  std::string rendezvous;  ///< HOST:PORT, where rank 0 of the first ones listens
  /// As MeetingOptions; decides what is trained.
  std::string settings;
};

/// The group of the processes of a job. When some are lost, those that are left meet and make a
/// group of their own; others that come join them between two steps.
///
/// order   every rank makes the same calls
/// thread  one at a time
class JobGroup {
 public:
  /// Meet the other first ranks, or become a member of the job that they have begun.
  ///
  /// fails  invalid_argument: a rank with other settings; as PeerGroup::join, Meeting::open and
  ///        Meeting::join
  static Result<std::unique_ptr<JobGroup>> join(JobGroupOptions options);

  /// The job had ended well: there is no group. Others that come learn that from this process, too,
  /// as long as this lives.
  bool is_over() const { return is_over_; }
  /// It joined a job that had begun, and has no group before its first `regroup`.
  bool is_newcomer() const { return is_newcomer_; }
  /// Make this rank's part in the new group.
  using TakeOver = std::function<Status()>;
  /// Be in a group of those that are left, and of newcomers, in which every rank has its part; also
  /// if more are lost meanwhile. When two tries fail, newcomers leave and the others go on without
  /// them. A newcomer's first call waits for nobody.
  ///
  /// fails  as Meeting::meet, PeerGroup::regroup, and `take_over` if no rank was lost in it
  Status regroup(Meeting::Newcomers newcomers, const TakeOver& take_over);

  const collective::Group& group() const { return peers_->group(); }
  const Membership& members() const { return members_; }  ///< of the group
  Meeting& meeting() { return *meeting_; }

 private:
  explicit JobGroup(JobGroupOptions options) : options_(std::move(options)) {}
  Status open_meeting();
  Status meet_first_ranks(const Status& opened);
  Status join_members();
  Status complete(const TakeOver& take_over);

  const JobGroupOptions options_;
  std::unique_ptr<PeerGroup> peers_;
  std::unique_ptr<Meeting> meeting_;
  Membership members_;
  bool is_newcomer_ = false, is_over_ = false;
};

}  // namespace centroid::client
