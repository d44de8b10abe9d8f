#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "server/api/http.h"

namespace centroid::server {

struct Schema;

/// HTTP status of an error code.
unsigned http_status(ErrorCode code);

/// Problem document: type, title, status, detail, instance, and our `code`.
///
/// instance  the request's path; cut to 256 bytes
/// source    RFC 9457, "Problem Details for HTTP APIs", section 3
HttpResponse make_problem(unsigned status, ErrorCode code, std::string_view detail,
                          std::string_view instance);
HttpResponse make_problem(const Error& error, std::string_view instance);

/// Of problem documents.
const Schema& problem_schema();

}  // namespace centroid::server
