#pragma once

#include <string>
#include <vector>

namespace centroid::server {

struct Family;

/// The OpenAPI 3.1 document of these routes and their views.
std::string make_openapi(const std::vector<Family>& families);

}  // namespace centroid::server
