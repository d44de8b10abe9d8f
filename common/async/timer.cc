#include "common/async/timer.h"

#include <algorithm>

#include <boost/asio/error.hpp>

namespace centroid {

namespace asio = boost::asio;

Timer::Timer(Executor executor, TimePoint when) : host_(Host::current()), when_(when) {
  if (host_ == nullptr) {
    real_.emplace(std::move(executor), when);
    return;
  }
  executor_ = std::move(executor);
  waits_ = std::make_shared<Waits>();
}

Timer::~Timer() {
  if (!real_) cancel();
}

void Timer::expires_at(TimePoint when) {
  if (real_) {
    real_->expires_at(when);
    return;
  }
  cancel();
  when_ = when;
}

void Timer::cancel() {
  if (real_) {
    real_->cancel();
    return;
  }
  if (scheduled_ != 0) host_->unschedule(std::exchange(scheduled_, 0));
  end_all(*waits_, asio::error::operation_aborted);
}

void Timer::add(std::shared_ptr<Wait> wait) {
  waits_->push_back(std::move(wait));
  if (scheduled_ != 0 || when_ == TimePoint::max()) return;
  scheduled_ = host_->schedule(when_, [this, waits = waits_] {
    scheduled_ = 0;
    end_all(*waits, {});
  });
}

void Timer::end_one(Waits& waits, const std::weak_ptr<Wait>& one) {
  const auto wait = one.lock();
  if (wait && std::erase(waits, wait) != 0) wait->end(asio::error::operation_aborted);
}

void Timer::end_all(Waits& waits, ErrorCode error) {
  for (const auto& wait : std::exchange(waits, {})) wait->end(error);
}

}  // namespace centroid
