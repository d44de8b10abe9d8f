#pragma once

#include "client/centroid.h"
#include "client/group_rendezvous.h"

namespace centroid::c_boundary {

/// The options of a rank, as a caller gives them.
///
/// fails  invalid_argument, unimplemented: as `asked`; as make_tls
Result<client::PeerOptions> peer_options_of(const centroid_group_options* given);

}  // namespace centroid::c_boundary
