#include "worker/exchange/peer_message.h"

#include <cstring>
#include <string>

namespace centroid::worker {

namespace {

template <class T>
void put_at(std::vector<std::byte>& out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof(value));
}

Error damaged(const std::string& what) { return {ErrorCode::kDataLoss, "its message " + what}; }

}  // namespace

PeerMessageWriter::PeerMessageWriter(std::vector<std::byte>& out, double weight, PeerForm form,
                                     std::size_t chunks)
    : out_(out), begin_(out.size()) {
  const std::size_t lengths = form == PeerForm::kNumbers ? chunks * sizeof(std::uint32_t) : 0;
  out_.resize(begin_ + kPeerHeadBytes + lengths);
  put_at(out_, begin_, weight);
  put_at(out_, begin_ + 8, form);
  put_at(out_, begin_ + 12, static_cast<std::uint32_t>(lengths / sizeof(std::uint32_t)));
}

void PeerMessageWriter::add(Bytes payload) {
  put_at(out_, begin_ + kPeerHeadBytes + chunk_++ * sizeof(std::uint32_t),
         static_cast<std::uint32_t>(payload.size()));
  out_.insert(out_.end(), payload.begin(), payload.end());
}

Result<PeerMessage> read_peer_message(Bytes in, std::size_t chunks) {
  ByteReader reader(in);
  PeerMessage message;
  message.weight = reader.get<double>();
  message.form = reader.get<PeerForm>();
  const auto count = reader.get<std::uint32_t>();
  if (!reader.ok()) return damaged("of " + std::to_string(in.size()) + " bytes is cut short");
  if (message.form > PeerForm::kRefused)
    return damaged("has form " + std::to_string(static_cast<std::uint32_t>(message.form)) +
                   ", expected 0 to 2");
  const bool has_weight = message.weight > 0 && message.weight <= kMaxPeerWeight;
  if (message.form == PeerForm::kNothing ? message.weight != 0 : !has_weight)
    return damaged("has form " + std::to_string(static_cast<std::uint32_t>(message.form)) +
                   " and weight " + std::to_string(message.weight));
  const std::size_t wanted = message.form == PeerForm::kNumbers ? chunks : 0;
  if (count != wanted)
    return damaged("has " + std::to_string(count) + " payloads, expected " +
                   std::to_string(wanted));
  ByteReader lengths(reader.get_bytes(wanted * sizeof(std::uint32_t)));
  message.payloads.reserve(wanted);
  for (std::size_t i = 0; i < wanted; ++i)
    message.payloads.push_back(reader.get_bytes(lengths.get<std::uint32_t>()));
  if (!reader.done() || !lengths.done())
    return damaged("of " + std::to_string(in.size()) + " bytes does not hold its " +
                   std::to_string(wanted) + " payloads exactly");
  return message;
}

}  // namespace centroid::worker
