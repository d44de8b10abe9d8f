#include <algorithm>
#include <cctype>
#include <fstream>

#include "transport/transport.h"

namespace centroid::transport {

// The id of this boot of the kernel: containers share it, virtual machines do not.
std::string this_node() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id)) return "";
  const auto is_odd = [](unsigned char c) { return std::isxdigit(c) == 0 && c != '-'; };
  if (id.size() > 64 || std::any_of(id.begin(), id.end(), is_odd)) return "";
  return id;
}

}  // namespace centroid::transport
