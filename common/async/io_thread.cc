#include "common/async/io_thread.h"

#include <pthread.h>

namespace centroid {

IoThread::IoThread(const std::string& name) : work_(context_.get_executor()) {
  thread_ = std::thread([this] { context_.run(); });
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

IoThread::~IoThread() {
  work_.reset();
  context_.stop();
  thread_.join();
}

}  // namespace centroid
