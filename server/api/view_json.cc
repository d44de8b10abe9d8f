#include "server/api/view_json.h"

#include <nlohmann/json.hpp>

namespace centroid::server {

// The bindings name every field of a view: a view that grows does not compile until its JSON grows.

nlohmann::ordered_json to_json_object(const ClusterView& view) {
  const auto& [run_id, state, state_reason, generation, world, round, version, epoch, offset,
               samples_total, progress, samples_per_second, uptime_seconds, goal, learning, test,
               endpoints, terms, model, losses, cadence, lead] = view;
  const auto& [epochs, rounds, train_samples] = goal;
  const auto& [loss, train_accuracy, learning_rate, gradient_norm, clipped_rounds] = learning;
  const auto& [test_accuracy, test_loss, test_version] = test;
  const auto& [data_endpoint, api_endpoint] = endpoints;
  const auto& [policy, exchange, codec, apply, optimizer] = terms;
  const auto& [model_spec, parameters, chunks] = model;
  const auto& [skipped_rounds, aborted_attempts, lost_contributions, returned_samples, late_dropped,
               late_carried] = losses;
  const auto& [cadence_steps, exchange_seconds, exchange_overhead, divergence] = cadence;
  const auto& [role, leader, leader_endpoint, leader_api, term] = lead;
  nlohmann::ordered_json out;
  out["run_id"] = run_id;
  out["state"] = state;
  out["state_reason"] = state_reason;
  out["generation"] = generation;
  out["world"] = world;
  out["round"] = round;
  out["version"] = version;
  out["epoch"] = epoch;
  out["offset"] = offset;
  out["samples_total"] = samples_total;
  out["epochs"] = epochs;
  out["rounds"] = rounds;
  out["train_samples"] = train_samples;
  out["progress"] = progress;
  out["samples_per_second"] = samples_per_second;
  out["loss"] = loss;
  out["train_accuracy"] = train_accuracy;
  out["uptime_seconds"] = uptime_seconds;
  out["test_accuracy"] = test_accuracy;
  out["test_loss"] = test_loss;
  out["test_version"] = test_version;
  out["data_endpoint"] = data_endpoint;
  out["api_endpoint"] = api_endpoint;
  out["policy"] = policy;
  out["exchange"] = exchange;
  out["codec"] = codec;
  out["apply"] = apply;
  out["optimizer"] = optimizer;
  out["model"] = model_spec;
  out["parameters"] = parameters;
  out["chunks"] = chunks;
  out["skipped_rounds"] = skipped_rounds;
  out["aborted_attempts"] = aborted_attempts;
  out["lost_contributions"] = lost_contributions;
  out["learning_rate"] = learning_rate;
  out["gradient_norm"] = gradient_norm;
  out["clipped_rounds"] = clipped_rounds;
  out["cadence_steps"] = cadence_steps;
  out["exchange_seconds"] = exchange_seconds;
  out["exchange_overhead"] = exchange_overhead;
  out["divergence"] = divergence;
  out["returned_samples"] = returned_samples;
  out["late_dropped"] = late_dropped;
  out["late_carried"] = late_carried;
  out["role"] = role;
  out["leader"] = leader;
  out["leader_endpoint"] = leader_endpoint;
  out["leader_api"] = leader_api;
  out["term"] = term;
  return out;
}

namespace {

nlohmann::ordered_json to_json_list(const Scalars& scalars) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& [name, sum] : scalars.all()) {
    nlohmann::ordered_json one;
    one["name"] = name;
    one["mean"] = sum.mean();
    one["count"] = sum.count;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

nlohmann::ordered_json to_json_object(const WorkerView& view) {
  const auto& [member, name, address, state, rank, devices, samples, rounds, bytes_in, bytes_out,
               joined_unix_seconds, silent_seconds, step_seconds, compute_seconds, wait_seconds,
               encode_seconds, decode_seconds, send_seconds, exchange_seconds, apply_seconds,
               receive_seconds, last_loss, local_steps, pace_seconds, share_ratio, divergence,
               parameter_norm, scalars, reason, version, clock_ahead_seconds,
               certificate_expires_unix_seconds] = view;
  nlohmann::ordered_json out;
  out["member"] = member;
  out["name"] = name;
  out["address"] = address;
  out["state"] = state;
  out["rank"] = rank;
  out["devices"] = devices;
  out["samples"] = samples;
  out["rounds"] = rounds;
  out["bytes_in"] = bytes_in;
  out["bytes_out"] = bytes_out;
  out["joined_unix_seconds"] = joined_unix_seconds;
  out["silent_seconds"] = silent_seconds;
  out["step_seconds"] = step_seconds;
  out["compute_seconds"] = compute_seconds;
  out["wait_seconds"] = wait_seconds;
  out["encode_seconds"] = encode_seconds;
  out["decode_seconds"] = decode_seconds;
  out["send_seconds"] = send_seconds;
  out["exchange_seconds"] = exchange_seconds;
  out["apply_seconds"] = apply_seconds;
  out["receive_seconds"] = receive_seconds;
  out["last_loss"] = last_loss;
  out["local_steps"] = local_steps;
  out["pace_seconds"] = pace_seconds;
  out["share_ratio"] = share_ratio;
  out["divergence"] = divergence;
  out["parameter_norm"] = parameter_norm;
  out["scalars"] = to_json_list(scalars);
  out["reason"] = reason;
  out["version"] = version;
  out["clock_ahead_seconds"] = clock_ahead_seconds;
  out["certificate_expires_unix_seconds"] = certificate_expires_unix_seconds;
  return out;
}

nlohmann::ordered_json to_json_object(const RoundView& view) {
  const auto& [round, attempt, generation, version, samples, state, outcome, opened_unix_seconds,
               seconds, loss, contributors, missing, late, scalars] = view;
  nlohmann::ordered_json out;
  out["round"] = round;
  out["attempt"] = attempt;
  out["generation"] = generation;
  out["version"] = version;
  out["samples"] = samples;
  out["state"] = state;
  out["outcome"] = outcome;
  out["opened_unix_seconds"] = opened_unix_seconds;
  out["seconds"] = seconds;
  out["loss"] = loss;
  out["contributors"] = contributors;
  out["missing"] = missing;
  out["late"] = late;
  out["scalars"] = to_json_list(scalars);
  return out;
}

nlohmann::ordered_json to_json_object(const CurvesView& view) {
  nlohmann::ordered_json out;
  out["revision"] = view.revision;
  out["points"] = nlohmann::ordered_json::array();
  for (const CurvePointView& point : view.points) {
    nlohmann::ordered_json one;
    one["first"] = point.first;
    one["last"] = point.last;
    one["rounds"] = point.rounds;
    one["samples"] = point.samples;
    one["seconds"] = point.seconds;
    one["unix_seconds"] = point.unix_seconds;
    one["round_seconds"] = point.round_seconds;
    one["samples_per_second"] = point.samples_per_second;
    one["loss"] = point.loss;
    one["accuracy"] = point.accuracy;
    one["test_loss"] = point.test_loss;
    one["test_accuracy"] = point.test_accuracy;
    one["learning_rate"] = point.learning_rate;
    one["gradient_norm"] = point.gradient_norm;
    one["workers"] = point.workers;
    out["points"].push_back(std::move(one));
  }
  return out;
}

nlohmann::ordered_json to_json_object(const EpochView& view) {
  const auto& [epoch, samples, trained, state, begun_unix_seconds, seconds, loss, accuracy, scalars,
               workers] = view;
  nlohmann::ordered_json out;
  out["epoch"] = epoch;
  out["samples"] = samples;
  out["trained"] = trained;
  out["state"] = state;
  out["begun_unix_seconds"] = begun_unix_seconds;
  out["seconds"] = seconds;
  out["loss"] = loss;
  out["accuracy"] = accuracy;
  out["scalars"] = to_json_list(scalars);
  out["workers"] = nlohmann::ordered_json::array();
  for (const EpochWorkerView& one : workers) out["workers"].push_back(to_json_object(one));
  return out;
}

nlohmann::ordered_json to_json_object(const EpochWorkerView& view) {
  const auto& [name, devices, contributions, samples, loss, accuracy, compute_seconds,
               samples_per_second, share, scalars] = view;
  nlohmann::ordered_json out;
  out["name"] = name;
  out["devices"] = devices;
  out["contributions"] = contributions;
  out["samples"] = samples;
  out["loss"] = loss;
  out["accuracy"] = accuracy;
  out["compute_seconds"] = compute_seconds;
  out["samples_per_second"] = samples_per_second;
  out["share"] = share;
  out["scalars"] = to_json_list(scalars);
  return out;
}

nlohmann::ordered_json to_json_object(const WaitView& view) {
  const auto& [who, for_whom, what, seconds] = view;
  nlohmann::ordered_json out;
  out["who"] = who;
  out["for_whom"] = for_whom;
  out["what"] = what;
  out["seconds"] = seconds;
  return out;
}

nlohmann::ordered_json to_json_object(const ServerView& view) {
  const auto& [name, endpoint, address, state, chunks, bytes, moves, buckets, bucket_moves, rows,
               row_bytes, joined_unix_seconds, memory_bytes, journal_bytes, staged_bytes, bytes_in,
               bytes_out, workers, merge_seconds, trouble, knows_tokens, version,
               clock_ahead_seconds, certificate_expires_unix_seconds, disk_free_bytes,
               disk_total_bytes, api, seen_unix_seconds] = view;
  nlohmann::ordered_json out;
  out["name"] = name;
  out["endpoint"] = endpoint;
  out["address"] = address;
  out["state"] = state;
  out["chunks"] = chunks;
  out["bytes"] = bytes;
  out["moves"] = moves;
  out["buckets"] = buckets;
  out["bucket_moves"] = bucket_moves;
  out["rows"] = rows;
  out["row_bytes"] = row_bytes;
  out["joined_unix_seconds"] = joined_unix_seconds;
  out["memory_bytes"] = memory_bytes;
  out["journal_bytes"] = journal_bytes;
  out["staged_bytes"] = staged_bytes;
  out["bytes_in"] = bytes_in;
  out["bytes_out"] = bytes_out;
  out["workers"] = workers;
  out["merge_seconds"] = merge_seconds;
  out["trouble"] = trouble;
  out["knows_tokens"] = knows_tokens;
  out["version"] = version;
  out["clock_ahead_seconds"] = clock_ahead_seconds;
  out["certificate_expires_unix_seconds"] = certificate_expires_unix_seconds;
  const bool has_disk = disk_total_bytes > 0;
  out["disk_free_bytes"] = has_disk ? nlohmann::ordered_json(disk_free_bytes) : nullptr;
  out["disk_total_bytes"] = has_disk ? nlohmann::ordered_json(disk_total_bytes) : nullptr;
  out["api"] = api;
  const bool is_seen = seen_unix_seconds > 0;
  out["seen_unix_seconds"] = is_seen ? nlohmann::ordered_json(seen_unix_seconds) : nullptr;
  return out;
}

nlohmann::ordered_json to_json_object(const CheckpointView& view) {
  const auto& [path, problem, version, number, round, bytes, created_unix_seconds] = view;
  nlohmann::ordered_json out;
  out["path"] = path;
  out["problem"] = problem;
  out["version"] = version;
  out["number"] = number;
  out["round"] = round;
  out["bytes"] = bytes;
  out["created_unix_seconds"] = created_unix_seconds;
  return out;
}

nlohmann::ordered_json to_json_object(const TableView& view) {
  nlohmann::ordered_json out;
  out["name"] = view.name;
  out["optimizer"] = view.optimizer;
  out["spec"] = view.spec;
  out["dim"] = view.dim;
  out["rows"] = view.rows;
  out["waiting"] = view.waiting;
  out["bytes"] = view.bytes;
  out["payload_bytes"] = view.payload_bytes;
  out["max_bytes"] = view.max_bytes;
  out["pulled"] = view.pulled;
  out["pushed"] = view.pushed;
  out["admitted"] = view.admitted;
  out["held_back"] = view.held_back;
  out["evicted"] = view.evicted;
  out["expired"] = view.expired;
  out["servers"] = nlohmann::ordered_json::array();
  for (const PartView& part : view.servers) {
    nlohmann::ordered_json one;
    one["name"] = part.server;
    one["rows"] = part.rows;
    one["bytes"] = part.bytes;
    out["servers"].push_back(std::move(one));
  }
  return out;
}

}  // namespace centroid::server
