#include "server/api/console.h"

#include "server/api/console_files.h"

namespace centroid::server {

namespace {

/// Nothing from elsewhere, no inline script or style, in no frame.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
  std::string_view path, type;
  std::string_view (*text)();
};

constexpr File kFiles[] = {
    {"/", "text/html; charset=utf-8", console_index_html},
    {"/console/app.css", "text/css; charset=utf-8", console_app_css},
    {"/console/app.js", "text/javascript; charset=utf-8", console_app_js},
    {"/console/uplot.css", "text/css; charset=utf-8", console_uplot_css},
    {"/console/uplot.js", "text/javascript; charset=utf-8", console_uplot_js},
};

bool wants_page(const HttpRequest& request) {
  const std::string* accept = request.field("accept");
  return accept != nullptr && to_lower(*accept).find("text/html") != std::string::npos;
}

}  // namespace

std::optional<HttpResponse> console_file(const HttpRequest& request, std::string_view path) {
  if (request.method != "GET" && request.method != "HEAD") return std::nullopt;
  if (path == "/" && !wants_page(request)) return std::nullopt;
  for (const File& file : kFiles) {
    if (file.path != path) continue;
    HttpResponse response;
    response.content_type = file.type;
    response.text = file.text();
    response.fields.emplace_back("Content-Security-Policy", kPolicy);
    response.fields.emplace_back("Referrer-Policy", "no-referrer");
    response.fields.emplace_back("Vary", "Accept");
    return response;
  }
  return std::nullopt;
}

}  // namespace centroid::server
