#include "common/async/work_threads.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

namespace centroid {

WorkThreads::WorkThreads(Executor home, std::string name, std::size_t count)
    : home_(std::move(home)),
      name_(std::move(name)),
      lanes_(std::make_shared<std::vector<Lane>>(std::max<std::size_t>(1, count))) {}

WorkThreads::~WorkThreads() {
  for (Lane& lane : *lanes_) lane.thread.reset();
}

void WorkThreads::run(std::function<void()> work, std::function<void()> then) {
  const auto lane = std::ranges::min_element(*lanes_, {}, &Lane::pending);
  if (!lane->thread)
    lane->thread = std::make_unique<IoThread>(name_ + "-" + std::to_string(lane - lanes_->begin()));
  ++lane->pending;
  auto ended = [lanes = std::weak_ptr(lanes_), lane, then = std::move(then)] {
    const auto alive = lanes.lock();
    if (!alive) return;
    --lane->pending;
    then();
  };
  auto act = [home = home_, work = std::move(work), ended = std::move(ended)]() mutable {
    work();
    work = nullptr;  // what it holds is gone before `then` runs
    boost::asio::post(home, std::move(ended));
  };
  boost::asio::post(lane->thread->executor(), std::move(act));
}

}  // namespace centroid
