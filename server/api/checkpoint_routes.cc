#include <optional>

#include "server/api/file_stream.h"
#include "server/api/handlers.h"
#include "server/api/reply.h"

namespace centroid::server {

namespace {

Json to_json_object(const CheckpointFileView& view) {
  char crc[16];
  std::snprintf(crc, sizeof crc, "%08x", view.crc32c);
  Json out;
  out["name"] = view.name;
  out["bytes"] = view.bytes;
  out["crc32c"] = crc;
  return out;
}

}  // namespace

Reply get_checkpoints(Services services, Call call) {
  const auto views = co_await services.control.checkpoints();
  const auto key = [](const CheckpointView& view) { return ListKey(view.version, view.number); };
  co_return list_page(call, "checkpoints", views, key, true);
}

Reply post_checkpoint(Services services, Call) {
  CENTROID_CO_ASSIGN(const CheckpointView view, co_await services.control.make_checkpoint());
  co_return json_response(to_json_object(view), 201);
}

Reply post_verify(Services services, Call call) {
  CENTROID_CO_ASSIGN(const CheckpointView view,
                     co_await services.control.verify_checkpoint(call.id()));
  co_return json_response(to_json_object(view));
}

Reply post_restore(Services services, Call call) {
  const Body body(call);
  CENTROID_CO_ASSIGN(const bool deletes, body.flag("delete_newer", false));
  CENTROID_CO_ASSIGN(const RestoreView view,
                     co_await services.control.restore_checkpoint(call.id(), deletes));
  Json out;
  out["path"] = view.path;
  out["version"] = view.version;
  out["round"] = view.round;
  out["from_version"] = view.from_version;
  out["deleted"] = view.deleted;
  co_return json_response(out);
}

Reply delete_checkpoint(Services services, Call call) {
  CENTROID_CO_ASSIGN(const CheckpointView view,
                     co_await services.control.delete_checkpoint(call.id()));
  co_return json_response(to_json_object(view));
}

Reply get_checkpoint_files(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto files, co_await services.control.checkpoint_files(call.id()));
  const auto to_json = [](const CheckpointFileView& view) { return to_json_object(view); };
  co_return list_page(call, "files", files, position_in(files), false, to_json);
}

Reply get_checkpoint_file(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto files, co_await services.control.checkpoint_files(call.id()));
  const std::string& name = call.value("file");
  const auto is_it = [&name](const CheckpointFileView& file) { return file.name == name; };
  const auto at = std::find_if(files.begin(), files.end(), is_it);
  if (at == files.end())
    co_return Error(ErrorCode::kNotFound, "the checkpoint has no file '" + name + "'");
  FileOffer offer;
  offer.path = at->path;
  offer.bytes = at->bytes;
  offer.etag = std::string(1, '"').append(std::to_string(at->bytes)).append("-");
  offer.etag.append(std::to_string(at->crc32c)).append(1, '"');
  offer.content_type = name.ends_with(".json") ? "application/json" : "application/octet-stream";
  auto open = [blocking = services.blocking, request = call.request, offer] {
    return std::optional<Result<HttpResponse>>(serve_file(blocking, request, offer));
  };
  auto opened = co_await run_on(services.blocking, std::move(open));
  co_return std::move(*opened);
}

}  // namespace centroid::server
