#pragma once

#include <string>

#include "common/base/result.h"

namespace centroid {

/// Notify the service manager that started this process (systemd, `Type=notify`) of its state, such
/// as "READY=1" or "STOPPING=1". Does nothing where no manager asked for it.
///
/// thread  any; does not block
/// fails   unavailable: $NOTIFY_SOCKET cannot be reached
/// source  sd_notify(3), "Standalone Implementations"
Status notify_service_manager(const std::string& state);

}  // namespace centroid
