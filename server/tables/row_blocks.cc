#include "server/tables/row_blocks.h"

#include <algorithm>
#include <cstring>

namespace centroid::server {
namespace {

static_assert(proto::kPushesEntryBytes == 16 + PushWindows::kWindow / 8);

std::size_t row_bytes(const RowSpec& spec) {
  return sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t) +
         sizeof(float) * (spec.dim + spec.slot_floats());
}

template <class T>
void put(std::vector<std::byte>& out, const std::vector<T>& from, std::size_t first,
         std::size_t count) {
  const auto bytes = std::as_bytes(std::span(from).subspan(first, count));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void take(Bytes& from, std::vector<T>& into, std::size_t count) {
  into.resize(count);
  if (count > 0) std::memcpy(into.data(), from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
}

Error misfit(const std::string& what, std::uint64_t bytes, std::uint64_t expected) {
  return Error(ErrorCode::kInvalidArgument, "the payload of " + what + " is " +
                                                std::to_string(bytes) + " bytes, it must be " +
                                                std::to_string(expected));
}

}  // namespace

std::uint32_t rows_of_payload(const RowSpec& spec, std::uint64_t max_payload_bytes) {
  const std::uint64_t most = std::min(max_payload_bytes, proto::kMaxRowsPayload) / row_bytes(spec);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most, 1, proto::kMaxRows));
}

std::vector<std::byte> rows_payload(const RowTable::Block& block, std::size_t first,
                                    std::size_t rows) {
  std::vector<std::byte> out;
  const std::size_t n = std::max<std::size_t>(block.keys.size(), 1);
  const std::size_t dim = block.values.size() / n, slots = block.slots.size() / n;
  out.reserve(rows * (16 + sizeof(float) * (dim + slots)));
  put(out, block.keys, first, rows);
  put(out, block.ages, first, rows);
  put(out, block.counts, first, rows);
  put(out, block.values, first * dim, rows * dim);
  put(out, block.slots, first * slots, rows * slots);
  return out;
}

Result<RowTable::Block> rows_of(const proto::RowsBlock& head, const RowSpec& spec, Bytes payload) {
  const std::size_t dim = head.is_waiting ? 0 : spec.dim;
  const std::size_t slots = head.is_waiting ? 0 : spec.slot_floats();
  const std::uint64_t expected = head.rows * (16 + sizeof(float) * (dim + slots));
  if (payload.size() != expected)
    return misfit(std::to_string(head.rows) + " rows of table '" + spec.name + "'", payload.size(),
                  expected);
  RowTable::Block block;
  block.is_candidates = head.is_waiting;
  take(payload, block.keys, head.rows);
  take(payload, block.ages, head.rows);
  take(payload, block.counts, head.rows);
  take(payload, block.values, head.rows * dim);
  take(payload, block.slots, head.rows * slots);
  return block;
}

std::uint32_t clients_of_payload(std::uint64_t max_payload_bytes) {
  const std::uint64_t most =
      std::min(max_payload_bytes, proto::kMaxRowsPayload) / proto::kPushesEntryBytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most, 1, PushWindows::kMaxClients));
}

std::vector<std::byte> pushes_payload(const std::vector<PushWindows::Entry>& entries,
                                      std::size_t first, std::size_t clients) {
  std::vector<std::byte> out(clients * proto::kPushesEntryBytes);
  for (std::size_t i = 0; i < clients; ++i) {
    const PushWindows::Entry& entry = entries[first + i];
    std::byte* const at = out.data() + i * proto::kPushesEntryBytes;
    std::memcpy(at, &entry.client, 8);
    std::memcpy(at + 8, &entry.newest, 8);
    std::ranges::copy(entry.bytes(), at + 16);
  }
  return out;
}

Result<std::vector<PushWindows::Entry>> pushes_of(const proto::PushesBlock& head, Bytes payload) {
  const std::uint64_t expected = std::uint64_t{head.clients} * proto::kPushesEntryBytes;
  if (payload.size() != expected)
    return misfit("what " + std::to_string(head.clients) + " clients pushed", payload.size(),
                  expected);
  std::vector<PushWindows::Entry> entries(head.clients);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::byte* const at = payload.data() + i * proto::kPushesEntryBytes;
    std::memcpy(&entries[i].client, at, 8);
    std::memcpy(&entries[i].newest, at + 8, 8);
    entries[i].take_bytes({at + 16, PushWindows::kWindow / 8});
  }
  return entries;
}

}  // namespace centroid::server
