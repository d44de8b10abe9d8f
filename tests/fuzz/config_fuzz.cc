#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/config/server_config.h"
#include "tests/fuzz/fuzzer.h"

/// Settings from any bytes, as a file brings them and as PATCH /v1/config does: an error and
/// nothing has changed, or settings that are valid together.
CENTROID_FUZZER(config)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const std::string text(reinterpret_cast<const char*>(data), size);
  server::ServerConfig config;
  config.run_id = "fuzz";
  config::Schema schema("centroid-server", "fuzzed");
  server::register_fields(schema, config);
  const std::string before = schema.effective_json();
  const auto check = [&config](const std::vector<config::Schema::Change>&) {
    server::ServerConfig trial = config;
    return finish(trial);
  };
  const auto changed = schema.change(text, "PATCH", check);
  if (!changed.ok() && schema.effective_json() != before) std::abort();
  server::ServerConfig trial = config;
  if (changed.ok() && !finish(trial).ok()) std::abort();
  if (schema.load_text(text, "file").ok()) (void)finish(config);
  return 0;
}
