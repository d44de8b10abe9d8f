#pragma once

#include <string>

namespace centroid {

/// Whose a file is, and who we are, for the message of a call that was not permitted: "this process
/// is user 65534 (nobody), /srv/run is user 0's (root), mode 0755". Of a path that does not exist
/// yet the folder that it would be made in; "" where nothing can be found out.
std::string rights_text(const std::string& path);

}  // namespace centroid
