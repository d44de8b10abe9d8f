// The OpenAPI document and the server say the same.
#include <algorithm>
#include <set>

#include "common/base/version.h"
#include "server/api/openapi.h"
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
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "null" && value.is_null();
}

/// The part of JSON Schema that the document uses; problems are added to the test.
void check(const Json& value, const Json& schema_or_ref, const std::string& at) {
  const Json& schema = resolve(schema_or_ref);
  SCOPED_TRACE(at);
  static const std::set<std::string> kKnown = {
      "type",    "description", "properties",           "required", "items", "enum",
      "minimum", "maximum",     "additionalProperties", "default"};
  for (const auto& [keyword, ignored] : schema.items())
    EXPECT_TRUE(kKnown.contains(keyword)) << "unchecked keyword " << keyword;
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
  if (schema.contains("minimum")) {
    EXPECT_GE(value, schema["minimum"]);
  }
  if (schema.contains("maximum")) {
    EXPECT_LE(value, schema["maximum"]);
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

/// The path with a member's number in the place of {id}.
std::string fill_id(std::string_view path, char member) {
  const auto at = path.find("{id}");
  std::string filled(path.substr(0, at));
  if (at == std::string_view::npos) return filled;
  filled.push_back(member);
  return filled.append(path.substr(at + 4));
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
    SCOPED_TRACE(route.path);
    const std::string method = route.method == "GET" ? "get" : "post";
    const Json& operation = document().at("paths").at(std::string(route.path)).at(method);
    EXPECT_EQ(operation.contains("security"), route.access == server::Access::kPublic);
    EXPECT_EQ(operation.at("responses").contains("401"), route.access == server::Access::kToken);
    EXPECT_EQ(operation.contains("requestBody"), route.method == "POST");
    std::set<std::string> names;
    for (const Json& parameter : operation.value("parameters", Json::array()))
      names.insert(parameter.at("name"));
    std::set<std::string> expected;
    if (route.path.find("{id}") != std::string_view::npos) expected.insert("id");
    if (route.has_limit) expected.insert("limit");
    EXPECT_EQ(names, expected);
    if (!route.has_limit) continue;
    const Json& schema = operation.at("parameters").at(0).at("schema");
    EXPECT_EQ(schema.at("maximum"), server::kMaxRounds);
    EXPECT_EQ(schema.at("default"), server::kDefaultRounds);
  }
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
    const std::string path = fill_id(route.path, '7');
    SCOPED_TRACE(std::string(route.method) + " " + path);
    const HttpReply reply = request(route.method, path);
    const std::string method = route.method == "GET" ? "get" : "post";
    const Json& responses =
        document().at("paths").at(std::string(route.path)).at(method).at("responses");
    ASSERT_TRUE(responses.contains(std::to_string(reply.status)))
        << reply.status << " is not documented";
    const Json& content = resolve(responses[std::to_string(reply.status)]).at("content");
    const std::string media =
        reply.fields.at("content-type").substr(0, reply.fields.at("content-type").find(';'));
    ASSERT_TRUE(content.contains(media)) << media;
    const Json value = media == "application/json" ? Json::parse(reply.body) : Json(reply.body);
    check(value, content[media].at("schema"), "body");
  }
}

TEST_F(ApiTest, ErrorsOfEveryRouteAreDocumented) {
  const auto check_reply = [](const server::Route& route, const HttpReply& reply) {
    const std::string method = route.method == "GET" ? "get" : "post";
    const Json& responses =
        document().at("paths").at(std::string(route.path)).at(method).at("responses");
    ASSERT_TRUE(responses.contains(std::to_string(reply.status)))
        << reply.status << " is not documented: " << reply.body;
    const Json& content = resolve(responses[std::to_string(reply.status)]).at("content");
    check(Json::parse(reply.body), content.at("application/problem+json").at("schema"), "problem");
  };
  for (const server::Route& route : server::routes()) {
    SCOPED_TRACE(route.path);
    const std::string path = fill_id(route.path, '8');
    check_reply(route, request(route.method, path + "?unknown=1"));
    check_reply(route, request(route.method, path, "Host: evil.example\r\n"));
    if (route.method != "POST") continue;
    for (const ErrorCode code :
         {ErrorCode::kNotFound, ErrorCode::kFailedPrecondition, ErrorCode::kResourceExhausted,
          ErrorCode::kUnavailable, ErrorCode::kInternal}) {
      if (code == ErrorCode::kNotFound && path.find(":drain") == std::string::npos) continue;
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
