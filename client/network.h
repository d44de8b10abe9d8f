#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "transport/echo.h"
#include "transport/stream_layer.h"

namespace centroid::client {

/// Credentials of workers' connections.
struct Access {
  std::string token;
  std::shared_ptr<transport::StreamLayer> tls;  ///< none: plain
};

/// Connect to a server's port of workers, or to serve_echo, and measure the path there. Blocks.
///
/// where  "HOST:PORT"
/// fails  as transport::Endpoint::parse, transport::connect_session (unreachable, wrong token) and
///        transport::measure_echo
Result<transport::EchoReport> measure(const std::string& where, const Access& access,
                                      std::chrono::milliseconds time, std::uint32_t bytes);

/// Let others measure the path to this machine until SIGINT or SIGTERM; prints its address.
///
/// fails  as transport::Transport::listen
Status serve_echo(const std::string& where, const Access& access);

}  // namespace centroid::client
