#include "common/base/shared_library.h"

#include <dlfcn.h>

namespace centroid {

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Result<SharedLibrary> SharedLibrary::open(std::span<const std::string> names) {
  std::string why;
  for (const std::string& name : names) {
    SharedLibrary library;
    library.handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.name_ = name;
    if (library.handle_ != nullptr) return library;
    const char* const verdict = ::dlerror();
    if (why.empty()) why = verdict != nullptr ? verdict : name;
  }
  return Error(ErrorCode::kFailedPrecondition, why);
}

void* SharedLibrary::address_of(const char* symbol) {
  void* const at = handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
  if (at == nullptr && missing_.empty()) missing_ = symbol;
  return at;
}

}  // namespace centroid
