#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "tests/fuzz/fuzzer.h"
#include "transport/http/http_exchange.h"

namespace {

using namespace centroid;
using namespace centroid::transport;

/// What a client sends, in pieces of a given size.
class Sent final : public ByteStream {
 public:
  Sent(Executor executor, std::string_view bytes, std::size_t piece)
      : executor_(std::move(executor)), rest_(bytes), piece_(piece) {}
  Moved try_read(MutableBytes into) override {
    const std::size_t count = std::min({into.size(), rest_.size(), piece_});
    if (count == 0) return {0, boost::asio::error::eof};
    std::memcpy(into.data(), rest_.data(), count);
    rest_.remove_prefix(count);
    return {count, {}};
  }
  Moved try_write(std::span<const Bytes> parts) override {
    std::size_t count = 0;
    for (const Bytes part : parts) count += part.size();
    return {count, {}};
  }
  Task<Moved> read_some(MutableBytes into) override { co_return try_read(into); }
  Task<Moved> write_some(std::span<const Bytes> parts) override { co_return try_write(parts); }
  void close() noexcept override {}
  std::string peer() const override { return "127.0.0.1:1"; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  std::string_view rest_;
  const std::size_t piece_;
};

struct Any final : HttpService {
  Task<HttpResponse> answer(HttpRequest) override { co_return HttpResponse(); }
  HttpResponse refuse(unsigned, const std::string&, const std::string&) override { return {}; }
};

/// The requests that are read, up to the first that is refused.
Task<void> read_all(std::string_view bytes, std::size_t piece, std::vector<std::string>* out) {
  const Executor executor = co_await boost::asio::this_coro::executor;
  HttpStream stream(std::make_unique<Sent>(executor, bytes, piece));
  Any service;
  const HttpLimits limits;
  for (bool goes_on = true; goes_on;) {
    const bool is_here = co_await wait_for_request(stream, limits);
    if (!is_here) break;
    const HttpIncoming incoming = co_await read_request(stream, limits, service);
    goes_on = incoming.keep_alive;
    if (!incoming.request) break;
    std::string text = incoming.request->method + "\n" + incoming.request->target + "\n";
    for (const auto& [name, value] : incoming.request->fields) text += name + ":" + value + "\n";
    out->push_back(text + "\n" + incoming.request->body);
  }
}

std::vector<std::string> requests_in(std::string_view bytes, std::size_t piece) {
  boost::asio::io_context context;
  std::vector<std::string> out;
  boost::asio::co_spawn(context, read_all(bytes, piece, &out), [](const std::exception_ptr&) {});
  context.run();
  return out;
}

}  // namespace

/// Bytes at the port of REST: where a request ends, and what it says, does not depend on the pieces
/// in which they come.
CENTROID_FUZZER(http)(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (requests_in(bytes, 1 + data[0] % 32) != requests_in(bytes, bytes.size() + 1)) std::abort();
  return 0;
}
