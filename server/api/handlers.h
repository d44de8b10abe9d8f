#pragma once

#include "server/api/routes.h"

/// Every handler of the table in routes.cc, by the file that has it.
namespace centroid::server {

// routes.cc
Task<Result<HttpResponse>> get_index(Services services, Call call);

// server_routes.cc
Task<Result<HttpResponse>> get_livez(Services services, Call call);
Task<Result<HttpResponse>> get_healthz(Services services, Call call);
Task<Result<HttpResponse>> get_readyz(Services services, Call call);
Task<Result<HttpResponse>> get_metrics(Services services, Call call);
Task<Result<HttpResponse>> get_trace(Services services, Call call);
Task<Result<HttpResponse>> get_version(Services services, Call call);
Task<Result<HttpResponse>> get_openapi(Services services, Call call);

// host_routes.cc
Task<Result<HttpResponse>> get_host(Services services, Call call);

// cluster_routes.cc
Task<Result<HttpResponse>> get_cluster(Services services, Call call);
Task<Result<HttpResponse>> get_workers(Services services, Call call);
Task<Result<HttpResponse>> get_worker(Services services, Call call);
Task<Result<HttpResponse>> get_rounds(Services services, Call call);
Task<Result<HttpResponse>> get_epochs(Services services, Call call);
Task<Result<HttpResponse>> get_curves(Services services, Call call);
Task<Result<HttpResponse>> get_waits(Services services, Call call);
Task<Result<HttpResponse>> get_servers(Services services, Call call);
Task<Result<HttpResponse>> post_drain_server(Services services, Call call);

// worker_routes.cc
Task<Result<HttpResponse>> post_drain(Services services, Call call);
Task<Result<HttpResponse>> post_evict(Services services, Call call);
Task<Result<HttpResponse>> post_measure(Services services, Call call);
Task<Result<HttpResponse>> get_evictions(Services services, Call call);
Task<Result<HttpResponse>> delete_eviction(Services services, Call call);

// parameter_routes.cc
Task<Result<HttpResponse>> get_parameters(Services services, Call call);
Task<Result<HttpResponse>> get_parameter(Services services, Call call);

// picture_routes.cc
Task<Result<HttpResponse>> get_model_picture(Services services, Call call);

// job_routes.cc
Task<Result<HttpResponse>> get_config(Services services, Call call);
Task<Result<HttpResponse>> patch_config(Services services, Call call);
Task<Result<HttpResponse>> get_scale(Services services, Call call);
Task<Result<HttpResponse>> post_scale(Services services, Call call);
Task<Result<HttpResponse>> post_pause(Services services, Call call);
Task<Result<HttpResponse>> post_resume(Services services, Call call);
Task<Result<HttpResponse>> post_stop(Services services, Call call);

// checkpoint_routes.cc
Task<Result<HttpResponse>> get_checkpoints(Services services, Call call);
Task<Result<HttpResponse>> post_checkpoint(Services services, Call call);
Task<Result<HttpResponse>> post_verify(Services services, Call call);
Task<Result<HttpResponse>> post_restore(Services services, Call call);
Task<Result<HttpResponse>> delete_checkpoint(Services services, Call call);
Task<Result<HttpResponse>> get_checkpoint_files(Services services, Call call);
Task<Result<HttpResponse>> get_checkpoint_file(Services services, Call call);

// table_routes.cc
Task<Result<HttpResponse>> get_tables(Services services, Call call);
Task<Result<HttpResponse>> get_table(Services services, Call call);

// token_routes.cc
Task<Result<HttpResponse>> get_tokens(Services services, Call call);
Task<Result<HttpResponse>> post_token(Services services, Call call);
Task<Result<HttpResponse>> delete_token(Services services, Call call);
Task<Result<HttpResponse>> get_audit(Services services, Call call);

// event_routes.cc
Task<Result<HttpResponse>> get_events(Services services, Call call);

}  // namespace centroid::server
