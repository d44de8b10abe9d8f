// Fibers are left by longjmp, which a fortified C library reports as an error.
#undef _FORTIFY_SOURCE

#include "tests/support/fiber.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <utility>

#include <boost/asio/detail/call_stack.hpp>
#include <boost/asio/detail/thread_context.hpp>
#include <boost/asio/detail/thread_info_base.hpp>

#include "common/base/result.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace centroid::test {
namespace {

namespace detail = boost::asio::detail;

// Asio records the contexts that the present thread runs in a thread-local list. Each fiber has its
// own list. The head is private, but an explicit instantiation may name it.
using CallStack = detail::call_stack<detail::thread_context, detail::thread_info_base>;
using Top = detail::tss_ptr<CallStack::context>;
Top* top_of_call_stack();
template <Top* kTop>
struct Exposed {
  friend Top* top_of_call_stack() { return kTop; }
};
template struct Exposed<&CallStack::top_>;

constexpr std::size_t kGuardBytes = 4096;

jmp_buf resumer;
ucontext_t beginner;
#if defined(__SANITIZE_ADDRESS__)
void* resumer_fake_stack = nullptr;
const void* resumer_bottom = nullptr;
std::size_t resumer_bytes = 0;
#endif

}  // namespace

struct Fiber::Impl {
  std::function<void()> body;
  std::size_t stack_bytes = 0;
  void* stack = nullptr;
  ucontext_t context{};
  jmp_buf where{};
  bool has_begun = false, is_done = false;
  CallStack::context* asio_top = nullptr;
  void* fake_stack = nullptr;

  static Impl* running;

  static void begin();
  [[gnu::noinline]] void enter();
  [[gnu::noinline]] void leave();
};

Fiber::Impl* Fiber::Impl::running = nullptr;

void Fiber::Impl::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &resumer_bottom, &resumer_bytes);
#endif
  running->body();
  running->is_done = true;
  running->leave();
}

void Fiber::Impl::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_fake_stack, stack, stack_bytes);
#endif
  if (_setjmp(resumer) == 0) {
    if (std::exchange(has_begun, true)) _longjmp(where, 1);
    swapcontext(&beginner, &context);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Impl::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_done ? nullptr : &fake_stack, resumer_bottom, resumer_bytes);
#endif
  if (_setjmp(where) == 0) _longjmp(resumer, 1);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &resumer_bottom, &resumer_bytes);
#endif
}

Fiber::Fiber(std::function<void()> body, std::size_t stack_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->body = std::move(body);
  impl_->stack_bytes = stack_bytes;
  impl_->stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  CENTROID_CHECK(impl_->stack != MAP_FAILED);
  CENTROID_CHECK(::mprotect(impl_->stack, kGuardBytes, PROT_NONE) == 0);
  getcontext(&impl_->context);
  impl_->context.uc_stack.ss_sp = impl_->stack;
  impl_->context.uc_stack.ss_size = stack_bytes;
  impl_->context.uc_link = nullptr;
  makecontext(&impl_->context, Impl::begin, 0);
}

Fiber::~Fiber() {
  CENTROID_CHECK(!impl_->has_begun || impl_->is_done);
  ::munmap(impl_->stack, impl_->stack_bytes);
}

void Fiber::resume() {
  CENTROID_CHECK(Impl::running == nullptr && !impl_->is_done);
  Top& top = *top_of_call_stack();
  CallStack::context* const outside = top;
  top = impl_->asio_top;
  Impl::running = impl_.get();
  impl_->enter();
  Impl::running = nullptr;
  impl_->asio_top = top;
  top = outside;
}

void Fiber::suspend() {
  CENTROID_CHECK(Impl::running != nullptr);
  Impl::running->leave();
}

bool Fiber::is_done() const { return impl_->is_done; }

}  // namespace centroid::test
