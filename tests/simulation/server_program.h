#pragma once

#include <functional>
#include <optional>

#include "common/async/wait_on.h"
#include "server/config/server_config.h"
#include "server/service/control.h"
#include "tests/simulation/machine.h"

namespace centroid::simulation {

/// centroid-server without its REST: what REST asks is asked by `ask`.
class ServerProgram final : public Machine {
 public:
  using Machine::Machine;

  /// Ask the control plane; nothing where none runs.
  template <class T>
  std::optional<T> ask(const std::function<Task<T>(server::Control&)>& call) {
    const auto life = running_;
    if (!life || life->cluster == nullptr) return std::nullopt;
    ++life->calls;
    std::optional<T> answer = wait_on(life->executor, call(*life->control));
    --life->calls;
    return answer;
  }
  /// Where it can answer now.
  std::optional<server::ClusterView> view();
  /// The versions that it lost with the workers that held them, and those from which it went on;
  /// since the last call.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> lost_states();
  /// How its last life ended, where that was by itself.
  const std::optional<Status>& ended() const { return ended_; }

 private:
  /// One run of the service: a deposed leader has another one.
  struct Running {
    server::JobServer* cluster = nullptr;
    server::Control* control = nullptr;
    Executor executor;
    std::size_t calls = 0;
    std::uint64_t events_read = 0;
  };
  void run(Process& process) override;
  void ask_to_end() override;
  Status run_service(Process& process, server::ServerConfig config, bool& is_deposed);
  server::ServerConfig config() const;

  std::shared_ptr<Running> running_;
  std::optional<Status> ended_;
  bool has_run_ = false;
};

}  // namespace centroid::simulation
