#include "server/config/server_config.h"

/// Settings of REST beside its address and tokens.
namespace centroid::server {

void register_api(config::Schema& s, ServerConfig& c) {
  s.field("api.max_connections", &c.api.max_connections,
          {.text = "connections of REST at most; beyond them the newest that has asked nothing yet "
                   "makes room",
           .unit = "connections",
           .min = 1,
           .max = 65536,
           .live = true});
  s.field("api.max_streams", &c.api.max_streams,
          {.text = "responses of REST that are sent piece by piece (events, files), of its "
                   "connections",
           .unit = "responses",
           .min = 1,
           .max = 65536,
           .live = true});
  s.field("api.rate", &c.api.rate,
          {.text = "requests a second that one address may send to REST, after a second's worth at "
                   "once; 0: no bound, as behind a proxy that all come through",
           .unit = "requests/s",
           .max = 1'000'000,
           .live = true});
  s.field("api.header_limit", &c.api.header_limit,
          {.text = "largest request line and fields of REST",
           .unit = "bytes",
           .min = 1024,
           .max = 1u << 20,
           .live = true});
  s.field("api.body_limit", &c.api.body_limit,
          {.text = "largest body of a request of REST",
           .unit = "bytes",
           .min = 1024,
           .max = 16u << 20,
           .live = true});
  s.field("api.idle_timeout", &c.api.idle_timeout,
          {.text = "REST: time from a response to the next request of a connection",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("api.read_timeout", &c.api.read_timeout,
          {.text = "REST: time from the first to the last byte of a request",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("api.write_timeout", &c.api.write_timeout,
          {.text = "REST: time in which a client must take a response, or a piece of a stream",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("api.advertise", &c.identity.api_advertise,
          {.text = "etcd: HOST:PORT (or HOST) of its REST interface, when it is not api.listen"},
          "api-advertise");
}

}  // namespace centroid::server
