#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/storage/storage.h"

namespace centroid::test {

/// Called before each operation ("open", "create", "lock", "stat", "list", "write", "read", "sync",
/// "close", "truncate", "sync_directory", "create_directory", "rename", "remove",
/// "remove_directory", "space"): an errno fails the operation, 0 lets it proceed.
using FaultHook = std::function<int(std::string_view operation, const std::filesystem::path& path)>;

/// Operations that only query; callers may treat their failure as "does not exist".
inline bool is_query(std::string_view operation) {
  return operation == "stat" || operation == "list" || operation == "space";
}

inline std::string_view name_of(storage::Open how) {
  switch (how) {
    case storage::Open::kCreate:
      return "create";
    case storage::Open::kLock:
    case storage::Open::kFolder:
      return "lock";
    default:
      return "open";
  }
}

/// Wraps a storage; operations fail if the hook returns an errno.
class FaultyStorage final : public storage::Storage {
 public:
  FaultyStorage(storage::Storage& inner, FaultHook hook)
      : inner_(inner), hook_(std::make_shared<const FaultHook>(std::move(hook))) {}

  storage::Outcome<std::unique_ptr<storage::File>> open(const std::filesystem::path& path,
                                                        storage::Open how, unsigned mode) override {
    if (const auto error = asked(name_of(how), path)) return error;
    auto opened = inner_.open(path, how, mode);
    if (!opened.ok()) return opened.error;
    return std::unique_ptr<storage::File>(
        std::make_unique<FaultyFile>(std::move(opened.value), path, hook_));
  }
  storage::Outcome<storage::Attributes> attributes(const std::filesystem::path& path) override {
    if (const auto error = asked("stat", path)) return error;
    return inner_.attributes(path);
  }
  storage::Outcome<std::vector<storage::Entry>> list(const std::filesystem::path& path) override {
    if (const auto error = asked("list", path)) return error;
    return inner_.list(path);
  }
  std::error_code create_directory(const std::filesystem::path& path, unsigned mode) override {
    const auto error = asked("create_directory", path);
    return error ? error : inner_.create_directory(path, mode);
  }
  std::error_code rename(const std::filesystem::path& from,
                         const std::filesystem::path& to) override {
    const auto error = asked("rename", from);
    return error ? error : inner_.rename(from, to);
  }
  std::error_code remove(const std::filesystem::path& path) override {
    const auto error = asked("remove", path);
    return error ? error : inner_.remove(path);
  }
  std::error_code remove_directory(const std::filesystem::path& path) override {
    const auto error = asked("remove_directory", path);
    return error ? error : inner_.remove_directory(path);
  }
  std::error_code sync_directory(const std::filesystem::path& path) override {
    const auto error = asked("sync_directory", path);
    return error ? error : inner_.sync_directory(path);
  }
  storage::Outcome<storage::Space> space(const std::filesystem::path& path) override {
    if (const auto error = asked("space", path)) return error;
    return inner_.space(path);
  }

 private:
  using Hook = std::shared_ptr<const FaultHook>;
  static std::error_code ask(const Hook& hook, std::string_view operation,
                             const std::filesystem::path& path) {
    return {(*hook)(operation, path), std::generic_category()};
  }
  std::error_code asked(std::string_view operation, const std::filesystem::path& path) const {
    return ask(hook_, operation, path);
  }

  class FaultyFile final : public storage::File {
   public:
    FaultyFile(std::unique_ptr<storage::File> inner, std::filesystem::path path, Hook hook)
        : inner_(std::move(inner)), path_(std::move(path)), hook_(std::move(hook)) {}

    storage::Outcome<storage::Attributes> attributes() override { return inner_->attributes(); }
    storage::Outcome<std::size_t> write(Bytes bytes) override {
      if (const auto error = ask(hook_, "write", path_)) return error;
      return inner_->write(bytes);
    }
    storage::Outcome<std::size_t> write_at(std::uint64_t offset, Bytes bytes) override {
      if (const auto error = ask(hook_, "write", path_)) return error;
      return inner_->write_at(offset, bytes);
    }
    storage::Outcome<std::size_t> read_at(std::uint64_t offset, MutableBytes into) override {
      if (const auto error = ask(hook_, "read", path_)) return error;
      return inner_->read_at(offset, into);
    }
    std::error_code truncate(std::uint64_t bytes) override {
      const auto error = ask(hook_, "truncate", path_);
      return error ? error : inner_->truncate(bytes);
    }
    std::error_code sync() override {
      const auto error = ask(hook_, "sync", path_);
      return error ? error : inner_->sync();
    }
    std::error_code sync_data() override {
      const auto error = ask(hook_, "sync", path_);
      return error ? error : inner_->sync_data();
    }
    std::error_code lock() override { return inner_->lock(); }
    std::error_code close() override {
      const auto error = ask(hook_, "close", path_);
      return error ? error : inner_->close();
    }

   private:
    const std::unique_ptr<storage::File> inner_;
    const std::filesystem::path path_;
    const Hook hook_;
  };

  storage::Storage& inner_;
  const Hook hook_;
};

/// Injects faults into the operations of this thread, and of threads that inherit its storage, for
/// its lifetime.
class ScopedFaults {
 public:
  explicit ScopedFaults(FaultHook hook)
      : faulty_(storage::current(), std::move(hook)), bound_(faulty_) {}

 private:
  FaultyStorage faulty_;
  const storage::ScopedStorage bound_;
};

}  // namespace centroid::test
