#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace centroid::transport {

/// Memory for messages of peers that are not known yet. Pure; one thread.
class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t limit) : limit_(limit) {}

  /// Whether they have room. Where nothing else is held there is room for any message, so that no
  /// limit refuses one for ever.
  bool take(std::uint64_t bytes);
  std::uint64_t refused() const { return refused_; }  ///< times
  void give_back(std::uint64_t bytes) { used_ -= bytes; }
  std::uint64_t used() const { return used_; }
  std::uint64_t limit() const { return limit_; }

 private:
  const std::uint64_t limit_;
  std::uint64_t used_ = 0, refused_ = 0;
};

/// Bytes of a budget, given back when this is destroyed.
class HeldBytes {
 public:
  HeldBytes() = default;
  explicit HeldBytes(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  ~HeldBytes() { (void)resize(0); }
  HeldBytes(HeldBytes&& other) noexcept { swap(other); }
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Hold so many instead; always right where there is no budget.
  /// fails  resource_exhausted (refusal NotReady): no room; what was held stays
  Status resize(std::uint64_t bytes);

 private:
  void swap(HeldBytes& other) noexcept {
    std::swap(budget_, other.budget_), std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<ByteBudget> budget_;
  std::uint64_t bytes_ = 0;
};

/// Lines of the log that others cause: a burst, then one a second. Pure; one thread.
class LineBudget {
 public:
  static constexpr std::uint64_t kBurst = 20;
  explicit LineBudget(std::uint64_t burst = kBurst) : burst_(static_cast<double>(burst)) {}
  void set_burst(std::uint64_t burst) { burst_ = static_cast<double>(burst); }
  /// The text of this line: `why`, shortened, and how many were left out since the last one ("and
  /// 4,211 more, not logged"). Nothing: it is left out.
  std::optional<std::string> take(std::string_view why, TimePoint now);
  /// One is not even tried.
  void leave_out() { ++left_out_; }
  std::uint64_t burst() const { return static_cast<std::uint64_t>(burst_); }
  /// Lines of the burst that are used.
  std::uint64_t used(TimePoint now) const {
    return static_cast<std::uint64_t>(burst_ - left_at(now) + 0.5);
  }

 private:
  static constexpr std::size_t kLineBytes = 512;
  static constexpr double kPerSecond = 1;
  double left_at(TimePoint now) const;
  double burst_, spent_ = 0;
  TimePoint at_;
  std::uint64_t left_out_ = 0;
};

/// Text of a stranger as it may stand in a log or an answer: cut to `most` bytes.
std::string shortened(std::string_view text, std::size_t most);
/// `count` in the form "4,211".
std::string grouped(std::uint64_t count);

/// The client of a HOST:PORT: an address of IPv4, or a network of 64 bits of IPv6, which is what
/// one customer has.
std::string client_of(const std::string& address);

/// The places of connections whose peers are not known yet. When all are taken, one more displaces
/// another: of those without a valid greeting (if there are none: of all), of the address with
/// most, the oldest. So strangers from few addresses displace each other, and one address may have
/// every place that nobody else wants. Pure; one thread.
///
/// cost  a logarithm of the number of places
class StrangerPlaces {
 public:
  using Id = std::uint64_t;
  explicit StrangerPlaces(std::size_t most) : most_(most) {}

  void set_most(std::size_t most) { most_ = most; }
  /// `displaced` has no place any more: its connection is to be closed.
  struct Arrival {
    Id id = 0;
    std::optional<Id> displaced;
  };
  Arrival arrive(const std::string& address);
  /// Its token was good.
  void greeted(Id id);
  /// It is known now, or gone. A displaced one has left already.
  void leave(Id id);
  std::size_t size() const { return present_.size(); }

 private:
  /// Some of them, by address.
  class Group {
   public:
    void add(const std::string& address, Id id);
    void remove(const std::string& address, Id id);
    bool is_empty() const { return by_address_.empty(); }
    /// The oldest of the address with most.
    Id victim() const { return crowds_.begin()->second; }

   private:
    /// How many (negative) and the oldest of each address.
    std::set<std::pair<std::ptrdiff_t, Id>> crowds_;
    std::map<std::string, std::set<Id>> by_address_;
  };
  struct Stranger {
    std::string address;
    bool is_greeted = false;
  };
  Group& group_of(const Stranger& one) { return one.is_greeted ? greeted_ : silent_; }

  std::size_t most_;
  std::unordered_map<Id, Stranger> present_;
  Group silent_, greeted_;
  Id next_ = 1;
};

}  // namespace centroid::transport
