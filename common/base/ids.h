#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace centroid {

/// A number that cannot be mistaken for another kind of number.
template <class Tag, class Rep>
struct StrongId {
  using rep = Rep;
  Rep value = 0;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
  constexpr StrongId next() const { return StrongId(static_cast<Rep>(value + 1)); }
};

template <class Tag, class Rep>
std::string to_string(StrongId<Tag, Rep> id) {
  return std::to_string(id.value);
}

using MemberId =
    StrongId<struct MemberTag, std::uint64_t>;  ///< one admission of one worker; never reused
using Rank = StrongId<struct RankTag, std::uint32_t>;  ///< 0..world-1 in the present generation
using Generation =
    StrongId<struct GenerationTag, std::uint64_t>;       ///< number of the membership: the fence
using Round = StrongId<struct RoundTag, std::uint64_t>;  ///< one synchronization
using Version = StrongId<struct VersionTag, std::uint64_t>;  ///< number of the committed parameters
using ChunkId = StrongId<struct ChunkTag, std::uint32_t>;    ///< index in the chunk plan
using TensorId = StrongId<struct TensorTag, std::uint32_t>;  ///< index in the manifest

}  // namespace centroid

template <class Tag, class Rep>
struct std::hash<centroid::StrongId<Tag, Rep>> {
  std::size_t operator()(const centroid::StrongId<Tag, Rep>& id) const {
    return std::hash<Rep>()(id.value);
  }
};
