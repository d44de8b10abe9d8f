#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/command.h"
#include "client/http.h"

namespace centroid::client {

struct Session;

/// Bytes `begin` to `begin + count` of a file (GET with Range); status 206 if the server returns
/// only these.
/// fails  as `ask`
Result<Answer> request_part(const Remote& remote, const std::string& path, std::uint64_t begin,
                            std::uint64_t count);

/// `checkpoints get`.
void add_get(CLI::App& group, const std::shared_ptr<Session>& session, int& status);

}  // namespace centroid::client
