#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "client/c_boundary.h"
#include "client/centroid.h"
#include "client/program_trace.h"
#include "client/pull.h"
#include "client/rows_client.h"
#include "client/trainer.h"
#include "common/base/version.h"
#include "common/base/while_waiting.h"

/// The C interface: checks arguments, returns errors as codes, throws nothing.

using centroid::Error;
using centroid::ErrorCode;
using centroid::Result;
using centroid::Status;
using centroid::TensorId;
using namespace centroid::c_boundary;
namespace program_trace = centroid::client::program_trace;

struct centroid_trainer {
  std::unique_ptr<centroid::client::Trainer> it;
};
struct centroid_pulled {
  centroid::client::PulledTensors it;
};
struct centroid_rows {
  std::unique_ptr<centroid::client::RowsClient> it;
};

namespace {

std::optional<centroid::transport::TlsOptions> tls_of(const centroid_server& server) {
  if (server.tls_authority == nullptr && server.tls_certificate == nullptr &&
      server.tls_key == nullptr && server.tls_server_name == nullptr)
    return std::nullopt;
  centroid::transport::TlsOptions tls;
  tls.authority = text(server.tls_authority);
  tls.certificate = text(server.tls_certificate);
  tls.key = text(server.tls_key);
  tls.server_name = text(server.tls_server_name);
  return tls;
}

centroid::worker::StepStats stats_of(const centroid_step* step) {
  centroid::worker::StepStats stats;
  stats.samples = step->samples;
  stats.correct = step->correct;
  stats.loss_sum = step->loss_sum;
  stats.compute_seconds = step->compute_seconds;
  return stats;
}

Result<TensorId> tensor_of(const centroid_trainer* trainer, std::uint64_t tensor) {
  CENTROID_TRY(given(trainer, "trainer"));
  const std::size_t count = trainer->it->manifest().size();
  if (tensor >= count)
    return bad("tensor " + std::to_string(tensor) + " of " + std::to_string(count));
  return TensorId(static_cast<std::uint32_t>(tensor));
}

template <class F>
auto memory_of(centroid_trainer* trainer, std::uint64_t tensor, const F& plane) noexcept
    -> decltype(plane(TensorId(0)).data()) {
  last_error.clear();
  const auto id = tensor_of(trainer, tensor);
  if (id.ok()) return plane(*id).data();
  failed(id.error());
  return nullptr;
}

Status open_trainer(const centroid_server& server, const centroid_training& training,
                    const centroid_tensor* tensors, std::uint64_t count,
                    centroid_trainer** trainer) {
  centroid::client::TrainerOptions options;
  if (server.servers != nullptr) options.servers = server.servers;
  options.token = text(server.token);
  options.name = text(server.name);
  options.tls = tls_of(server);
  if (server.timeout_ms > 0) options.join_timeout = time_of(server.timeout_ms);
  options.model = text(training.model, "external");
  options.codec = text(training.codec, "f32");
  options.state_dir = text(training.state_dir);
  options.exchange = text(training.exchange, "auto");
  options.samples = training.samples;
  options.batch = training.batch;
  options.data_fingerprint = training.data_fingerprint;
  options.sample_tokens = training.sample_tokens;
  if (training.on_keep != nullptr)
    options.on_keep = [call = training.on_keep, context = training.on_keep_context](
                          centroid::Round round) { call(context, round.value); };
  centroid::Manifest manifest;
  std::vector<float> initial;
  for (std::uint64_t i = 0; i < count; ++i) {
    const centroid_tensor& one = tensors[i];
    CENTROID_ASSIGN(auto info, info_of(one));
    CENTROID_TRY(check_initial(one, info));
    initial.insert(initial.end(), one.initial, one.initial + info.elements());
    manifest.push_back(std::move(info));
  }
  CENTROID_ASSIGN(
      auto made, centroid::client::Trainer::open(std::move(options), std::move(manifest), initial));
  *trainer = new centroid_trainer{std::move(made)};
  return {};
}

Status next_share(centroid_trainer& trainer, centroid_share* share) {
  CENTROID_ASSIGN(const auto what, trainer.it->next());
  centroid_share out{};
  if (const auto* end = std::get_if<centroid::worker::Finished>(&what)) {
    out.end = static_cast<std::uint32_t>(end->reason) + CENTROID_FINISHED;
    out.evaluate = end->evaluate ? 1 : 0;
    out.version = end->version.value;
    last_error = end->text;  // why
    give(share, out);
    return {};
  }
  const auto& open = std::get<centroid::worker::Share>(what);
  out.evaluate = open.evaluate ? 1 : 0;
  out.round = open.round.value;
  out.version = open.version.value;
  out.epoch = open.epoch;
  out.rank = open.rank.value;
  out.world = open.world;
  out.begin = open.begin;
  out.count = open.samples();
  out.is_local = open.is_local ? 1 : 0;
  out.overlap = open.overlap;
  give(share, out);
  return {};
}

Status looked_at(const centroid_rows* rows, const std::uint64_t* keys, std::uint64_t count,
                 const float* values, const char* name) {
  CENTROID_TRY(given(rows, "rows"));
  if (count == 0) return {};
  CENTROID_TRY(given(keys, "keys"));
  return given(values, name);
}

}  // namespace

