#pragma once

#include "transport/http/http.h"

namespace centroid::server {

using transport::BodyStream;
using transport::HttpFields;
using transport::HttpRequest;
using transport::HttpResponse;
using transport::to_lower;

}  // namespace centroid::server
