#include "common/base/trace_report.h"
#include "server/api/reply.h"
#include "server/api/routes.h"

namespace centroid::server {

namespace {

/// Set during its lifetime.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

Reply get_trace(Services services, Call call) {
  const auto seconds = argument(call, "seconds").get<double>();
  const auto format = argument(call, "format").get<std::string>();
  // Millions of characters: not on the thread that answers others, and one at a time.
  if (services.is_tracing)
    co_return Error(ErrorCode::kResourceExhausted,
                    "another trace is being written: repeat in a second");
  const Flag flag(services.is_tracing);
  auto write = [seconds, format] { return trace::export_as(format, seconds); };
  auto made = co_await run_on(services.blocking, std::move(write));
  HttpResponse response;
  response.content_type = made->content_type;
  response.body = std::move(made->text);
  if (format == "html") response.fields.emplace_back("Content-Security-Policy", trace::kPagePolicy);
  co_return response;
}

Reply get_config(Services services, Call) {
  HttpResponse response;
  response.body = co_await services.control.config_json();
  co_return response;
}

Reply change_config(Services services, Call call) {
  if (call.request.body.empty())
    co_return Error(ErrorCode::kInvalidArgument,
                    "expected a JSON object of settings, such as {\"checkpoint.keep\": 5}");
  CENTROID_CO_ASSIGN(std::string text, co_await services.control.change_config(call.request.body));
  HttpResponse response;
  response.body = std::move(text);
  co_return response;
}

Json described(const char* type, const char* text) {
  return {{"type", type}, {"description", text}};
}

/// For Perfetto and chrome://tracing (common/base/trace_report.h).
Schema trace_schema() {
  const Json integer = {{"type", "integer"}}, string = {{"type", "string"}};
  Json args = {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}};
  args["properties"] = {{"round", integer}, {"name", string}, {"epoch", integer}, {"text", string}};
  Json fields;
  fields["ph"] = described("string",
                           "X: a span; M: the name of a process or a lane; i: something that "
                           "happened; C: a number as it was.");
  fields["ph"].update(one_of({"X", "M", "i", "C"}));
  fields["name"] = described("string",
                             "Of a span its stage, or its period; of what happened its type; of a "
                             "number its track.");
  fields["pid"] = integer;
  fields["tid"] = described("integer",
                            "The lane: a worker's connection, the rounds, the checkpoints. Numbers "
                            "have none.");
  fields["ts"] = described("number", "Begin, microseconds since 1970.");
  fields["dur"] = described("integer", "Microseconds.");
  fields["args"] = args;
  fields["cat"] =
      described("string", "An epoch or a round: it has stages within it, and is no work itself.");
  fields["cat"].update(one_of({"period"}));
  fields["s"] = described("string", "Of what happened: in its lane.");
  fields["s"].update(one_of({"t"}));
  const Json event = {{"type", "object"},
                      {"required", {"ph", "name", "pid", "args"}},
                      {"additionalProperties", false},
                      {"properties", fields}};
  Json unit = string;
  unit.update(one_of({"ms"}));
  const Json trace = {
      {"type", "object"},
      {"required", {"displayTimeUnit", "traceEvents"}},
      {"additionalProperties", false},
      {"properties",
       {{"displayTimeUnit", unit}, {"traceEvents", {{"type", "array"}, {"items", event}}}}}};
  return {.name = "Trace", .json = trace};
}

Answer settings(const char* text) {
  const Json json = {{"type", "object"},
                     {"description", "Effective settings by name, secrets hidden."}};
  return {.text = text, .schema = {.name = "Config", .json = json}};
}

Schema change_schema() {
  const Json json = {{"type", "object"},
                     {"description",
                      "Settings by name, in groups or with dots: {\"checkpoint.keep\": 5}. Those "
                      "whose `live` is true in GET /v1/config."},
                     {"additionalProperties", true}};
  return {.name = "ConfigChange", .json = json};
}

}  // namespace

std::vector<Route> config_routes() {
  return {
      {.path = "/v1/trace",
       .id = "get_trace",
       .handler = get_trace,
       .summary = "What the server did in the last seconds",
       .description = "Stages, rounds, what happened, what it took.",
       .parameters = {query<std::uint64_t>("seconds",
                                           "How far back; the newest 65,536 spans at most.",
                                           between(1, 60), 10),
                      query<std::string>("format",
                                         "json for Perfetto and chrome://tracing, csv for "
                                         "spreadsheets, html for a page that needs nothing else.",
                                         one_of({"json", "csv", "html"}), "json")},
       .answer = {.text = "Trace events, as Perfetto and chrome://tracing read them, or in the "
                          "requested form.",
                  .schema = trace_schema()},
       .responses = {{"200",
                      {{"content",
                        {{"text/csv", {{"schema", {{"type", "string"}}}}},
                         {"text/html", {{"schema", {{"type", "string"}}}}}}}}}}},
      {.path = "/v1/config",
       .id = "get_config",
       .handler = get_config,
       .summary = "Effective settings",
       .description =
           "Secrets are hidden. `origin` is the source of a value; `live` settings can be changed.",
       .answer = settings("The settings.")},
      {.method = "PATCH",
       .path = "/v1/config",
       .id = "change_config",
       .handler = change_config,
       .summary = "Change settings while the job runs",
       .description =
           "All of them or none. Changes survive a restart and a new leader, as long as the "
           "configured value stays the same. A standby accepts `api.*` and `log.*` only.",
       .body = change_schema(),
       .answer = settings("All settings, as they are now.")},
  };
}

}  // namespace centroid::server
