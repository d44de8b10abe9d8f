#include <cstdio>
#include <optional>

#include "server/api/file_stream.h"
#include "server/api/problem.h"
#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

View<CheckpointView> describe(const CheckpointView*) {
  using V = CheckpointView;
  return {"Checkpoint",
          "A checkpoint on disk.",
          {{"path", &V::path, "Its directory."},
           {"problem", &V::problem,
            "Why it cannot be used; empty: no problem is known. Names and sizes of its files are "
            "checked now. A problem found by reading all of it (`:verify`, `:restore`, the "
            "server's start) is reported until its files change, a later read finds it sound, or "
            "the server restarts."},
           {"version", &V::version,
            "Version of the parameters in it; 0: there is no model, only tables."},
           {"number", &V::number,
            "Of the checkpoints of this version, from 0; the highest is the newest."},
           {"round", &V::round, "Round it was cut after."},
           {"bytes", &V::bytes, "Size on disk."},
           {"created_unix_seconds", &V::created_unix_seconds, "When it was complete."}}};
}

namespace {

std::string hex_of(std::uint32_t crc) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

}  // namespace

View<CheckpointFileView> describe(const CheckpointFileView*) {
  using V = CheckpointFileView;
  return {"CheckpointFile",
          "A file of a checkpoint.",
          {{"name", &V::name, "Its name."},
           {"bytes", &V::bytes, "Its size."},
           {"crc32c", at(&V::crc32c, hex_of), "CRC-32C of all of it.", matches("^[0-9a-f]{8}$")}}};
}

View<RestoreView> describe(const RestoreView*) {
  using V = RestoreView;
  return {"Restored",
          "Where the job is now.",
          {{"path", &V::path, "Folder of the checkpoint."},
           {"version", &V::version, "Version of the parameters."},
           {"round", &V::round, "Rounds committed in it."},
           {"from_version", &V::from_version, "Version that the job had."},
           {"deleted", &V::deleted, "Newer checkpoints that were deleted."}}};
}

namespace {

struct Restore {
  bool delete_newer = false;
  friend View<Restore> describe(const Restore*) {
    using V = Restore;
    return {"Restore",
            "How the job returns.",
            {optional("delete_newer", &V::delete_newer,
                      "Delete the newer checkpoints, whose versions the job will write again.")}};
  }
};

Reply list_checkpoints(Services services, Call call) {
  const auto views = co_await services.control.checkpoints();
  const auto key = [](const CheckpointView& view) { return ListKey(view.version, view.number); };
  co_return list_page(call, views, key, true);
}

Reply make_checkpoint(Services services, Call) {
  co_return view_response(co_await services.control.make_checkpoint(), 201);
}

Reply verify_checkpoint(Services services, Call call) {
  co_return view_response(co_await services.control.verify_checkpoint(call.id()));
}

Reply restore_checkpoint(Services services, Call call) {
  CENTROID_CO_ASSIGN(const Restore asked, body_of<Restore>(call));
  co_return view_response(
      co_await services.control.restore_checkpoint(call.id(), asked.delete_newer));
}

Reply delete_checkpoint(Services services, Call call) {
  co_return view_response(co_await services.control.delete_checkpoint(call.id()));
}

Reply list_checkpoint_files(Services services, Call call) {
  CENTROID_CO_ASSIGN(const auto files, co_await services.control.checkpoint_files(call.id()));
  co_return list_page(call, files, position_in(files));
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
    return serve_file(blocking, request, offer);
  };
  co_return co_await run_on(services.blocking, std::move(open));
}

