#include "transport/tls/tls.h"

#include "transport/tls/tls_files.h"
#include "transport/tls/tls_stream.h"

namespace centroid::transport {

namespace {

class TlsLayer final : public StreamLayer {
 public:
  explicit TlsLayer(TlsFiles files) : files_(std::move(files)) {}

  std::unique_ptr<ByteStream> connected(std::unique_ptr<ByteStream> inner,
                                        const Endpoint& to) override {
    return std::make_unique<TlsStream>(std::move(inner), files_.connecting_end(to.host));
  }
  std::unique_ptr<ByteStream> accepted(std::unique_ptr<ByteStream> inner) override {
    return std::make_unique<TlsStream>(std::move(inner), files_.accepting_end());
  }

 private:
  TlsFiles files_;
};

}  // namespace

Result<std::shared_ptr<StreamLayer>> make_tls(TlsOptions options) {
  CENTROID_ASSIGN(auto files, TlsFiles::open(std::move(options)));
  return std::shared_ptr<StreamLayer>(std::make_shared<TlsLayer>(std::move(files)));
}

}  // namespace centroid::transport
