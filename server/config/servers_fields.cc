#include "common/codec/spec.h"
#include "server/config/server_config.h"

/// Settings of a model on several servers.
namespace centroid::server {

void register_servers(config::Schema& s, ServerConfig& c) {
  s.section("Several servers");
  s.field("join", &c.join,
          {.text = "run as a shard server, with part of the model, of the leader at HOST:PORT. "
                   "With etcd: the address of one server, or of several, separated by commas",
           .basic = true});
  s.field("join_timeout", &c.timeouts.join,
          {.text = "shard server: exit when there is no leader for this long",
           .unit = "ms",
           .min = 100});
  s.field("servers_token", &c.servers_token,
          {.text = "secret that shard servers must send in place of token", .secret = true});
  s.field("metrics.listen", &c.metrics.listen,
          {.text = "shard server: address of GET /metrics, /v1/trace, /livez and /readyz, "
                   "HOST:PORT, without a token; port 0 takes a free port; empty: none. A server "
                   "with REST serves them at api.listen"});
  s.field("metrics.tls", &c.metrics.tls, {.text = "serve them by HTTPS, with tls.certificate"});
  s.field("servers", &c.servers,
          {.text = "servers to wait for before the first round: this leader and its shard servers",
           .unit = "servers",
           .min = 1,
           .max = 256,
           .basic = true});
  s.field("servers_wait", &c.timeouts.servers,
          {.text = "how long to wait for a lost shard server before the others load its chunks "
                   "from the newest checkpoint",
           .unit = "ms",
           .min = 0});
}

std::string why_one_server(const ServerConfig& c) {
  if (c.may_meet_peers())
    return "with exchange " + c.exchange +
           " no parameters lie on a server: take exchange star for several servers";
  const auto down = CodecSpec::parse(c.transfer.codec_down);
  if (down.ok() && down->scope == Scope::kGlobal && down->feedback.enabled)
    return "codec_down " + c.transfer.codec_down +
           " selects from all tensors at once, which lie on one server only: leave scope=global "
           "away for several";
  if (c.writes_journal() && c.journal.full != "wait")
    return "journal.full " + c.journal.full +
           " works with one server: with several a round waits for the disk (wait)";
  return "";
}

Status check_metrics(const ServerConfig& c) {
  if (c.join.empty() && (!c.metrics.listen.empty() || c.metrics.tls))
    return Error(ErrorCode::kInvalidArgument,
                 "metrics.listen and metrics.tls are for a shard server (join): this one serves "
                 "/metrics and the probes with its REST, at api.listen (api.tls)");
  if (!c.metrics.tls) return {};
  if (c.tls.certificate.empty() || c.tls.key.empty() || c.metrics.listen.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "metrics.tls needs tls.certificate, tls.key and metrics.listen");
  return {};
}

Status check_chunk_count(const ServerConfig& c, std::size_t chunks) {
  constexpr std::size_t kHead = 1 << 20,
                        kNames = 256 * 2 * 260 + 64;  // docs/reference/wire.md, Route
  const bool sends_squares = c.optimizer.clip_norm > 0;
  const std::size_t most =
      (kHead - kNames) / (sends_squares ? sizeof(double) : sizeof(std::uint16_t));
  if (chunks <= most) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "the model has " + std::to_string(chunks) + " chunks, on several servers " +
                   (sends_squares ? "with clip_norm " : "") + "at most " + std::to_string(most) +
                   " fit a message: set a larger chunk_bytes, which is " +
                   std::to_string(c.transfer.chunk_bytes));
}
}  // namespace centroid::server