extern "C" {

uint32_t centroid_abi(void) { return CENTROID_ABI; }
const char* centroid_version(void) { return centroid::kVersion; }
uint64_t centroid_struct_size(const char* name) {
  const std::string_view which = name != nullptr ? name : "";
  if (which == "server") return sizeof(centroid_server);
  if (which == "training") return sizeof(centroid_training);
  if (which == "step") return sizeof(centroid_step);
  if (which == "group") return sizeof(centroid_group_options);
  if (which == "call") return sizeof(centroid_call);
  return 0;
}
int centroid_is_buffer(const char* name) {
  return name != nullptr && centroid::is_buffer({.name = name, .shape = {}}) ? 1 : 0;
}
const char* centroid_error(void) { return last_error.c_str(); }

int centroid_log_level(const char* level) {
  return guarded([&]() -> Status {
    quiet_logs();
    CENTROID_ASSIGN(const auto parsed, centroid::log::parse_level(text(level, "warn")));
    return centroid::log::configure(parsed, centroid::log::Format::kText);
  });
}

void centroid_while_waiting(void (*look)(void)) { centroid::while_waiting = look; }

int centroid_trainer_open(const centroid_server* server, const centroid_training* training,
                          const centroid_tensor* tensors, uint64_t count,
                          centroid_trainer** trainer) {
  return guarded([&]() -> Status {
    quiet_logs();
    CENTROID_TRY(given(trainer, "trainer"));
    *trainer = nullptr;
    CENTROID_TRY(asked(server, "server"));
    CENTROID_TRY(asked(training, "training", offsetof(centroid_training, sample_tokens)));
    if (count > 0) CENTROID_TRY(given(tensors, "tensors"));
    return open_trainer(*server, known(*training), tensors, count, trainer);
  });
}

int centroid_trainer_next(centroid_trainer* trainer, centroid_share* share) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_TRY(sized(share, "share"));
    return next_share(*trainer, share);
  });
}

int centroid_trainer_indices(centroid_trainer* trainer, uint64_t* numbers) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_ASSIGN(const auto found, trainer->it->indices());
    if (!found.empty()) CENTROID_TRY(given(numbers, "numbers"));
    std::ranges::copy(found, numbers);
    return {};
  });
}

int centroid_trainer_indices_ahead(centroid_trainer* trainer, uint64_t shares, uint64_t* numbers,
                                   uint64_t* count) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_TRY(given(count, "count"));
    CENTROID_ASSIGN(const auto found, trainer->it->indices_ahead(shares));
    if (!found.empty()) CENTROID_TRY(given(numbers, "numbers"));
    std::ranges::copy(found, numbers);
    *count = found.size();
    return {};
  });
}

