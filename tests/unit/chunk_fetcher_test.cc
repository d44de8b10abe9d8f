#include "server/service/chunk_fetcher.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

namespace centroid::server {
namespace {

/// Another server that answers when it is told to, the newest request first.
struct FakeServer {
  struct Open {
    proto::ServerChunk head;
    bool is_answered = false;
  };
  boost::asio::io_context context;
  Event answered{context.get_executor()};
  std::deque<std::shared_ptr<Open>> open;
  std::size_t most_open = 0;
  bool fails = false;

  static Task<ChunkFetcher::Values> fetch(FakeServer* self, proto::ServerChunk head) {
    auto mine = std::make_shared<Open>();
    mine->head = head;
    self->open.push_back(mine);
    self->most_open = std::max(self->most_open, self->open.size());
    while (!mine->is_answered) (void)co_await self->answered.wait(TimePoint::max());
    if (self->fails) co_return Error(ErrorCode::kAborted, "another version");
    std::vector<std::byte> number(sizeof(std::uint32_t));
    std::memcpy(number.data(), &head.chunk.value, number.size());
    co_return number;
  }
  static Task<void> answer_all(FakeServer* self, const bool* is_over) {
    while (!*is_over) {
      if (!self->open.empty()) {
        self->open.back()->is_answered = true;
        self->open.pop_back();
        self->answered.notify_all();
      }
      (void)co_await sleep_until(std::chrono::steady_clock::now());
    }
  }
  static Task<void> read(FakeServer* self, std::vector<ChunkFetcher::Wanted> wanted,
                         std::vector<std::uint32_t>* got, bool* is_over) {
    TaskGroup tasks(self->context.get_executor());
    auto ask = [self](proto::ServerChunk head) { return fetch(self, head); };
    ChunkFetcher fetcher(self->context.get_executor(), tasks, ask, wanted);
    for (const ChunkFetcher::Wanted& one : wanted) {
      EXPECT_TRUE(fetcher.is_next(0, one.head.chunk));
      const auto values = co_await fetcher.next();
      if (!values.ok()) break;
      std::uint32_t number = 0;
      std::memcpy(&number, values->data(), sizeof number);
      got->push_back(number);
    }
    co_await tasks.join();
    *is_over = true;
  }

  std::vector<std::uint32_t> run(std::size_t count, std::uint64_t bytes) {
    std::vector<ChunkFetcher::Wanted> wanted(count);
    for (std::size_t i = 0; i < count; ++i) {
      wanted[i].head.chunk = ChunkId(static_cast<std::uint32_t>(3 * i));
      wanted[i].bytes = bytes;
    }
    std::vector<std::uint32_t> got;
    bool is_over = false;
    auto reads =
        boost::asio::co_spawn(context, read(this, wanted, &got, &is_over), boost::asio::use_future);
    auto answers =
        boost::asio::co_spawn(context, answer_all(this, &is_over), boost::asio::use_future);
    context.run();
    reads.get();
    answers.get();
    return got;
  }
};

TEST(ChunkFetcher, ChunksComeInTheirOrderWhateverTheOrderOfTheAnswers) {
  FakeServer server;
  const auto got = server.run(1000, 4);
  ASSERT_EQ(got.size(), 1000u);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 3 * i);
  EXPECT_EQ(server.most_open, ChunkFetcher::kAhead);
}

TEST(ChunkFetcher, TakesNoMoreMemoryThanItSays) {
  FakeServer server;
  EXPECT_EQ(server.run(50, ChunkFetcher::kAheadBytes / 4).size(), 50u);
  EXPECT_EQ(server.most_open, 4u);
  FakeServer large;
  EXPECT_EQ(large.run(5, 3 * ChunkFetcher::kAheadBytes).size(), 5u);
  EXPECT_EQ(large.most_open, 1u);
}

TEST(ChunkFetcher, AnErrorIsTold) {
  FakeServer server;
  server.fails = true;
  EXPECT_TRUE(server.run(200, 4).empty());
}

}  // namespace
}  // namespace centroid::server
