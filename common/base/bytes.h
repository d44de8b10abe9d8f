#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace centroid {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little, "the wire format is the memory format");

inline Bytes as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Append little-endian fields to a byte vector.
class ByteWriter {
 public:
  ByteWriter() { out_.reserve(kRoom); }
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void put(T value) {
    const auto at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  /// u32 length, then the bytes.
  void put_string(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_bytes(as_bytes(text));
  }
  void put_bytes(Bytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  std::vector<std::byte> take() { return std::move(out_); }
  const std::vector<std::byte>& bytes() const { return out_; }

 private:
  static constexpr std::size_t kRoom = 128;  ///< most messages fit without another allocation
  std::vector<std::byte> out_;
};

/// Read little-endian fields; never reads past the end. After any failed read `ok()` is false and
/// reads return zeros.
class ByteReader {
 public:
  explicit ByteReader(Bytes in) : in_(in) {}
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  T get() {
    T value{};
    if (const Bytes raw = get_bytes(sizeof(T)); raw.size() == sizeof(T))
      std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  Bytes get_bytes(std::size_t n) {
    if (n > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const Bytes out = in_.first(n);
    in_ = in_.subspan(n);
    return out;
  }
  /// u32 length, then the bytes; a length above `limit` is a failure.
  std::string get_string(std::size_t limit) {
    const auto n = get<std::uint32_t>();
    if (n > limit) ok_ = false;
    const Bytes raw = ok_ ? get_bytes(n) : Bytes{};
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return in_.size(); }
  /// Everything was read and nothing was missing.
  bool done() const { return ok_ && in_.empty(); }

 private:
  Bytes in_;
  bool ok_ = true;
};

}  // namespace centroid
