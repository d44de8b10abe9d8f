#include "transport/collective/call.h"

namespace centroid::collective {

bool Call::takes_pieces(std::uint32_t receive) const {
  const ReceiveStep& step = plan_.schedule.receives[receive];
  return step.combines && is_received(step.after);
}

void Call::take_piece(std::uint32_t receive, std::uint64_t offset, Bytes piece) {
  ReceiveStep part = plan_.schedule.receives[receive];
  part.to.offset += offset;
  part.to.bytes = piece.size();
  part.own.offset += offset;
  part.own.bytes = piece.size();
  combine(part, piece);
}

}  // namespace centroid::collective
