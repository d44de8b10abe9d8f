#include "common/async/io_thread.h"

namespace centroid {

IoThread::IoThread(const std::string& name, ThreadPriority priority)
    : work_(context_.get_executor()) {
  thread_ = Thread(name, [this] { run(); }, priority);
}

IoThread::~IoThread() {
  context_.stop();
  thread_.join();
}

void IoThread::run() {
  Host* const host = Host::current();
  if (host == nullptr) {
    context_.run();
    return;
  }
  while (!context_.stopped()) host->yield(context_.poll_one() != 0);
}

}  // namespace centroid
