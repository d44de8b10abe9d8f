// The OpenAPI document and the server say the same.
#include <algorithm>
#include <set>

#include "common/base/version.h"
#include "server/api/problem.h"
#include "server/api/routes.h"
#include "tests/component/api_fixture.h"

namespace centroid::test {
namespace {

using Json = nlohmann::json;

const Json& document() {
  static const Json kDocument = Json::parse(server::openapi_document());
  return kDocument;
}

const Json& resolve(const Json& node) {
  if (!node.contains("$ref")) return node;
  return document().at(Json::json_pointer(node.at("$ref").get<std::string>().substr(1)));
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "null" && value.is_null();
}

/// The part of JSON Schema that the document uses; problems are added to the test.
void check(const Json& value, const Json& schema_or_ref, const std::string& at) {
  const Json& schema = resolve(schema_or_ref);
  SCOPED_TRACE(at);
  static const std::set<std::string> kKnown = {
      "type",          "description", "properties",
      "required",      "items",       "enum",
      "minimum",       "maximum",     "additionalProperties",
      "default",       "const",       "oneOf",
      "discriminator", "format",      "pattern",
      "minLength",     "maxLength",   "maxItems"};
  for (const auto& [keyword, ignored] : schema.items())
    EXPECT_TRUE(kKnown.contains(keyword)) << "unchecked keyword " << keyword;
  if (schema.contains("oneOf")) {
    const Json& mapping = schema.at("discriminator").at("mapping");
    const std::string name = value.value(schema["discriminator"].value("propertyName", ""), "");
    ASSERT_TRUE(mapping.contains(name)) << value;
    check(value, Json{{"$ref", mapping.at(name)}}, at);
    return;
  }
  if (schema.contains("const")) {
    EXPECT_EQ(value, schema["const"]);
  }
  const Json types =
      schema.at("type").is_array() ? schema.at("type") : Json::array({schema.at("type")});
  const auto is_of = [&value](const Json& type) {
    return has_type(value, type.get<std::string>());
  };
  ASSERT_TRUE(std::any_of(types.begin(), types.end(), is_of)) << value << " is not " << types;
  if (schema.contains("enum")) {
    const Json& choices = schema["enum"];
    EXPECT_NE(std::find(choices.begin(), choices.end(), value), choices.end()) << value;
  }
  if (value.is_number()) {  // not null, where that may be in the place of a number
    EXPECT_GE(value, schema.value("minimum", value));
    EXPECT_LE(value, schema.value("maximum", value));
  }
  if (value.is_array()) {
    EXPECT_LE(value.size(), schema.value("maxItems", value.size()));
  }
  if (value.is_array())
    for (const Json& item : value) check(item, schema.at("items"), at + "[]");
  if (!value.is_object()) return;
  const Json properties = schema.value("properties", Json::object());
  for (const Json& name : schema.value("required", Json::array()))
    EXPECT_TRUE(value.contains(name.get<std::string>())) << "documented and not sent: " << name;
  const Json others = schema.value("additionalProperties", Json(true));
  for (const auto& [name, item] : value.items()) {
    if (properties.contains(name))
      check(item, properties[name], at + "." + name);
    else if (others.is_object())
      check(item, others, at + "." + name);
    else
      EXPECT_TRUE(others == Json(true)) << "sent and not documented: " << name;
  }
}

/// The path with something in the place of each {...}: a member's number for {id}.
std::string fill(std::string_view path, char member) {
  std::string filled;
  for (std::size_t at = 0; at < path.size(); ++at) {
    if (path[at] != '{') {
      filled.push_back(path[at]);
      continue;
    }
    const auto end = path.find('}', at);
    const std::string_view name = path.substr(at + 1, end - at - 1);
    filled.append(name == "id" ? std::string(1, member) : "some-" + std::string(name));
    at = end;
  }
  return filled;
}

std::string lower(std::string_view method) { return server::to_lower(method); }

const Json& operation_of(const server::Route& route) {
  return document().at("paths").at(std::string(route.path)).at(lower(route.method));
}

TEST(ApiOpenapi, HasExactlyTheRoutersPaths) {
  std::set<std::string> documented;
  for (const auto& [path, item] : document().at("paths").items())
    for (const auto& [method, operation] : item.items()) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      documented.insert(upper + " " + path);
    }
  std::set<std::string> routed;
  for (const server::Route& route : server::routes())
    routed.insert(std::string(route.method) + " " + std::string(route.path));
  EXPECT_EQ(documented, routed);
}

TEST(ApiOpenapi, AgreesOnAccessParametersAndBodies) {
  for (const server::Route& route : server::routes()) {
    SCOPED_TRACE(std::string(route.method) + " " + std::string(route.path));
    const Json& operation = operation_of(route);
    const Json& responses = operation.at("responses");
    const bool is_open = route.role == server::Role::kAnyone;
    EXPECT_EQ(operation.contains("security"), is_open);
    EXPECT_EQ(responses.contains("401"), !is_open);
    if (!is_open) {
      const bool hides_some = route.path == "/v1/events";  // audit.recorded
      EXPECT_EQ(responses.contains("403"),
                route.role > server::Role::kViewer || route.method != "GET" || hides_some);
      if (responses.contains("403")) {
        const std::string what = hides_some                            ? "ToAskForIt"
                                 : route.role == server::Role::kWorker ? "ToViewers"
                                                                       : "";
        EXPECT_EQ(responses["403"].at("$ref"), "#/components/responses/Forbidden" + what);
      }
    }
    EXPECT_EQ(operation.contains("requestBody"), route.method == "POST" || route.method == "PATCH");
    std::set<std::string> names, in_path;
    for (const Json& parameter : operation.value("parameters", Json::array()))
      if (parameter.at("in") == "path") names.insert(parameter.at("name"));
    for (std::size_t at = 0; (at = route.path.find('{', at)) != std::string_view::npos; ++at)
      in_path.insert(std::string(route.path.substr(at + 1, route.path.find('}', at) - at - 1)));
    EXPECT_EQ(names, in_path);
  }
}

TEST(ApiOpenapi, HasTextForEachFieldAndParameter) {
  for (const auto& [name, schema] : document().at("components").at("schemas").items()) {
    if (name == "Trace") continue;  // of Perfetto
    EXPECT_TRUE(schema.contains("description")) << name;
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [field, value] : properties.items()) {
      const bool is_list = value.value("type", Json()) == "array";
      EXPECT_TRUE(is_list || value.contains("description") || value.contains("$ref"))
          << name << "." << field;
    }
  }
  for (const server::Route& route : server::routes()) {
    EXPECT_FALSE(route.id.empty() || route.summary.empty() || route.answer.text.empty())
        << route.path;
    for (const server::Parameter& one : route.parameters) EXPECT_NE(one.text, "") << one.name;
  }
}

