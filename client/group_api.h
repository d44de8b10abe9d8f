#pragma once

#include <cstdint>

#include "client/centroid.h"
#include "client/group_rendezvous.h"

namespace centroid::c_boundary {

/// Of memory that a caller gives: their bytes are no overflow.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56;

/// The options of a rank, as a caller gives them.
///
/// fails  invalid_argument, unimplemented: as `asked`; as make_tls
Result<client::PeerOptions> peer_options_of(const centroid_group_options* given);

}  // namespace centroid::c_boundary
