#include "server/api/openapi.h"

#include <map>

#include "common/base/version.h"
#include "server/api/problem.h"
#include "server/api/route.h"

namespace centroid::server {

namespace {

/// A problem response of routes, as a component of the document.
struct Refusal {
  unsigned status;
  const char* name;
  const char* text;
  const char* field = nullptr;  ///< that comes with it
  const char* field_text = nullptr;
};

constexpr std::string_view kRetry = "Retry-After";

constexpr Refusal kRefusals[] = {
    {400, "BadRequest", "Malformed request: the detail names the part."},
    {401, "Unauthorized", "No bearer token, or not the server's, or it has expired.",
     "WWW-Authenticate", "The scheme that is expected: Bearer."},
    {403, "Forbidden",
     "The token's role may not do this, or the request was sent by a page of another origin."},
    {403, "ForbiddenToViewers",
     "The token's role is viewer, and this is the model: a token of the role worker or admin may."},
    {403, "ForbiddenToAskForIt",
     "The token's role may see none of the requested types (`audit.recorded` needs the role "
     "admin). If it may see some, the answer has those."},
    {404, "NotFound", "No such thing."},
    {409, "Conflict", "Not possible in the present state; do not repeat unchanged."},
    {413, "TooLarge", "The body is over the limit."},
    {415, "UnsupportedMedia", "The body is not JSON.", "Accept-Post",
     "Media type that is expected."},
    {421, "Misdirected", "The server listens on loopback and the Host is not its own."},
    {422, "Unprocessable", "Another request had this Idempotency-Key."},
    {429, "Busy", "A bound was hit: wait and repeat.", "Retry-After",
     "Seconds to wait before the next try."},
    {431, "HeadersTooLarge", "The request line and fields are over the limit."},
    {500, "Internal", "A fault of the server; its log has more."},
    {503, "Unavailable", "Not now: not ready, stopping, or out of connections.", "Retry-After",
     "Seconds to wait before the next try."},
    {504, "TooSlow", "No answer within the deadline; an action may still happen."},
};

bool is_change(const Route& route) { return route.method != "GET"; }

bool may_refuse(const Route& route, const Refusal& refusal) {
  switch (refusal.status) {
    case 401:
      return route.role != Role::kAnyone;
    case 403:
      return refusal.name == std::string_view(route.role == Role::kAdmin    ? "Forbidden"
                                              : route.role == Role::kWorker ? "ForbiddenToViewers"
                                                                            : "");
    case 404:
      return route.path.find('{') != std::string_view::npos;
    case 409:
    case 413:
    case 415:
    case 422:
      return is_change(route);
    default:
      return true;
  }
}

Json json_content(const Schema& schema) {
  return {{"application/json", {{"schema", reference_to(schema)}}}};
}

Json responses_of(const Route& route) {
  const Answer& answer = route.answer;
  Json responses = Json::object();
  Json& success = responses[std::to_string(answer.status)];
  success["description"] = answer.text;
  Json& schema = success["content"][answer.media]["schema"];
  if (!answer.schema.name.empty())
    schema = reference_to(answer.schema);
  else
    schema = {{"type", answer.media == "application/json" ? "object" : "string"}};
  for (const Refusal& refusal : kRefusals)
    if (may_refuse(route, refusal))
      responses[std::to_string(refusal.status)] = {
          {"$ref", std::string("#/components/responses/") + refusal.name}};
  if (!route.responses.is_null()) responses.merge_patch(route.responses);
  std::map<std::string, Json> by_status;
  for (const auto& [status, response] : responses.items()) by_status[status] = response;
  return Json(by_status);
}

/// Of every change.
Parameter idempotency_key() {
  Parameter key = header<std::string>(
      "Idempotency-Key",
      "A request that is sent again with the same key, by the same caller within an hour and "
      "before the server is started again, is not done again: it gets the answer of the first one, "
      "with `Idempotency-Replayed: true`.");
  key.schema.update({{"minLength", 1}, {"maxLength", 128}, {"pattern", "^[!-~]+$"}});
  return key;
}

Json parameters_of(const Route& route) {
  std::vector<Parameter> all = route.parameters;
  if (is_change(route)) all.push_back(idempotency_key());
  Json parameters = Json::array();
  for (const Parameter& one : all)
    parameters.push_back({{"name", one.name},
                          {"in", one.in},
                          {"required", one.in == "path"},
                          {"description", one.text},
                          {"schema", one.schema}});
  return parameters;
}

/// The body of a request without fields.
const Schema& empty_body() {
  static const Schema kEmpty{.name = "Empty",
                             .json = {{"type", "object"},
                                      {"description", "No members are known."},
                                      {"additionalProperties", false}}};
  return kEmpty;
}

Json body_of(const Route& route) {
  const Schema& body = route.body.name.empty() ? empty_body() : route.body;
  Json out;
  out["required"] = body.json.contains("required") || body.json["additionalProperties"] == true;
  if (&body == &empty_body()) out["description"] = "Nothing, or an empty object.";
  out["content"] = json_content(body);
  return out;
}

Json operation_of(const Route& route) {
  Json operation;
  operation["operationId"] = route.id;
  operation["tags"] = Json::array({route.tag});
  operation["summary"] = route.summary;
  if (!route.description.empty()) operation["description"] = route.description;
  if (route.role == Role::kAnyone) operation["security"] = Json::array();
  if (Json parameters = parameters_of(route); !parameters.empty())
    operation["parameters"] = std::move(parameters);
  if (route.method == "POST" || route.method == "PATCH") operation["requestBody"] = body_of(route);
  operation["responses"] = responses_of(route);
  return operation;
}

/// A schema, and those that it refers to.
void add_schema(const Schema& schema, Json& schemas) {
  if (schema.name.empty() || schemas.contains(schema.name)) return;
  schemas[schema.name] = schema.json;
  for (const Schema* part : schema.parts) add_schema(*part, schemas);
}

Json components(const std::vector<Family>& families) {
  Json out;
  out["securitySchemes"]["bearer"] = {
      {"type", "http"},
      {"scheme", "bearer"},
      {"description", "The server's token; not needed when the server has none (loopback only)."}};
  for (const Refusal& refusal : kRefusals) {
    Json& response = out["responses"][refusal.name];
    response["description"] = refusal.text;
    if (refusal.field != nullptr)
      response["headers"][refusal.field] = {
          {"description", refusal.field_text},
          {"schema", {{"type", refusal.field == kRetry ? "integer" : "string"}}}};
    response["content"]["application/problem+json"]["schema"] = reference_to(problem_schema());
  }
  Json& schemas = out["schemas"];
  for (const Family& family : families)
    for (const Route& route : family.routes) {
      add_schema(route.answer.schema, schemas);
      add_schema(route.body, schemas);
    }
  add_schema(empty_body(), schemas);
  add_schema(problem_schema(), schemas);
  return out;
}

}  // namespace

std::string make_openapi(const std::vector<Family>& families) {
  Json out;
  out["openapi"] = "3.1.0";
  out["info"] = {
      {"title", "Centroid control plane"},
      {"version", kVersion},
      {"summary", "See and steer one training cluster."},
      {"description",
       "Every GET path also takes HEAD, every path OPTIONS. Other methods get 405 with Allow. "
       "Errors are problem documents (RFC 9457). Numbers that are not finite are null. Every "
       "answer carries X-Request-Id: the client's own when it sent one of letters, digits, '.', "
       "'-' and '_'."},
      {"license", {{"name", "Apache License 2.0"}, {"identifier", "Apache-2.0"}}}};
  out["servers"] = Json::array();
  out["servers"].push_back(
      {{"url", "/"}, {"description", "The server that serves this document."}});
  out["security"] = Json::array();
  out["security"].push_back({{"bearer", Json::array()}});
  for (const Family& family : families) {
    out["tags"].push_back({{"name", family.tag}, {"description", family.text}});
    for (const Route& route : family.routes)
      out["paths"][std::string(route.path)][to_lower(route.method)] = operation_of(route);
  }
  out["components"] = components(families);
  return out.dump(2) + "\n";
}

}  // namespace centroid::server
