#pragma once

#include <optional>
#include <string_view>

#include "server/api/http.h"

namespace centroid::server {

/// A file of the console (server/api/console, put into the binary by the build): the page at "/"
/// for a browser that asks for text/html, else "/console/NAME"; nothing for every other request.
/// The files hold no data and need no token; what they show they ask of REST.
std::optional<HttpResponse> console_file(const HttpRequest& request, std::string_view path);

}  // namespace centroid::server
