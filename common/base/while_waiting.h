#pragma once

namespace centroid {

using Look = void (*)();

/// What this thread calls every 50 ms while it waits for a Condition, for example to notice Ctrl-C;
/// nullptr: nothing. It must not throw. Not in a simulation.
extern thread_local constinit Look while_waiting;

}  // namespace centroid
