#include "server/config/server_config.h"

/// Settings of REST beside its address and tokens.
namespace centroid::server {

void register_api(config::Schema& s, ServerConfig& c) {
  s.section("REST");
  s.field("api.max_connections", &c.api.max_connections,
          {.text = "maximum number of connections of REST; beyond it the oldest connection without "
                   "a request is closed",
           .unit = "connections",
           .min = 1,
           .max = 65536,
           .live = true});
  s.field("api.max_streams", &c.api.max_streams,
          {.text = "maximum number of streamed responses of REST (events, files)",
           .unit = "responses",
           .min = 1,
           .max = 65536,
           .live = true});
  s.field("api.rate", &c.api.rate,
          {.text = "requests per second that REST accepts from one address, with a burst of one "
                   "second; 0: no limit, such as behind a proxy",
           .unit = "requests/s",
           .max = 1'000'000,
           .live = true});
  s.field("api.header_limit", &c.api.header_limit,
          {.text = "largest request line and header fields of REST",
           .unit = "bytes",
           .min = 1024,
           .max = 1u << 20,
           .live = true});
  s.field("api.body_limit", &c.api.body_limit,
          {.text = "largest request body of REST",
           .unit = "bytes",
           .min = 1024,
           .max = 16u << 20,
           .live = true});
  s.field("api.idle_timeout", &c.api.idle_timeout,
          {.text = "close a connection of REST that is idle for this long",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("api.read_timeout", &c.api.read_timeout,
          {.text = "maximum time to receive a request of REST",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field(
      "api.advertise", &c.identity.api_advertise,
      {.text = "etcd: HOST:PORT (or HOST) where REST is reached, if it differs from api.listen"});
}
}  // namespace centroid::server
