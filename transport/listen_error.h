#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/system/error_code.hpp>

#include "common/base/result.h"

namespace centroid::transport {

/// Why nobody can listen at `endpoint`, who does so already where that can be known, and what to do
/// about it. `doing` is what failed: "cannot bind".
///
/// cost    a port in use: reads /proc once
Error listen_error(const std::string& endpoint, std::uint16_t port, std::string_view doing,
                   const boost::system::error_code& why);

/// "process 812 (python3)"; "a process of user 1000" where we may not look at it; "" where nobody
/// listens at the port in this network namespace. `root` is before "/proc".
std::string port_holder(std::uint16_t port, const std::string& root = "");

}  // namespace centroid::transport
