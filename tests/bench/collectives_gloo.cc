// Built only where Debian's libgloo-dev is installed; the product never needs it.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <map>

#include "tests/bench/collectives_bench.h"

namespace centroid::bench {
namespace {

enum class Kind { kNewRing, kRingChunked, kHalvingDoubling, kRingSync, kHalvingDoublingSync };

class Gloo final : public Contestant {
 public:
  Gloo(const Place& place, Kind kind) : kind_(kind) {
    gloo::transport::tcp::attr attribute(place.hosts[place.rank].c_str());
    auto device = gloo::transport::tcp::CreateDevice(attribute);
    gloo::rendezvous::FileStore store(place.folder);
    context_ = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(place.rank),
                                                           static_cast<int>(place.world));
    context_->connectFullMesh(store, device);
    if (kind == Kind::kRingSync || kind == Kind::kHalvingDoublingSync) {
      for (int i = 0; i < static_cast<int>(place.world); ++i)
        if (auto& pair = context_->getPair(i)) pair->setSync(true, false);
    }
  }

  void reduce(float* data, std::uint64_t count) override {
    if (kind_ == Kind::kNewRing) {
      gloo::AllreduceOptions options(context_);
      options.setOutput(data, count);
      void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
      options.setReduceFunction(sum);
      gloo::allreduce(options);
      return;
    }
    auto& algorithm = algorithms_[{data, count}];
    if (!algorithm) algorithm = make(data, static_cast<int>(count));
    algorithm->run();
  }

 private:
  std::unique_ptr<gloo::Algorithm> make(float* data, int count) {
    const std::vector<float*> pointers{data};
    const std::shared_ptr<gloo::Context> context = context_;
    if (kind_ == Kind::kRingChunked)
      return std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, count);
    if (kind_ == Kind::kRingSync)
      return std::make_unique<gloo::AllreduceRing<float>>(context, pointers, count);
    return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, count);
  }

  const Kind kind_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::map<std::pair<float*, std::uint64_t>, std::unique_ptr<gloo::Algorithm>> algorithms_;
};

Entry entry(const std::string& name, Kind kind) {
  // The two with blocking writes on both sides stand still when a message is large.
  const bool is_sync = kind == Kind::kRingSync || kind == Kind::kHalvingDoublingSync;
  return {name, [kind](const Place& place) { return std::make_unique<Gloo>(place, kind); },
          is_sync ? std::uint64_t{1} << 20 : ~std::uint64_t{0}};
}

}  // namespace

std::vector<Entry> gloo_entries() {
  return {entry("gloo_new_ring", Kind::kNewRing), entry("gloo_ring_chunked", Kind::kRingChunked),
          entry("gloo_hd", Kind::kHalvingDoubling), entry("gloo_ring_sync", Kind::kRingSync),
          entry("gloo_hd_sync", Kind::kHalvingDoublingSync)};
}

}  // namespace centroid::bench
