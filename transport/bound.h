#pragma once

#include <memory>

#include "common/async/timer.h"
#include "common/base/clock.h"
#include "transport/transport.h"

namespace centroid::transport {

/// Closes a connection at a deadline, unless it ends before. Also the handshake of TLS, which the
/// first frame begins, has ended then.
class Bound {
 public:
  Bound(Connection& connection, Deadline deadline) : timer_(connection.executor(), deadline) {
    timer_.async_wait([state = state_, &connection](const boost::system::error_code& error) {
      if (error || state->is_over) return;
      state->is_late = true;
      connection.close(Error(ErrorCode::kDeadlineExceeded, connection.peer() + " sent nothing"));
    });
  }
  ~Bound() { state_->is_over = true; }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  /// False: it was too late.
  bool stop() {
    state_->is_over = true;
    return !state_->is_late;
  }

 private:
  struct State {
    bool is_over = false, is_late = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  Timer timer_;
};

}  // namespace centroid::transport
