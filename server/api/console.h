#pragma once

#include <optional>
#include <string_view>

#include "server/api/http.h"

namespace centroid::server {

/// A file of the console (server/api/console, built into the binary): the page at "/" for a browser
/// that accepts text/html, else "/console/NAME"; nothing for other requests. The files contain no
/// data and need no token; the page calls REST.
std::optional<HttpResponse> console_file(const HttpRequest& request, std::string_view path);

}  // namespace centroid::server
