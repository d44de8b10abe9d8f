#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>

#include "common/async/io_thread.h"
#include "server/shard/shard.h"
#include "transport/transport.h"

namespace centroid::test {

inline std::unique_ptr<transport::Transport> tcp(Executor executor) {
  return transport::make_tcp(executor);
}

/// A shard server on a thread of its own.
class TestShard {
 public:
  TestShard(std::string name, transport::Endpoint leader, const std::string& journal_dir = "",
            std::uint64_t memory_limit = 0, bool drains = false,
            const std::function<void(server::ShardOptions&)>& set = {}) {
    transport_ = tcp(io_.executor());
    listener_ = transport_->listen(transport::Endpoint{}).value();
    server::ShardOptions options;
    options.name = std::move(name);
    options.leaders = {std::move(leader)};
    options.advertise = listener_->endpoint().to_string();
    options.join_timeout = std::chrono::seconds(20);
    options.journal_dir = journal_dir;
    options.memory_limit = memory_limit;
    // Who stops it means to lose it, unless it is said to drain.
    if (!journal_dir.empty() && !drains) options.drain_timeout = {};
    if (set) set(options);
    shard_ = std::make_unique<server::Shard>(io_.executor(), files_.executor(), *transport_,
                                             options, clock_, registry_);
    running_ = boost::asio::co_spawn(io_.context(), run(shard_.get(), listener_.get()),
                                     boost::asio::use_future);
  }
  ~TestShard() {
    if (running_.valid()) (void)stop();
  }
  Status join() { return *running_.get(); }
  /// It neither answers nor says anything until the result is dropped.
  std::shared_ptr<void> hold() {
    const auto released = std::make_shared<std::promise<void>>();
    boost::asio::post(io_.executor(), [released] { released->get_future().wait(); });
    return {nullptr, [released](void*) { released->set_value(); }};
  }
  Status stop() {
    // Waited for: the shard may have ended by itself, and is then deleted as soon as this returns.
    const auto ask = [this] { shard_->request_stop("the test stops it"); };
    boost::asio::post(io_.executor(), boost::asio::use_future(ask)).get();
    return join();
  }

 private:
  static Task<std::optional<Status>> run(server::Shard* shard, transport::Listener* listener) {
    co_return co_await shard->run(*listener);
  }
  SystemClock clock_;
  metrics::Registry registry_;
  IoThread io_{"test-shard"}, files_{"test-files"};
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<server::Shard> shard_;
  std::future<std::optional<Status>> running_;
};

}  // namespace centroid::test
