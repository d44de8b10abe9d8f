#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "common/base/result.h"

namespace centroid {

/// A library that is loaded when the program runs, so that one program works on machines with and
/// without it. Closed with the object: found functions are invalid then.
/// thread  one at a time
class SharedLibrary {
 public:
  SharedLibrary() = default;
  ~SharedLibrary();
  SharedLibrary(SharedLibrary&& other) noexcept { swap(other); }
  SharedLibrary& operator=(SharedLibrary&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Open the first of `names` that exists.
  /// fails  failed_precondition: none (the linker's reason for the first)
  static Result<SharedLibrary> open(std::span<const std::string> names);

  /// Null if the library has no such function; `missing` names the first one.
  template <class Function>
  void find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(address_of(symbol));
  }
  const std::string& name() const { return name_; }
  const std::string& missing() const { return missing_; }
  /// Leave it loaded when the object is destroyed.
  void keep() { handle_ = nullptr; }

 private:
  void* address_of(const char* symbol);
  void swap(SharedLibrary& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    std::swap(missing_, other.missing_);
  }

  void* handle_ = nullptr;
  std::string name_, missing_;
};

}  // namespace centroid
