#pragma once

#include <string>
#include <vector>

namespace centroid::server {

struct Family;

std::string make_openapi(const std::vector<Family>& families);

/// The OpenAPI 3.1 document of all routes and views.
const std::string& openapi_document();

}  // namespace centroid::server
