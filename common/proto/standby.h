#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"

namespace centroid::proto {

/// What a standby answers to a Join: unavailable, with the leader's data endpoint where one is
/// known. The text is part of the protocol (docs/wire.md, "Several servers").
Error standby_error(const std::string& leader, const std::string& endpoint);

/// The leader's endpoint that a standby's refusal names, as HOST:PORT; nothing for other errors.
std::optional<std::string> leader_named_by(const Error& refusal);

}  // namespace centroid::proto
