#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "transport/listen_error.h"

namespace centroid::transport {
namespace {

namespace fs = std::filesystem;

/// A /proc as a machine might have it.
class PortHolder : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "port_holder_" + std::to_string(::getpid());
    fs::create_directories(root_ + "/proc/net");
    fs::create_directories(root_ + "/proc/self/fd");  // no process by its number
    write(
        "net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
        "timeout inode\n"
        "   0: 0100007F:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        "
        "0 4711 1 0 100 0 0 10 0\n"
        "   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        "
        "0 4712 1 0 100 0 0 10 0\n");
    write("net/tcp6",
          "  sl  local_address                         remote_address   st\n"
          "   0: 00000000000000000000000000000000:1388 00000000000000000000000000000000:0000 0A "
          "00000000:00000000 00:00000000 00000000    33        0 4713 1 0 100 0 0 10 0\n");
    process("12", "idle", "socket:[9]");
    process("812", "centroid-server", "socket:[4711]");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/proc/" + name) << text;
  }
  void process(const std::string& id, const std::string& name, const std::string& open) {
    fs::create_directories(root_ + "/proc/" + id + "/fd");
    write(id + "/comm", name + "\n");
    fs::create_symlink("/dev/null", root_ + "/proc/" + id + "/fd/0");
    fs::create_symlink(open, root_ + "/proc/" + id + "/fd/3");
  }

  std::string root_;
};

TEST_F(PortHolder, IsTheProcessThatHasTheSocket) {
  EXPECT_EQ(port_holder(7070, root_), "process 812 (centroid-server)");
}

TEST_F(PortHolder, IsAUserWhereItsFilesAreNotShown) {
  EXPECT_EQ(port_holder(5000, root_), "a process of user 33");
}

TEST_F(PortHolder, IsNobodyWhereNobodyListens) {
  EXPECT_EQ(port_holder(8080, root_), "");  // 0x1F90: connected, not listening
  EXPECT_EQ(port_holder(1, root_), "");
  EXPECT_EQ(port_holder(7070, root_ + "/nowhere"), "");
}

}  // namespace
}  // namespace centroid::transport
