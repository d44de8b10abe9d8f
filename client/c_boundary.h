#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "client/centroid.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

/// What every function of the C interface does with arguments and errors.
namespace centroid::c_boundary {

/// Of the thread's last call.
inline thread_local std::string last_error;

inline int failed(const Error& error) {
  last_error = error.message();
  return static_cast<int>(error.code());
}

inline Error bad(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

inline Status given(const void* pointer, const char* name) {
  if (pointer == nullptr) return bad(std::string(name).append(" is NULL"));
  return {};
}

/// A struct of a caller with at least the fields of the first ABI, `least` bytes.
template <class S>
Status sized(const S* pointer, const char* name, std::size_t least = sizeof(S)) {
  CENTROID_TRY(given(pointer, name));
  if (pointer->size < least)
    return bad(std::string(name).append(".size is ").append(std::to_string(pointer->size)) +
               ", not sizeof: " + std::to_string(sizeof(S)));
  return {};
}

/// A struct of a caller that may be newer than this library: unknown fields that are set are an
/// error, not ignored.
template <class S>
Status asked(const S* pointer, const char* name, std::size_t least = sizeof(S)) {
  constexpr std::size_t kMost = 4096;  // of any version
  CENTROID_TRY(sized(pointer, name, least));
  if (pointer->size > kMost)
    return bad(std::string(name).append(".size is ").append(std::to_string(pointer->size)) +
               ", not sizeof: " + std::to_string(sizeof(S)));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(pointer);
  for (std::size_t at = sizeof(S); at < pointer->size; ++at)
    if (bytes[at] != 0)
      return Error(ErrorCode::kUnimplemented,
                   std::string(name).append(" has a field at byte ").append(std::to_string(at)) +
                       " that this libcentroid.so (" + centroid_version() + ", which knows " +
                       std::to_string(sizeof(S)) +
                       " bytes of it) does not have: the program was built for a newer one");
  return {};
}

/// The caller's fields; later ones are 0.
template <class S>
S known(const S& given) {
  S out{};
  std::memcpy(&out, &given, std::min<std::size_t>(given.size, sizeof(S)));
  return out;
}

/// Short enough that no clock overflows.
inline std::chrono::milliseconds time_of(std::uint64_t milliseconds) {
  constexpr std::uint64_t kTenYears = 315'360'000'000;
  return std::chrono::milliseconds(std::min(milliseconds, kTenYears));
}

/// Runs `what`, a Status().
template <class F>
int guarded(const F& what) noexcept {
  try {
    last_error.clear();
    const Status status = what();
    return status.ok() ? CENTROID_OK : failed(status.error());
  } catch (const std::bad_alloc&) {
    return failed(Error(ErrorCode::kResourceExhausted, "no memory"));
  } catch (const std::exception& e) {
    return failed(Error(ErrorCode::kInternal, e.what()));
  }
}

/// Fields of a newer caller, after ours, stay unchanged.
template <class S>
void give(S* to, S from) {
  from.size = to->size;
  *to = from;
}

inline std::string text(const char* given, const char* otherwise = "") {
  return given != nullptr ? given : otherwise;
}

/// Name and shape of a caller's tensor.
inline Result<TensorInfo> info_of(const centroid_tensor& one) {
  TensorInfo info;
  info.name = text(one.name);
  if (one.rank > kMaxTensorRank)
    return bad("tensor " + info.name + " has rank " + std::to_string(one.rank) + ", at most 8");
  if (one.rank > 0) {
    if (one.shape == nullptr) return bad("tensor " + info.name + " has no shape");
    info.shape.assign(one.shape, one.shape + one.rank);
  }
  if (!checked_bytes(info)) return bad("tensor " + info.name + " is too large");
  return info;
}

inline Status check_initial(const centroid_tensor& one, const TensorInfo& info) {
  if (one.initial != nullptr || info.elements() == 0) return {};
  return bad("tensor " + info.name + " has no initial values");
}

/// Logs would mix with the program's own output: only warnings and errors, until it requests more.
inline void quiet_logs() {
  static const bool is_set = [] {
    (void)log::configure(log::Level::kWarn, log::Format::kText);
    return true;
  }();
  (void)is_set;
}

}  // namespace centroid::c_boundary
