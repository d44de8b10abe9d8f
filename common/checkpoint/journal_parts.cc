#include "common/checkpoint/journal_parts.h"

#include "common/base/crc32c.h"

namespace centroid::journal {

Result<Parts> Parts::scan(const std::filesystem::path& folder, const std::string& run_id,
                          const std::string& terms) {
  Reader reader(folder);
  Parts parts;
  std::vector<std::pair<Key, Place>> open;  // of the attempt that has not ended yet
  bool is_ours = false;
  for (;;) {
    CENTROID_ASSIGN(const auto record, reader.next());
    if (!record) break;
    if (const auto* base = std::get_if<Base>(&*record)) {
      is_ours = base->run_id == run_id && base->terms == terms;
      if (!is_ours)
        parts.others_ =
            std::string("'").append(base->run_id).append("' (").append(base->terms).append(")");
      open.clear();
    } else if (const auto* chunk = std::get_if<Reader::Chunk>(&*record)) {
      const Head& head = chunk->head;
      if (parts.files_.empty() || parts.files_.back() != reader.segment()->path)
        parts.files_.push_back(reader.segment()->path);
      open.emplace_back(Key(head.round.value, head.attempt, head.chunk.value),
                        Place{parts.files_.size() - 1, reader.payload_at(), head});
      reader.skip();
    } else if (const auto* end = std::get_if<Reader::End>(&*record)) {
      for (auto& [key, place] : open)
        if (is_ours && place.head.round == end->head.round &&
            place.head.attempt == end->head.attempt)
          parts.places_[key] = place;
      open.clear();
      if (is_ours) parts.last_ = end->head.round;
    }
  }
  CENTROID_TRY(reader.cut_tail());
  return parts;
}

Result<Parts::Numbers> Parts::read(Round round, std::uint32_t attempt, ChunkId chunk) const {
  const auto found = places_.find(Key(round.value, attempt, chunk.value));
  const std::string what = "round " + to_string(round) + ", attempt " + std::to_string(attempt) +
                           ", chunk " + to_string(chunk);
  if (found == places_.end())
    return Error(ErrorCode::kNotFound,
                 what + " is not in this journal" +
                     (last_ ? std::string(", which ends with round ").append(to_string(*last_))
                            : std::string(", which has no round of this run")));
  const Place& place = found->second;
  const std::filesystem::path& path = files_[place.file];
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  Numbers numbers;
  numbers.form = place.head.form;
  numbers.bytes.resize(static_cast<std::size_t>(place.head.payload_bytes));
  CENTROID_TRY(file::read_at(file, path, place.at, numbers.bytes));
  if (crc32c(numbers.bytes) != place.head.payload_crc)
    return Error(ErrorCode::kDataLoss, "journal " + path.string() + ", byte " +
                                           std::to_string(place.at) + ": " + what +
                                           " is altered: its CRC-32C differs");
  return numbers;
}

}  // namespace centroid::journal
