#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace centroid {

/// How the caller should react to a failure; the message describes it.
enum class ErrorCode : std::uint8_t {
  kUnavailable = 1,         ///< peer gone, refused or reset: reconnect with back-off
  kDeadlineExceeded = 2,    ///< too slow: the caller decides
  kAborted = 3,             ///< generation or round moved on: re-read, repeat
  kFailedPrecondition = 4,  ///< wrong state: a bug, or a task for the operator; do not retry
  kResourceExhausted = 5,   ///< a bound was hit: back off
  kCancelled = 6,           ///< we are stopping: unwind quietly
  kDataLoss = 7,            ///< checksum or truncation: drop the connection, refuse the file
  kInvalidArgument = 8,     ///< bad input; the message names the field
  kNotFound = 9,
  kAlreadyExists = 10,
  kUnimplemented = 11,
  kInternal = 12,
};

/// The code's name in logs, metrics and REST ("deadline_exceeded").
std::string_view to_string(ErrorCode code);

struct Refusal;

/// A failure as a value: how to react (code), what happened (message), where in the code, and the
/// path of callers; for some refusals of another program also their reason as a value.
class Error {
 public:
  Error(ErrorCode code, std::string message,
        std::source_location where = std::source_location::current())
      : code_(code), message_(std::move(message)), where_(where) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::source_location& where() const { return where_; }
  const Refusal* refusal() const { return refusal_.get(); }  ///< see common/base/refusal.h

  Error with_refusal(Refusal refusal) &&;

  /// Prefix what the caller was doing: "push chunk 17 to server: <message>".
  Error with_context(std::string_view doing) const& { return Error(*this).with_context(doing); }
  Error with_context(std::string_view doing) && {
    message_ = std::string(doing) + ": " + message_;
    return std::move(*this);
  }

  /// "unavailable: connection reset by peer"
  std::string to_string() const;

 private:
  ErrorCode code_;
  std::string message_;
  std::source_location where_;
  std::shared_ptr<const Refusal> refusal_;
};

/// A value or an Error. Never empty.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

/// Abort the process: an invariant of our own code is broken (never for bad input).
[[noreturn]] void check_failed(std::string_view expression, std::source_location where);

}  // namespace centroid

#define CENTROID_CHECK(expr) \
  ((expr) ? (void)0 : ::centroid::check_failed(#expr, std::source_location::current()))

#define CENTROID_CAT2(a, b) a##b
#define CENTROID_CAT(a, b) CENTROID_CAT2(a, b)

/// Return the error of a Status or Result expression to the caller.
#define CENTROID_TRY(expr)                                          \
  do {                                                              \
    auto&& centroid_try = (expr);                                   \
    if (!centroid_try.ok()) return std::move(centroid_try).error(); \
  } while (0)
#define CENTROID_CO_TRY(expr)                                          \
  do {                                                                 \
    auto centroid_try = (expr);                                        \
    if (!centroid_try.ok()) co_return std::move(centroid_try).error(); \
  } while (0)

/// `CENTROID_ASSIGN(auto x, f());` : x is the value, or the error is returned.
#define CENTROID_ASSIGN(decl, expr)                               \
  auto CENTROID_CAT(centroid_r, __LINE__) = (expr);               \
  if (!CENTROID_CAT(centroid_r, __LINE__).ok())                   \
    return std::move(CENTROID_CAT(centroid_r, __LINE__)).error(); \
  decl = std::move(CENTROID_CAT(centroid_r, __LINE__)).value()
#define CENTROID_CO_ASSIGN(decl, expr)                               \
  auto CENTROID_CAT(centroid_r, __LINE__) = (expr);                  \
  if (!CENTROID_CAT(centroid_r, __LINE__).ok())                      \
    co_return std::move(CENTROID_CAT(centroid_r, __LINE__)).error(); \
  decl = std::move(CENTROID_CAT(centroid_r, __LINE__)).value()
