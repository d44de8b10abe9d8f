#pragma once

#include <deque>
#include <optional>
#include <string>
#include <variant>

#include "common/base/thread.h"
#include "common/proto/messages.h"

namespace centroid::worker {

/// What the I/O side tells the training loop, in order.
struct LinkEvent {
  struct Lost {
    Error cause;
  };
  std::variant<proto::RoundOpen, proto::RoundClosed, proto::Keep, proto::Finish, Lost, Error>
      what;                  ///< Error: final
  bool among_peers = false;  ///< RoundClosed: the workers have added the gradients
};

/// What the loop's thread did beside computing, in the round before.
struct LoopSeconds {
  double wait = 0;                ///< from the end of backward to the round's end
  double apply = 0;               ///< results becoming the parameters
  std::uint64_t fingerprint = 0;  ///< of what they became, and the slots; 0: not looked at
};

/// Events from the I/O thread to the loop's thread.
class Mailbox {
 public:
  void push(LinkEvent event);
  void put_back(LinkEvent event);  ///< what was popped last
  /// The next event; nothing when a stop was requested.
  std::optional<LinkEvent> pop(bool honour_stop);
  /// The first reason stays. `at_once`: also those who do not heed a stop get nothing any more.
  void request_stop(const std::string& why, bool at_once = false);
  std::string stop_reason() const;

 private:
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<LinkEvent> events_;
  bool stop_ = false, at_once_ = false;
  std::string why_;
};

}  // namespace centroid::worker
