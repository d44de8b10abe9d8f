#include "server/service/job_part.h"

namespace centroid::server {

Task<bool> JobPart::until_written(BlockedOn on) const {
  auto is_written = [this] {
    if (use_.is_writing) (void)disk_.hurried();
    return !use_.is_writing;
  };
  co_return co_await until(std::move(is_written), std::move(on));
}

}  // namespace centroid::server
