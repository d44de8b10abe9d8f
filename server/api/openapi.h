#pragma once

#include <string_view>

namespace centroid::server {

/// The OpenAPI 3.1 document (openapi.json, put into the binary by the build).
std::string_view openapi_document();

}  // namespace centroid::server
