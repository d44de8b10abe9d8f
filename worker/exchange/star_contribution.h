#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "worker/exchange/round_state.h"
#include "worker/exchange/shard_routes.h"

namespace centroid::worker {

/// The contribution of exchange star: chunks of ready tensors, checked for NaN and infinity and
/// encoded, to the servers that own them.
///
/// thread  the link's executor
class StarContribution {
 public:
  StarContribution(LinkContext& link, RoundState& round, ShardRoutes& routes)
      : link_(link), round_(round), routes_(routes) {}

  /// fails  the codec cannot be made
  Status open();
  std::string codec() const { return codec_->spec(); }
  /// Send tensors as they become ready, then PushEnd; returns early when the attempt changes.
  Task<Status> send(transport::Session& leader, proto::RoundOpen open);

 private:
  struct Payload {
    Bytes bytes;
    std::optional<std::uint32_t> crc;
  };
  bool is_over(const transport::Session& session, const proto::RoundOpen& open) const {
    return session.is_closed() || !round_.is_current(open);
  }
  Task<Status> send_chunk(transport::Session& session, const Chunk& chunk,
                          const proto::RoundOpen& open);
  bool check_plain(std::span<const float> values, bool needs_crc, Payload& out);
  Result<bool> encode(const Chunk& chunk, const proto::RoundOpen& open, Payload& out);
  Result<Bytes> encoded(const Chunk& chunk, const proto::RoundOpen& open);

  LinkContext& link_;
  RoundState& round_;
  ShardRoutes& routes_;
  std::unique_ptr<Codec> codec_;
  std::vector<std::byte> encoded_;
  double squares_ = 0;  // of the numbers sent in this attempt, as they are decoded
};

}  // namespace centroid::worker
