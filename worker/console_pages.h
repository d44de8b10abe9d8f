#pragma once

#include <string_view>

namespace centroid::worker {

// Texts of worker/console, built into the binary; the style is that of the server's.
std::string_view console_index_html();
std::string_view console_app_css();
std::string_view console_app_js();

}  // namespace centroid::worker
