#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/service/operator_file.h"
#include "tests/fuzz/fuzzer.h"

/// operator.json from any bytes: an error, or a state that is read the same after it was written
/// again.
CENTROID_FUZZER(operator_files)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid::server;
  const auto state =
      parse_operator_state(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!state.ok()) return 0;
  const auto again = parse_operator_state(to_json(*state));
  if (!again.ok() || again->evictions.size() != state->evictions.size()) std::abort();
  if (again->scale != state->scale || again->settings != state->settings) std::abort();
  return 0;
}
