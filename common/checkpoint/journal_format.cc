#include "common/checkpoint/journal_format.h"

#include <cmath>
#include <cstring>

#include "common/base/crc32c.h"
#include "common/checkpoint/log_segments.h"

namespace centroid::journal {
namespace {

constexpr std::uint32_t kMagic = 0x314c4a43;  // "CJL1"
constexpr std::size_t kMaxText = 4096, kMaxReturned = 16u << 20, kMaxContributors = 65536,
                      kMaxServers = 65535;

Error refused(const std::string& why) { return {ErrorCode::kDataLoss, why}; }

}  // namespace

std::vector<std::byte> encode(const Head& head) {
  return encode_log_head<kHeadBytes>(kMagic, head.kind, head.form, std::uint16_t{0},
                                     head.payload_bytes, head.round.value, head.attempt,
                                     head.chunk.value, head.payload_crc);
}

Result<Head> decode_head(Bytes bytes) {
  ByteReader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  Head head;
  head.kind = in.get<Kind>();
  head.form = in.get<Form>();
  const auto reserved = in.get<std::uint16_t>();
  head.payload_bytes = in.get<std::uint64_t>();
  head.round = Round(in.get<std::uint64_t>());
  head.attempt = in.get<std::uint32_t>();
  head.chunk = ChunkId(in.get<std::uint32_t>());
  head.payload_crc = in.get<std::uint32_t>();
  const auto crc = in.get<std::uint32_t>();
  if (!in.done() || magic != kMagic) return refused("no head of a record is there");
  if (crc != crc32c(bytes.first(kHeadBytes - sizeof crc)))
    return refused("the record's head is altered: its CRC-32C differs");
  const bool is_known = head.kind >= Kind::kBase && head.kind <= Kind::kRoute &&
                        head.form <= Form::kParameters && reserved == 0;
  if (!is_known || head.payload_bytes > kMaxPayloadBytes)
    return Error(ErrorCode::kUnimplemented, "a record of a later format is there");
  return head;
}

std::vector<std::byte> encode(const Base& base) {
  ByteWriter out;
  out.put(base.round.value);
  out.put(base.version.value);
  out.put(base.optimizer_step);
  out.put(base.plan_hash);
  out.put(static_cast<std::uint8_t>(base.follows_gap ? 1 : 0));
  out.put_string(base.run_id);
  out.put_string(base.terms);
  return out.take();
}

Result<Base> decode_base(Bytes payload) {
  ByteReader in(payload);
  Base base;
  base.round = Round(in.get<std::uint64_t>());
  base.version = Version(in.get<std::uint64_t>());
  base.optimizer_step = in.get<std::uint64_t>();
  base.plan_hash = in.get<std::uint64_t>();
  base.follows_gap = in.get<std::uint8_t>() != 0;
  base.run_id = in.get_string(kMaxText);
  base.terms = in.get_string(kMaxText);
  if (!in.done()) return refused("the segment's base record has other fields than expected");
  return base;
}

std::vector<std::byte> encode(const Commit& commit) {
  ByteWriter out;
  out.put(commit.version.value);
  out.put(commit.optimizer_step);
  out.put(commit.epoch);
  out.put(commit.offset);
  out.put(commit.generation.value);
  out.put(commit.weight);
  out.put(commit.chunks);
  out.put(commit.durable_bytes);
  out.put(commit.unix_seconds);
  out.put(static_cast<std::uint32_t>(commit.contributors.size()));
  for (const std::string& name : commit.contributors) out.put_string(name);
  // `put`: as in the head
  const auto put = [&out](const auto& value) {
    out.put_bytes(std::as_bytes(std::span(&value, 1)));
  };
  put(commit.steps);
  put(static_cast<std::uint32_t>(commit.rounds.size()));
  for (const Round round : commit.rounds) put(round.value);
  put(static_cast<std::uint32_t>(commit.returned.size()));
  out.put_bytes(as_bytes(commit.returned));
  if (commit.rate_factor != 1) put(commit.rate_factor);
  return out.take();
}

Result<Commit> decode_commit(Bytes payload) {
  ByteReader in(payload);
  Commit commit;
  commit.version = Version(in.get<std::uint64_t>());
  commit.optimizer_step = in.get<std::uint64_t>();
  commit.epoch = in.get<std::uint64_t>();
  commit.offset = in.get<std::uint64_t>();
  commit.generation = Generation(in.get<std::uint64_t>());
  commit.weight = in.get<double>();
  commit.chunks = in.get<std::uint32_t>();
  commit.durable_bytes = in.get<std::uint64_t>();
  commit.unix_seconds = in.get<double>();
  const auto names = in.get<std::uint32_t>();
  if (names > kMaxContributors) return refused("a commit record with too many contributors");
  for (std::uint32_t i = 0; i < names && in.ok(); ++i)
    commit.contributors.push_back(in.get_string(kMaxText));
  if (in.left() > 0) commit.steps = in.get<std::uint64_t>();  // older journals have none
  if (in.left() > 0) {                                        // nor these
    const auto rounds = in.get<std::uint32_t>();
    if (rounds != 0 && rounds != names)
      return refused("a commit record with rounds of other contributors");
    for (std::uint32_t i = 0; i < rounds && in.ok(); ++i)
      commit.rounds.push_back(Round(in.get<std::uint64_t>()));
    commit.returned = in.get_string(kMaxReturned);
  }
  if (in.left() > 0) {
    commit.rate_factor = in.get<double>();
    if (!(commit.rate_factor >= 1 && std::isfinite(commit.rate_factor)))
      return refused("a commit record with a factor below 1 on the learning rate");
  }
  if (!in.done()) return refused("a commit record has other fields than expected");
  return commit;
}

std::vector<std::byte> encode(const Route& route) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(route.servers.size()));
  for (const std::string& name : route.servers) out.put_string(name);
  out.put(static_cast<std::uint32_t>(route.owners.size()));
  for (const std::uint16_t owner : route.owners) out.put(owner);
  return out.take();
}

Result<Route> decode_route(Bytes payload) {
  ByteReader in(payload);
  Route route;
  const auto servers = in.get<std::uint32_t>();
  if (servers == 0 || servers > kMaxServers) return refused("a route record without servers");
  for (std::uint32_t i = 0; i < servers && in.ok(); ++i)
    route.servers.push_back(in.get_string(kMaxText));
  const auto chunks = in.get<std::uint32_t>();
  if (!in.ok() || in.left() != chunks * sizeof(std::uint16_t))
    return refused("a route record has other fields than expected");
  route.owners.reserve(chunks);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    route.owners.push_back(in.get<std::uint16_t>());
    if (route.owners.back() >= servers) return refused("a route record names no such server");
  }
  return route;
}

}  // namespace centroid::journal
