#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "common/base/result.h"

namespace centroid {

/// A library that is looked up when the program runs, so that one program serves machines with and
/// without it. Closed with the object: what was found lives no longer.
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

  /// The first of `names` that there is.
  /// fails  failed_precondition: none (why the first was not to be loaded, as the linker says it)
  static Result<SharedLibrary> open(std::span<const std::string> names);

  /// Null where it has none of this name; the first such is `missing`.
  template <class Function>
  void find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(address_of(symbol));
  }
  const std::string& name() const { return name_; }
  const std::string& missing() const { return missing_; }
  /// It stays loaded when the object goes.
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