TEST(ApiSchema, AWrongValueIsNamedWithWhatIsExpected) {
  using OrderedJson = server::Json;
  const auto said = [](const OrderedJson& value, const OrderedJson& schema) {
    const Status status = server::check_value("x", value, schema);
    return status.ok() ? "" : status.error().message();
  };
  const OrderedJson whole = {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}};
  EXPECT_EQ(said(9, whole), "");
  EXPECT_EQ(said(9.0, whole), "");
  for (const char* wrong : {"-1", "1.5", "10", "\"9\"", "null"})
    EXPECT_EQ(said(OrderedJson::parse(wrong), whole),
              std::string("x: expected an integer from 0 to 9, got ") + wrong);
  EXPECT_EQ(said("a", {{"type", "number"}}), "x: expected a number, got \"a\"");
  EXPECT_EQ(said(-1, {{"type", "number"}, {"minimum", 0.5}}),
            "x: expected a number of at least 0.5, got -1");
  EXPECT_EQ(said("b", {{"type", "string"}, {"enum", {"a", "c", "d"}}}),
            "x: expected a, c or d, got \"b\"");
  EXPECT_EQ(said("abc", {{"type", "string"}, {"maxLength", 2}}),
            "x: expected at most 2 bytes, got 3");
  EXPECT_EQ(said(0, {{"type", "boolean"}}), "x: expected true or false, got 0");
}

