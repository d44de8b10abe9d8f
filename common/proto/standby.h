#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"

namespace centroid::proto {

/// What a standby answers to a Join: unavailable, with the leader's data endpoint where one is
/// known. The text is part of the protocol (docs/reference/wire.md, "Several servers").
Error standby_error(const std::string& leader, const std::string& endpoint);

/// The leader's endpoint that a standby's refusal names, as HOST:PORT; nothing for other errors.
std::optional<std::string> leader_named_by(const Error& refusal);

/// What a server answers to a Join that it cannot take yet: unavailable, with what it waits for
/// itself. Who hears it comes again, for as long as it is told so. Part of the protocol as above.
Error not_yet_error(const std::string& why);
bool is_not_yet(const Error& refusal);

}  // namespace centroid::proto
