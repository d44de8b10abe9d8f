#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/storage/file.h"
#include "server/api/reply.h"
#include "server/api/routes.h"
#include "transport/tls/tls.h"

namespace centroid::server {

namespace {

struct Health {
  std::string status = "ok";
  friend View<Health> describe(const Health*) {
    using V = Health;
    return {
        "Health", "The process answers.", {{"status", &V::status, "Always ok.", one_of({"ok"})}}};
  }
};

struct Ready {
  std::string status = "ready";
  friend View<Ready> describe(const Ready*) {
    using V = Ready;
    return {"Ready",
            "The server takes members.",
            {{"status", &V::status, "Always ready.", one_of({"ready"})}}};
  }
};

struct Version {
  std::string name = "centroid-server", version = kVersion, api = "v1";
  friend View<Version> describe(const Version*) {
    using V = Version;
    return {"Version",
            "What answers.",
            {{"name", &V::name, "Program.", one_of({"centroid-server"})},
             {"version", &V::version, "Its version."},
             {"api", &V::api, "Version of this interface.", one_of({"v1"})}}};
  }
};

struct Certificate {
  std::string file;
  std::optional<double> expires_unix_seconds;
  std::string problem;
  friend View<Certificate> describe(const Certificate*) {
    using V = Certificate;
    return {"Certificate",
            "A file of certificates in PEM.",
            {{"file", &V::file, "Its path."},
             {"expires_unix_seconds", &V::expires_unix_seconds,
              "When the first of them ends. Null when it cannot be read."},
             {"problem", &V::problem, "Why it cannot be read."}}};
  }
};

struct Host {
  std::string version = kVersion;
  double unix_seconds = 0;
  std::string run_dir;
  std::optional<std::uint64_t> free_bytes, total_bytes;
  std::vector<Certificate> certificates;
  friend View<Host> describe(const Host*) {
    using V = Host;
    return {"Host",
            "The machine that the server runs on.",
            {{"version", &V::version, "Version of the server."},
             {"unix_seconds", &V::unix_seconds, "Its clock."},
             {"run_dir", &V::run_dir, "Folder of the training's files."},
             {"free_bytes", &V::free_bytes, "Room on its disk."},
             {"total_bytes", &V::total_bytes, "Size of its disk."},
             {"certificates", &V::certificates, "Certificates that the server shows."}}};
  }
};

Certificate look_at(const std::string& file) {
  const auto end = transport::certificate_end(file);
  if (!end.ok()) return {file, std::nullopt, end.error().message()};
  return {file, *end, ""};
}

/// Waits for the disk.
Result<Host> look_at(const HostFiles& files) {
  Host host;
  host.unix_seconds = SystemClock().unix_seconds();
  host.run_dir = files.run_dir;
  if (!files.run_dir.empty()) {
    const auto disk = file::space_around(files.run_dir);
    if (!disk.ok())
      return Error(ErrorCode::kUnavailable, "run_dir " + files.run_dir + ": " +
                                                disk.error().message() +
                                                "; check that its disk is there");
    host.free_bytes = disk->free_bytes;
    host.total_bytes = disk->total_bytes;
  }
  for (const std::string& file : files.certificates) host.certificates.push_back(look_at(file));
  return host;
}

Reply get_livez(Services services, Call) {
  CENTROID_CO_TRY(services.pulse.check());
  co_return view_response(Health());
}

Reply get_healthz(Services, Call) { co_return view_response(Health()); }

Reply get_readyz(Services services, Call) {
  CENTROID_CO_TRY(co_await services.control.is_ready());
  co_return view_response(Ready());
}

Reply get_metrics(Services services, Call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = services.registry.serialize();
  co_return response;
}

Reply get_version(Services, Call) { co_return view_response(Version()); }

Reply get_host(Services services, Call) {
  auto look = [files = services.files] { return look_at(files); };
  const auto found = co_await run_on(services.blocking, std::move(look));
  co_return view_response(found);
}

}  // namespace

std::vector<Route> server_routes() {
  return {
      {.path = "/livez",
       .id = "get_livez",
       .handler = get_livez,
       .role = Role::kAnyone,
       .summary = "The process answers, and so does its service thread",
       .description = "A probe: 503 when the thread of training has not answered for 300 s; free "
                      "of the bounds on rate and on calls that hang.",
       .answer = answer<Health>("They do.")},
      {.path = "/healthz",
       .id = "get_healthz",
       .handler = get_healthz,
       .role = Role::kAnyone,
       .summary = "The process answers",
       .description = "A probe: queries nothing of the cluster, and is exempt from the limits on "
                      "rate and on stuck calls.",
       .answer = answer<Health>("It does.")},
      {.path = "/readyz",
       .id = "get_readyz",
       .handler = get_readyz,
       .role = Role::kAnyone,
       .summary = "The server is initialised and able to take members",
       .description = "503 when it is not. A standby is not, and names the leader.",
       .answer = answer<Ready>("It does; 503 when it does not.")},
      {.path = "/metrics",
       .id = "get_metrics",
       .handler = get_metrics,
       .summary = "Metrics in the Prometheus text format 0.0.4",
       .answer = {.text = "All series.", .media = "text/plain"}},
      {.path = "/version",
       .id = "get_version",
       .handler = get_version,
       .summary = "Program, version, version of this interface",
       .answer = answer<Version>("Program and version.")},
      {.path = "/v1/host",
       .id = "get_host",
       .handler = get_host,
       .summary = "The machine: clock, room on the disk, certificates",
       .answer = answer<Host>("What was found.")},
  };
}

}  // namespace centroid::server
