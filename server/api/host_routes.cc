#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/storage/file.h"
#include "server/api/handlers.h"
#include "server/api/reply.h"
#include "transport/tls/tls.h"

/// The machine that the server runs on.
namespace centroid::server {

namespace {

Json certificate_json(const std::string& file) {
  Json out;
  out["file"] = file;
  const auto end = transport::certificate_end(file);
  out["expires_unix_seconds"] = end.ok() ? Json(*end) : Json();
  out["problem"] = end.ok() ? "" : end.error().message();
  return out;
}

/// Waits for the disk.
Result<Json> look_at(const HostFiles& files) {
  Json out;
  out["version"] = kVersion;
  out["unix_seconds"] = SystemClock().unix_seconds();
  out["run_dir"] = files.run_dir;
  out["free_bytes"] = nullptr;
  out["total_bytes"] = nullptr;
  if (!files.run_dir.empty()) {
    const auto disk = file::space_around(files.run_dir);
    if (!disk.ok())
      return Error(ErrorCode::kUnavailable, "run_dir " + files.run_dir + ": " +
                                                disk.error().message() +
                                                "; look whether its disk is there");
    out["free_bytes"] = disk->free_bytes;
    out["total_bytes"] = disk->total_bytes;
  }
  out["certificates"] = Json::array();
  for (const std::string& file : files.certificates)
    out["certificates"].push_back(certificate_json(file));
  return out;
}

}  // namespace

Reply get_host(Services services, Call) {
  auto look = [files = services.files] { return std::make_optional(look_at(files)); };
  const auto found = co_await run_on(services.blocking, std::move(look));
  if (!found->ok()) co_return found->error();
  co_return json_response(found->value());
}

}  // namespace centroid::server
