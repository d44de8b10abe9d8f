#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "transport/echo.h"

namespace centroid::client {

/// Connect to a server's port of workers, or to serve_echo, and measure the way there. Blocks.
///
/// where  "HOST:PORT"
/// fails  as transport::Endpoint::parse, transport::connect_session (unreachable, wrong token) and
///        transport::measure_echo
Result<transport::EchoReport> measure(const std::string& where, const std::string& token,
                                      std::chrono::milliseconds time, std::uint32_t bytes);

/// Let others measure the way to this machine until SIGINT or SIGTERM; prints where it listens.
///
/// fails  as transport::Transport::listen
Status serve_echo(const std::string& where, const std::string& token);

}  // namespace centroid::client