TEST(ApiOpenapi, EveryTypeOfEventHasItsSchema) {
  std::set<std::string> types{"events.lost"};  // made by a stream
  for (const std::string_view type : server::event_types()) types.emplace(type);
  std::set<std::string> documented;
  const Json& event = document().at("components").at("schemas").at("Event");
  for (const auto& [type, ignored] : event.at("discriminator").at("mapping").items())
    documented.insert(type);
  EXPECT_EQ(documented, types);
  EXPECT_EQ(event.at("oneOf").size(), types.size());
}

TEST(ApiOpenapi, HasTheProgramsVersionAndEveryErrorCode) {
  EXPECT_EQ(document().at("info").at("version"), kVersion);
  std::set<std::string> codes;
  for (int code = 1; code <= 12; ++code)
    codes.insert(std::string(to_string(static_cast<ErrorCode>(code))));
  const Json listed = document()
                          .at("components")
                          .at("schemas")
                          .at("Problem")
                          .at("properties")
                          .at("code")
                          .at("enum");
  EXPECT_EQ(listed.get<std::set<std::string>>(), codes);
}

TEST_F(ApiTest, IsServedAsItIs) {
  EXPECT_EQ(request("GET", "/openapi.json").body, server::openapi_document());
}

TEST_F(ApiTest, LiveResponsesHaveExactlyTheDocumentedProperties) {
  start();
  for (const server::Route& route : server::routes()) {
    const std::string path = fill(route.path, '7');
    SCOPED_TRACE(std::string(route.method) + " " + path);
    const HttpReply reply = request(route.method, path);
    const Json& responses = operation_of(route).at("responses");
    ASSERT_TRUE(responses.contains(std::to_string(reply.status)))
        << reply.status << " is not documented";
    const Json& content = resolve(responses[std::to_string(reply.status)]).at("content");
    const std::string media =
        reply.fields.at("content-type").substr(0, reply.fields.at("content-type").find(';'));
    ASSERT_TRUE(content.contains(media)) << media;
    const Json value = media.ends_with("json") ? Json::parse(reply.body) : Json(reply.body);
    check(value, content[media].at("schema"), "body");
  }
}

TEST_F(ApiTest, ErrorsOfEveryRouteAreDocumented) {
  const auto check_reply = [](const server::Route& route, const HttpReply& reply) {
    const Json& responses = operation_of(route).at("responses");
    ASSERT_TRUE(responses.contains(std::to_string(reply.status)))
        << reply.status << " is not documented: " << reply.body;
    const Json& content = resolve(responses[std::to_string(reply.status)]).at("content");
    check(Json::parse(reply.body), content.at("application/problem+json").at("schema"), "problem");
  };
  for (const server::Route& route : server::routes()) {
    SCOPED_TRACE(route.path);
    const std::string path = fill(route.path, '8');
    check_reply(route, request(route.method, path + "?unknown=1"));
    check_reply(route, request(route.method, path, "Host: evil.example\r\n"));
    if (route.method == "GET") continue;
    for (const ErrorCode code :
         {ErrorCode::kNotFound, ErrorCode::kFailedPrecondition, ErrorCode::kResourceExhausted,
          ErrorCode::kUnavailable, ErrorCode::kInternal}) {
      const Json& responses = operation_of(route).at("responses");
      if (code == ErrorCode::kNotFound && !responses.contains("404")) continue;
      control.fail_with(Error(code, "planned"));
      check_reply(route, request(route.method, path));
    }
    check_reply(route, request(route.method, path, "Origin: http://evil.example\r\n"));
    check_reply(route, request(route.method, path, "Content-Type: text/plain\r\n", "x"));
    check_reply(route, request(route.method, path, {}, std::string(70'000, 'x')));
  }
}

}  // namespace
}  // namespace centroid::test
