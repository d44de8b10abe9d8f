#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace centroid::test {

/// A function on its own stack that can be suspended anywhere and resumed later. All fibers run on
/// one operating-system thread, one at a time.
///
/// owns     its stack, above a guard page; only used pages take memory. Destroy it only before it
///          began or after it ended
/// cost     a switch is a setjmp and a longjmp: no system call after the first
/// thread   one; not under the thread sanitizer
class Fiber {
 public:
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = 8 << 20);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Run it until it suspends itself or ends. Not from a fiber.
  void resume();
  /// From within a fiber: return from its `resume`.
  static void suspend();
  bool is_done() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::test