float* centroid_trainer_parameters(centroid_trainer* trainer, uint64_t tensor) {
  return memory_of(trainer, tensor, [&](TensorId id) { return trainer->it->parameters(id); });
}

const float* centroid_trainer_committed(centroid_trainer* trainer, uint64_t tensor) {
  return memory_of(trainer, tensor, [&](TensorId id) { return trainer->it->committed(id); });
}

float* centroid_trainer_gradient(centroid_trainer* trainer, uint64_t tensor) {
  return memory_of(trainer, tensor, [&](TensorId id) { return trainer->it->gradient(id); });
}

int centroid_trainer_ready(centroid_trainer* trainer, uint64_t tensor) {
  return guarded([&]() -> Status {
    CENTROID_ASSIGN(const TensorId id, tensor_of(trainer, tensor));
    return trainer->it->ready(id);
  });
}

int centroid_trainer_contribute(centroid_trainer* trainer, const centroid_step* step) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_TRY(asked(step, "step"));
    return trainer->it->contribute(stats_of(step));
  });
}

int centroid_trainer_finish(centroid_trainer* trainer, const centroid_step* step,
                            centroid_round* round) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_TRY(asked(step, "step"));
    CENTROID_TRY(sized(round, "round"));
    CENTROID_ASSIGN(const auto report, trainer->it->finish(stats_of(step)));
    centroid_round out{};
    out.outcome = static_cast<std::uint32_t>(report.outcome);
    out.version = report.version.value;
    out.wait_seconds = report.wait_seconds;
    last_error = report.reason;  // why it was not committed
    give(round, out);
    return {};
  });
}

int centroid_trainer_record(centroid_trainer* trainer, const char* name, double value) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    CENTROID_TRY(given(name, "name"));
    return trainer->it->record(name, value);
  });
}

int centroid_trainer_report(centroid_trainer* trainer, uint64_t version, uint64_t samples,
                            uint64_t correct, double loss_sum) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    trainer->it->report({.version = centroid::Version(version),
                         .samples = samples,
                         .correct = correct,
                         .loss_sum = loss_sum});
    return {};
  });
}

void centroid_trainer_stop(centroid_trainer* trainer, const char* why) {
  (void)guarded([&]() -> Status {
    CENTROID_TRY(given(trainer, "trainer"));
    trainer->it->request_stop(text(why, "the program stops"));
    return {};
  });
}

void centroid_trainer_close(centroid_trainer* trainer, const char* why) {
  if (trainer == nullptr) return;
  (void)guarded([&]() -> Status {
    trainer->it->leave(text(why, "the program is done"));
    return {};
  });
  delete trainer;
}

int centroid_pull(const centroid_server* server, const char* const* names, uint64_t count,
                  centroid_pulled** pulled) {
  return guarded([&]() -> Status {
    quiet_logs();
    CENTROID_TRY(given(pulled, "pulled"));
    *pulled = nullptr;
    CENTROID_TRY(asked(server, "server"));
    if (count > 0) CENTROID_TRY(given(names, "names"));
    centroid::client::PullOptions options;
    if (server->servers != nullptr) options.servers = server->servers;
    options.token = text(server->token);
    options.name = text(server->name, "reader");
    options.tls = tls_of(*server);
    if (server->timeout_ms > 0) options.timeout = time_of(server->timeout_ms);
    std::vector<std::string> requested;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (names[i] == nullptr) return bad("name " + std::to_string(i) + " is NULL");
      requested.emplace_back(names[i]);
    }
    CENTROID_ASSIGN(auto made, centroid::client::pull_tensors(options, requested));
    *pulled = new centroid_pulled{std::move(made)};
    return {};
  });
}

uint64_t centroid_pulled_version(const centroid_pulled* pulled) {
  return pulled ? pulled->it.version.value : 0;
}
uint64_t centroid_pulled_count(const centroid_pulled* pulled) {
  return pulled ? pulled->it.manifest.size() : 0;
}

