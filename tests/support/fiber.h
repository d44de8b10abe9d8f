#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace centroid::test {

/// A function on a stack of its own that can be suspended anywhere and resumed later; all fibers
/// run on one operating-system thread, and one at a time.
///
/// owns     its stack, of which only pages that are used take memory, above a page that may not be
///          touched; destroy it only before it began or after it ended
/// cost     a switch is a setjmp and a longjmp: no system call after the first
/// thread   one; not under the thread sanitizer
class Fiber {
 public:
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = 8 << 20);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Run it until it suspends itself or ends. From no fiber.
  void resume();
  /// From within a fiber: return from its `resume`.
  static void suspend();
  bool is_done() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::test
