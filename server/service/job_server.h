#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/service/job_parts.h"
#include "server/service/job_stop.h"
#include "transport/session.h"

namespace centroid::server {

/// The training service of one job: takes connections, leads the job through its life, and ends it.
/// Its parts do the work (JobParts); REST stands on it (Control). Everything runs on one executor
/// (one thread), so its state needs no lock. Files: job_server.cc (connections, leases, the end),
/// job_server_prepare.cc (the start), job_server_rows.cc (tables), job_server_lead.cc (standby).
class JobServer final {
 public:
  JobServer(Executor executor, Executor blocking, const ServerConfig& config, const Clock& clock,
            metrics::Registry& registry);

  /// Open the checkpoint folder, load what `resume` or `init` ask for; `run` does it first if need
  /// be.
  Task<Status> prepare();
  bool is_beginning() const { return ctx_.gate.is_beginning(); }
  /// With several servers, before `run`: this one is a standby until it is told otherwise. The
  /// fence outlives this.
  void stand_by(Fence& fence);
  /// From the executor: who leads now.
  void set_leadership(Leadership present) { ctx_.gate.set_leadership(std::move(present)); }
  /// Another server leads, or may; asked when `run` has ended.
  bool is_deposed() const { return ctx_.gate.is_deposed(); }
  /// Accept and train until the job is over or `request_stop`. The result is the process's: an
  /// error when the job halted.
  Task<Status> run(transport::Listener& listener);
  /// From the executor: finish the round, checkpoint, tell everybody, end. With `leave_workers`
  /// nobody is told: the workers' connections end, and they wait for a server to come back.
  void request_stop(const std::string& why, bool leave_workers = false) {
    stop_.request_stop(why, leave_workers);
  }
  /// Whether the job halted itself; asked when `run` has ended.
  bool is_halted() const { return ctx_.phase.is(Phase::kHalted); }
  /// Whether `run` ended before the job was over, to be gone on with; asked when `run` has ended.
  bool goes_on() const {
    return ctx_.phase.is(Phase::kStopping) && !ctx_.commands.stop && !parts_.data.goal_reached();
  }

  /// Where what operators said is written, so that it does not wait for other files. Before
  /// `prepare`.
  void set_files(Executor files) { ctx_.commands.set_files(std::move(files)); }
  /// What knows the settings by name; `config` of the constructor are its targets. Before
  /// `prepare`.
  void set_schema(config::Schema* schema) { ctx_.commands.set_schema(schema); }
  /// Told on the executor when settings have changed; before `run`.
  void on_config_change(std::function<void()> told) { ctx_.on_settings = std::move(told); }
  /// Which tokens beside `token` let a worker in, and what shard servers are told of them; before
  /// `run`.
  void set_tokens(std::function<bool(std::string_view)> accepts,
                  std::function<proto::Tokens()> told);
  TimePoint started() const { return started_; }
  JobContext& context() { return ctx_; }
  JobParts& parts() { return parts_; }

 private:
  /// How the job ends for this server.
  struct Ending {
    Status result;
    bool is_elsewhere = false;    ///< another server has the job, or may
    bool may_pass = false;        ///< the error: started again, the server may go on
    bool writes_nothing = false;  ///< it is another server's, or this one never led
    bool is_coming_back = false;  ///< workers are to wait for a server
  };
  Task<void> end_job(Ending& ending);
  proto::FinishReason set_last_phase(const Ending& ending, bool halted);
  Task<void> keep_last_state(Ending& ending);
  Task<void> close(transport::Listener& listener);
  Task<void> serve(std::unique_ptr<transport::Connection> connection,
                   std::unique_ptr<transport::Strangers::Place> place);
  Task<void> serve(transport::Session& session, transport::Strangers::Place& place);
  void log_refused(const std::string& peer, const Error& why);
  Task<void> watch_leases();
  Task<void> await_leaves();
  Task<void> finish_everybody(proto::FinishReason reason, std::string text);
  transport::Greeting greeting() const;

  Task<Status> take_the_lead();
  Task<void> write_last_checkpoint();
  Task<void> send_workers_away();

  Task<Status> open_checkpoints();
  Task<Status> load_rows();
  Task<Status> prepare_rows();
  Task<Status> checkpoint_of_rows();
  Task<Status> start_rows_journal();
  Task<Status> open_rows_journal();

  JobContext ctx_;
  JobParts parts_;
  JobStop stop_;
  const TimePoint started_;
  std::optional<Error> rows_failure_;
  std::function<bool(std::string_view)> accepts_token_;
};

}  // namespace centroid::server