int centroid_pulled_get(const centroid_pulled* pulled, uint64_t index,
                        centroid_pulled_tensor* tensor) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(pulled, "pulled"));
    CENTROID_TRY(sized(tensor, "tensor"));
    const auto& manifest = pulled->it.manifest;
    if (index >= manifest.size())
      return bad("tensor " + std::to_string(index) + " of " + std::to_string(manifest.size()));
    centroid_pulled_tensor out{};
    out.name = manifest[index].name.c_str();
    out.shape = manifest[index].shape.data();
    out.rank = static_cast<std::uint32_t>(manifest[index].shape.size());
    out.values = pulled->it.of(index).data();
    give(tensor, out);
    return {};
  });
}

void centroid_pulled_free(centroid_pulled* pulled) { delete pulled; }

int centroid_rows_open(const centroid_server* server, const char* table, centroid_rows** rows) {
  return guarded([&]() -> Status {
    quiet_logs();
    CENTROID_TRY(given(rows, "rows"));
    *rows = nullptr;
    CENTROID_TRY(asked(server, "server"));
    const centroid_server& where = *server;
    centroid::client::RowsClientOptions options;
    if (where.servers != nullptr) options.servers = where.servers;
    options.token = text(where.token);
    options.name = text(where.name, "rows-client");
    options.tls = tls_of(where);
    if (where.timeout_ms > 0) options.timeout = time_of(where.timeout_ms);
    CENTROID_ASSIGN(auto made, centroid::client::RowsClient::open(std::move(options), text(table)));
    *rows = new centroid_rows{std::move(made)};
    return {};
  });
}

uint32_t centroid_rows_dim(const centroid_rows* rows) { return rows ? rows->it->dim() : 0; }

int centroid_rows_pull(centroid_rows* rows, const uint64_t* keys, uint64_t count, float* values) {
  return guarded([&]() -> Status {
    CENTROID_TRY(looked_at(rows, keys, count, values, "values"));
    return rows->it->pull({keys, count}, {values, count * rows->it->dim()});
  });
}

int centroid_rows_push(centroid_rows* rows, const uint64_t* keys, uint64_t count,
                       const float* gradients) {
  return centroid_rows_push_at(rows, keys, count, gradients, 0);
}

int centroid_rows_push_at(centroid_rows* rows, const uint64_t* keys, uint64_t count,
                          const float* gradients, uint64_t step) {
  return guarded([&]() -> Status {
    CENTROID_TRY(looked_at(rows, keys, count, gradients, "gradients"));
    return rows->it->push({keys, count}, {gradients, count * rows->it->dim()}, step);
  });
}

uint64_t centroid_rows_rest(const centroid_rows* rows) { return rows ? rows->it->rest() : 0; }

int centroid_rows_push_rest(centroid_rows* rows) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(rows, "rows"));
    return rows->it->push_rest();
  });
}

uint64_t centroid_rows_pushed(const centroid_rows* rows) { return rows ? rows->it->pushed() : 0; }
uint64_t centroid_rows_lost(const centroid_rows* rows) { return rows ? rows->it->lost() : 0; }
void centroid_rows_close(centroid_rows* rows) { delete rows; }

int centroid_trace_open(const char* path, const char* process, uint64_t limit_bytes) {
  return guarded([&]() -> Status {
    quiet_logs();
    CENTROID_TRY(given(path, "path"));
    constexpr std::uint64_t kLimit = std::uint64_t{256} << 20;
    return program_trace::open(path, text(process, "program"),
                               limit_bytes > 0 ? limit_bytes : kLimit);
  });
}

int centroid_trace_close(void) {
  return guarded([]() -> Status {
    program_trace::close();
    return {};
  });
}

int centroid_trace_begin(const char* name) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(name, "name"));
    return program_trace::begin(name);
  });
}

int centroid_trace_end(void) {
  return guarded([] { return program_trace::end(); });
}

int centroid_trace_mark(const char* name, const char* what) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(name, "name"));
    return program_trace::mark(name, text(what));
  });
}

int centroid_trace_lane(const char* name) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(name, "name"));
    return program_trace::lane(name);
  });
}

}  // extern "C"
