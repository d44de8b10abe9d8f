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
#include "common/base/prometheus_registry.h"
#include "server/shard/shard.h"
#include "transport/transport.h"

namespace centroid::test {

inline std::unique_ptr<transport::Transport> tcp(Executor executor) {
  return transport::make_tcp(executor);
}

/// A shard server on its own thread.
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
    // A stop means to lose the server, unless `drains`.
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
  /// Block the server until the result is dropped.
  std::shared_ptr<void> hold() {
    const auto released = std::make_shared<std::promise<void>>();
    boost::asio::post(io_.executor(), [released] { released->get_future().wait(); });
    return {nullptr, [released](void*) { released->set_value(); }};
  }
  Status stop() {
    // Wait, because the shard may have ended by itself and is deleted as soon as this returns.
    const auto ask = [this] { shard_->request_stop("the test stops it"); };
    boost::asio::post(io_.executor(), boost::asio::use_future(ask)).get();
    return join();
  }

 private:
  static Task<std::optional<Status>> run(server::Shard* shard, transport::Listener* listener) {
    co_return co_await shard->run(*listener);
  }
  SystemClock clock_;
  metrics::PrometheusRegistry registry_;
  IoThread io_{"test-shard"}, files_{"test-files"};
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<server::Shard> shard_;
  std::future<std::optional<Status>> running_;
};

}  // namespace centroid::test