/// Responses other than the complete file.
Json file_responses() {
  const Json field = {{"schema", {{"type", "string"}}}};
  Json fields = {{"ETag", field}, {"Accept-Ranges", field}};
  fields["ETag"]["description"] = "Size and checksum of the whole file.";
  fields["Accept-Ranges"]["description"] = "bytes";
  Json range = field;
  range["description"] = "Which bytes, of how many.";
  const Json content = {
      {"application/octet-stream",
       {{"schema", {{"type", "string"}, {"description", "The bytes of the file."}}}}},
      {"application/json", {{"schema", {{"description", "Of the files that are JSON."}}}}}};
  const Json problem = {{"application/problem+json", {{"schema", reference_to(problem_schema())}}}};
  Json out;
  out["200"] = {{"headers", fields}, {"content", content}};
  out["206"] = {{"description", "The requested part."}, {"headers", fields}, {"content", content}};
  out["206"]["headers"]["Content-Range"] = range;
  out["304"] = {{"description", "The client has it."}, {"headers", fields}};
  out["412"] = {{"description", "The file has another ETag."},
                {"headers", {{"ETag", fields["ETag"]}}},
                {"content", problem}};
  out["416"] = {{"description", "The range is outside the file."},
                {"headers", {{"Content-Range", range}}},
                {"content", problem}};
  return out;
}

}  // namespace

std::vector<Route> checkpoint_routes() {
  return {
      {.path = "/v1/checkpoints",
       .id = "list_checkpoints",
       .handler = list_checkpoints,
       .summary = "What is on disk, newest first",
       .answer = page<CheckpointView>("checkpoints", "The checkpoints.", "CheckpointList",
                                      "Checkpoints on disk.")},
      {.method = "POST",
       .path = "/v1/checkpoints",
       .id = "make_checkpoint",
       .handler = make_checkpoint,
       .summary = "Write a checkpoint now",
       .description = "Answers when it is written. Where nothing has changed since the newest one, "
                      "answers with that.",
       .answer = answer<CheckpointView>("It is written.", 201),
       .span = Span::kCheckpoint},
      {.method = "DELETE",
       .path = "/v1/checkpoints/{id}",
       .id = "delete_checkpoint",
       .handler = delete_checkpoint,
       .summary = "Delete one",
       .description = "Not the newest that is sound (409).",
       .parameters = {path_part("id", "Version of the checkpoint.")},
       .answer = answer<CheckpointView>("It is deleted.")},
      {.method = "POST",
       .path = "/v1/checkpoints/{id}:verify",
       .id = "verify_checkpoint",
       .handler = verify_checkpoint,
       .summary = "Read every file of it and compare checksums",
       .parameters = {path_part("id", "Version of the checkpoint.")},
       .answer = answer<CheckpointView>("What was found: `problem` is empty when it is sound."),
       .span = Span::kCheckpoint},
      {.method = "POST",
       .path = "/v1/checkpoints/{id}:restore",
       .id = "restore_checkpoint",
       .handler = restore_checkpoint,
       .summary = "Take the job back to one, between two rounds",
       .description = "409 when newer ones are there and `delete_newer` is not true, with journals "
                      "on several servers, or when the job is over.",
       .parameters = {path_part("id", "Version of the checkpoint.")},
       .body = view_of<Restore>(),
       .answer = answer<RestoreView>("The restored state; the job continues from it."),
       .span = Span::kCheckpoint},
      {.path = "/v1/checkpoints/{id}/files",
       .id = "list_checkpoint_files",
       .handler = list_checkpoint_files,
       .summary = "Its files: name, size, CRC-32C",
       .description = "`manifest.json` is the last.",
       .parameters = {path_part("id", "Version of the checkpoint.")},
       .answer = page<CheckpointFileView>("files", "The files.", "CheckpointFileList",
                                          "Files of a checkpoint, those of the model first.")},
      {.path = "/v1/checkpoints/{id}/files/{file}",
       .id = "get_checkpoint_file",
       .handler = get_checkpoint_file,
       .role = Role::kWorker,
       .summary = "One of them, such as model.safetensors",
       .description =
           "Accepts Range, If-Range, If-Match, If-None-Match. During a download and for 60 s after "
           "it, `checkpoint.keep` does not delete the checkpoint; this protects four at once.",
       .parameters = {path_part("id", "Version of the checkpoint."),
                      path_part("file", "Name of the file."),
                      header<std::string>("Range", "One range of bytes."),
                      header<std::string>("If-Range", "Only if the file still has this ETag."),
                      header<std::string>("If-None-Match",
                                          "Not if the file still has one of these ETags."),
                      header<std::string>(
                          "If-Match", "Only if the file still has one of these ETags, else 412.")},
       .answer = {.text = "The file.", .media = "application/octet-stream"},
       .responses = file_responses()},
  };
}

}  // namespace centroid::server
