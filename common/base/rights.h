#pragma once

#include <string>

namespace centroid {

/// The owner of a file and the user of this process, for the message of a denied call: "this
/// process is user 65534 (nobody), /srv/run is user 0's (root), mode 0755". For a missing path, its
/// folder; "" if nothing can be determined.
std::string rights_text(const std::string& path);

}  // namespace centroid
