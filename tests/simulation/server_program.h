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
  /// How its last life ended, where that was by itself.
  const std::optional<Status>& ended() const { return ended_; }

 private:
  /// One run of the service: a deposed leader has another one.
  struct Running {
    server::JobServer* cluster = nullptr;
    server::Control* control = nullptr;
    Executor executor;
    std::size_t calls = 0;
  };
  void run(Process& process) override;
  void ask_to_end() override;
  Status run_service(Process& process, server::ServerConfig config, bool& is_deposed);
  server::ServerConfig config() const;
  /// Versions that it lost with the workers that held them; `last`: the last event that was read.
  void note_lost_states(server::EventLog& events, std::uint64_t& last);

  std::shared_ptr<Running> running_;
  std::optional<Status> ended_;
  bool has_run_ = false;
};

}  // namespace centroid::simulation
