#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/system/error_code.hpp>

#include "common/base/result.h"

namespace centroid::transport {

/// Why listening at `endpoint` fails, which process uses the port (if known), and what to do.
/// `doing` is the failed call: "cannot bind".
///
/// cost    a port in use: reads /proc once
Error listen_error(const std::string& endpoint, std::uint16_t port, std::string_view doing,
                   const boost::system::error_code& why);

/// "process 812 (python3)"; "a process of user 1000" if it is not ours to inspect; "" without a
/// listener at the port in this network namespace. `root` is the prefix of "/proc".
std::string port_holder(std::uint16_t port, const std::string& root = "");

}  // namespace centroid::transport
