#include "worker/parallel/agreement.h"

#include <algorithm>
#include <span>

#include "common/tensor/text.h"
#include "transport/collective/collectives.h"

namespace centroid::parallel {
namespace {

constexpr std::size_t kTextBytes = 1000;

/// A notice as ranks exchange it.
struct Packed {
  std::uint64_t numbers[5];
  std::uint32_t code;  ///< 0: a success
  std::uint32_t text_bytes;
  char text[kTextBytes];
};

Packed pack(const Notice& notice) {
  Packed out{};
  std::ranges::copy(notice.numbers, out.numbers);
  out.code = notice.status.ok() ? 0 : static_cast<std::uint32_t>(notice.status.error().code());
  const std::string& text = notice.status.ok() ? notice.text : notice.status.error().message();
  out.text_bytes = static_cast<std::uint32_t>(std::min(text.size(), kTextBytes));
  std::copy_n(text.begin(), out.text_bytes, out.text);
  return out;
}

Notice unpack(const Packed& packed) {
  Notice out;
  std::ranges::copy(packed.numbers, out.numbers.begin());
  const std::string text(packed.text, std::min<std::size_t>(packed.text_bytes, kTextBytes));
  if (packed.code == 0)
    out.text = text;
  else
    out.status = Error(packed.code <= static_cast<std::uint32_t>(ErrorCode::kInternal)
                           ? static_cast<ErrorCode>(packed.code)
                           : ErrorCode::kInternal,
                       printable(text, kTextBytes));
  return out;
}

collective::CallOptions within(std::chrono::milliseconds timeout) {
  collective::CallOptions options;
  options.timeout = timeout;
  return options;
}

}  // namespace

Result<std::vector<Notice>> exchange(const collective::Group& group, const Notice& own,
                                     std::chrono::milliseconds timeout) {
  const Packed mine = pack(own);
  std::vector<Packed> all(group.world());
  const collective::ConstElements input(DType::kI32, std::as_bytes(std::span(&mine, 1)));
  const collective::Elements output(DType::kI32, std::as_writable_bytes(std::span(all)));
  CENTROID_TRY(collective::all_gather(group, input, output, within(timeout)));
  std::vector<Notice> notices;
  for (const Packed& one : all) notices.push_back(unpack(one));
  return notices;
}

Result<Notice> announce(const collective::Group& group, const Notice& own,
                        std::chrono::milliseconds timeout) {
  Packed packed = pack(own);
  const collective::Elements data(DType::kI32, std::as_writable_bytes(std::span(&packed, 1)));
  CENTROID_TRY(collective::broadcast(group, data, 0, within(timeout)));
  return unpack(packed);
}

Status first_failure(const std::vector<Notice>& notices) {
  for (std::size_t rank = 0; rank < notices.size(); ++rank)
    if (Status status = notices[rank].status; !status.ok())
      return std::move(status).error().with_context("rank " + std::to_string(rank));
  return {};
}

}  // namespace centroid::parallel
