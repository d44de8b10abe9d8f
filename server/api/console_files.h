#pragma once

#include <string_view>

namespace centroid::server {

// Texts of server/api/console, built into the binary.
std::string_view console_index_html();
std::string_view console_app_css();
std::string_view console_app_js();
std::string_view console_uplot_css();
std::string_view console_uplot_js();

}  // namespace centroid::server
