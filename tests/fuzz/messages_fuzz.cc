#include <cstddef>
#include <cstdint>
#include <iterator>

#include "common/proto/about.h"
#include "common/proto/messages.h"
#include "common/proto/pulls.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "tests/fuzz/fuzzer.h"

/// Heads of messages from a peer: the first byte chooses the message, what decodes must survive a
/// second trip.
namespace {

template <class M>
void check(centroid::Bytes head) {
  const auto message = centroid::proto::decode<M>(head);
  if (message.ok())
    CENTROID_CHECK(centroid::proto::decode<M>(centroid::proto::encode(*message)).ok());
}

void check_manifest(centroid::Bytes head) {
  const auto manifest = centroid::proto::decode_manifest(head);
  if (manifest.ok())
    CENTROID_CHECK(
        centroid::proto::decode_manifest(centroid::proto::encode_manifest(*manifest)).ok());
}

}  // namespace

CENTROID_FUZZER(messages)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid::proto;
  if (size == 0) return 0;
  const centroid::Bytes head(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  // In the order of tests/fuzz/make_corpus.py.
  static constexpr void (*kChecks[])(centroid::Bytes) = {
      check<Join>,          check<JoinReply>, check<StateChunk>,     check<RoundOpen>,
      check<Push>,          check<PushEnd>,   check<RoundClosed>,    check<Finish>,
      check<Leave>,         check<Peers>,     check<ExchangeFailed>, check<RowsOpen>,
      check<RowsOpenReply>, check<RowsPull>,  check<RowsPush>,       check_manifest,
      check<Pull>,          check<Report>,    check<ServerJoin>,     check<ServerTerms>,
      check<ServerModel>,   check<Route>,     check<Merge>,          check<MergeReply>,
      check<Whole>,         check<Opened>,    check<Tokens>,         check<Enter>,
      check<ServerReport>,  check<Beat>,      check<BeatReply>,      check<Kept>};
  kChecks[data[0] % std::size(kChecks)](head);
  return 0;
}
