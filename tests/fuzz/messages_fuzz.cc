#include <cstddef>
#include <cstdint>

#include "common/proto/messages.h"
#include "common/proto/pulls.h"
#include "common/proto/rows.h"

/// Heads of messages from a peer: the first byte chooses the message, what decodes must survive a
/// second trip.
namespace {

template <class M>
void check(centroid::Bytes head) {
  const auto message = centroid::proto::decode<M>(head);
  if (message.ok())
    CENTROID_CHECK(centroid::proto::decode<M>(centroid::proto::encode(*message)).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace centroid::proto;
  if (size == 0) return 0;
  const centroid::Bytes head(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  switch (data[0] % 18) {
    case 0:
      check<Join>(head);
      break;
    case 1:
      check<JoinReply>(head);
      break;
    case 2:
      check<StateChunk>(head);
      break;
    case 3:
      check<RoundOpen>(head);
      break;
    case 4:
      check<Push>(head);
      break;
    case 5:
      check<PushEnd>(head);
      break;
    case 6:
      check<RoundClosed>(head);
      break;
    case 7:
      check<Finish>(head);
      break;
    case 8:
      check<Leave>(head);
      break;
    case 9:
      check<Peers>(head);
      break;
    case 10:
      check<ExchangeFailed>(head);
      break;
    case 11:
      check<RowsOpen>(head);
      break;
    case 12:
      check<RowsOpenReply>(head);
      break;
    case 13:
      check<RowsPull>(head);
      break;
    case 14:
      check<RowsPush>(head);
      break;
    case 15: {
      const auto manifest = decode_manifest(head);
      if (manifest.ok()) CENTROID_CHECK(decode_manifest(encode_manifest(*manifest)).ok());
      break;
    }
    case 16:
      check<Pull>(head);
      break;
    default:
      check<Report>(head);
  }
  return 0;
}
