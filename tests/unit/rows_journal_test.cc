#include "common/checkpoint/rows_journal.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/store/rows_journal_writer.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/progress.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

namespace fs = std::filesystem;
using rows_journal::Entry;
using rows_journal::Reader;
using ::testing::HasSubstr;
using Writer = RowsJournalWriter;

/// A push whose data follow from its number.
struct Push {
  std::vector<std::byte> data;
  Entry entry;
  explicit Push(std::uint64_t number) : data(12 * (number % 7 + 1)) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(number * 31 + i);
    entry.table = static_cast<std::uint16_t>(number % 3);
    entry.rows = static_cast<std::uint32_t>(number % 7 + 1);
    entry.now = number / 10;
    entry.client = 5;
    entry.sequence = number;
    entry.step = number % 3;  // some do not say one
    entry.data = data;
  }
};

class RowsJournal : public ::testing::Test {
 protected:
  Writer::Options options(int sync_ms = 0) {
    Writer::Options out;
    out.folder = folder_.path();
    out.run_id = "run";
    out.tables = {"emb:dim=1", "b:dim=1", "c:dim=1"};
    out.sync_every = std::chrono::milliseconds(sync_ms);
    out.on_progress = [this] { progress_.notify(); };
    return out;
  }
  static std::unique_ptr<Writer> start(Writer::Options how, Writer::Position at = {}) {
    auto writer = Writer::start(std::move(how), at);
    EXPECT_TRUE(writer.ok());
    return std::move(writer).value();
  }
  void wait(const Writer& writer, std::uint64_t number) {
    ASSERT_TRUE(progress_.await([&] { return writer.is_done(number); }));
  }
  /// Pushes first to last, each written before the next.
  void push(Writer& writer, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i <= last; ++i) wait(writer, writer.append(Push(i).entry));
  }

  /// Numbers of the pushes from segment `from` on; each must be as it was.
  Result<std::vector<std::uint64_t>> pushes(std::uint64_t from = 1, std::string* torn = nullptr,
                                            bool cuts = false) const {
    std::vector<std::uint64_t> out;
    Reader reader(folder_.path(), from);
    for (;;) {
      CENTROID_ASSIGN(const auto found, reader.next());
      if (found == Reader::Found::kEnd) break;
      if (found == Reader::Found::kBase) {
        EXPECT_EQ(reader.base().run_id, "run");
        EXPECT_EQ(reader.base().tables.size(), 3u);
        continue;
      }
      for (const Entry& entry : reader.entries()) {
        const Push was(entry.sequence);
        EXPECT_EQ(entry.table, was.entry.table);
        EXPECT_EQ(entry.rows, was.entry.rows);
        EXPECT_EQ(entry.now, was.entry.now);
        EXPECT_EQ(entry.client, 5u);
        EXPECT_EQ(entry.step, was.entry.step);
        EXPECT_TRUE(std::ranges::equal(entry.data, was.data));
        out.push_back(entry.sequence);
      }
    }
    if (torn != nullptr) *torn = reader.torn();
    if (cuts) CENTROID_TRY(reader.cut_tail());
    return out;
  }
  static std::vector<std::uint64_t> up_to(std::uint64_t last) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t i = 1; i <= last; ++i) out.push_back(i);
    return out;
  }
  std::vector<LogSegment> segments() const {
    return rows_journal::segments_of(folder_.path()).value();
  }

  /// The writer does not report what it removes.
  bool await_segments(std::size_t count) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (segments().size() != count && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    return segments().size() == count;
  }

  test::Progress progress_;
  TemporaryDirectory folder_;
};

TEST_F(RowsJournal, WhatIsDoneComesBackInItsOrder) {
  for (const int sync_ms : {0, 1, 600'000}) {
    SCOPED_TRACE(sync_ms);
    for (const auto& segment : segments()) fs::remove(segment.path);
    const auto writer = start(options(sync_ms));
    for (std::uint64_t i = 1; i <= 500; ++i) writer->append(Push(i).entry);
    wait(*writer, 500);
    EXPECT_EQ(pushes().value(), up_to(500));  // while the writer is there: no kill takes them
  }
}

TEST_F(RowsJournal, AnEntryWithoutAStepIsThatOfBeforeThereWereSteps) {
  Push push(3);
  std::vector<std::byte> plain, stepped;
  append(push.entry, plain);
  EXPECT_EQ(plain.size(), 40 + 48);
  EXPECT_EQ(plain.size(), size_of(push.entry));
  EXPECT_EQ(plain[1], std::byte{0});
  push.entry.step = 7;
  append(push.entry, stepped);
  EXPECT_EQ(stepped.size(), size_of(push.entry));
  EXPECT_EQ(rows_journal::decode_batch(stepped).value().at(0).step, 7u);
  for (const auto& [place, value] : {std::pair(0, 2), std::pair(1, 2), std::pair(40, 0)}) {
    auto altered = stepped;  // a pull; a later form; no step
    altered[static_cast<std::size_t>(place)] = std::byte(value);
    EXPECT_FALSE(rows_journal::decode_batch(altered).ok()) << place;
  }
}

TEST_F(RowsJournal, PushesThatComeDuringAWriteShareTheNextFdatasync) {
  std::atomic<int> syncs = 0;
  std::atomic<bool> is_open = false;
  auto how = options();
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path& path) {
    const bool is_segment = path.filename() == rows_journal::segment_name(1);
    if (operation == "sync" && is_segment && ++syncs == 2) {  // the first is of the base record
      progress_.notify();
      is_open.wait(false);
    }
    return 0;
  });
  const auto writer = start(std::move(how));
  writer->append(Push(1).entry);
  EXPECT_TRUE(progress_.await([&] { return syncs == 2; }));
  for (std::uint64_t i = 2; i <= 300; ++i) writer->append(Push(i).entry);
  EXPECT_FALSE(writer->is_done(1));
  is_open = true;
  is_open.notify_all();
  wait(*writer, 300);
  EXPECT_EQ(syncs, 3);
  EXPECT_EQ(pushes().value(), up_to(300));
}

TEST_F(RowsJournal, NothingIsDoneBeforeItIsOnTheDiskWithSyncZero) {
  std::atomic<bool> fails = false;
  auto how = options();
  how.waits = false;
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "sync" && fails ? EIO : 0;
  });
  const auto writer = start(std::move(how));
  push(*writer, 1, 3);
  fails = true;
  wait(*writer, writer->append(Push(4).entry));
  EXPECT_TRUE(writer->state().is_broken);
  EXPECT_THAT(writer->state().trouble, HasSubstr("sync"));
}

TEST_F(RowsJournal, ATailOfAnyLengthIsCutAndTheRestCounts) {
  {
    const auto writer = start(options(600'000));
    push(*writer, 1, 6);
  }
  const fs::path path = segments().front().path;
  const auto whole = fs::file_size(path);
  const fs::path kept = folder_.path() / "kept";
  fs::copy_file(path, kept);
  std::vector<std::uint64_t> last = up_to(6);
  std::size_t shorter = 0;
  for (auto bytes = whole; bytes-- > 0;) {
    SCOPED_TRACE(bytes);
    fs::copy_file(kept, path, fs::copy_options::overwrite_existing);
    fs::resize_file(path, bytes);
    std::string torn;
    const auto read = pushes(1, &torn, true);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    ASSERT_LE(read->size(), last.size());
    if (read->size() < last.size()) ++shorter;
    last = *read;
    ASSERT_EQ(last, up_to(last.size()));
    ASSERT_EQ(pushes(1, &torn).value(), last);  // as if it had never been longer
    ASSERT_EQ(torn, "");
  }
  EXPECT_EQ(last.size(), 0u);
  EXPECT_EQ(shorter, 6u);  // one push after the other
}

TEST_F(RowsJournal, DamageOfWhatWasOnTheDiskIsRefusedWithItsPlace) {
  {
    const auto writer = start(options());
    push(*writer, 1, 6);
  }
  const fs::path path = segments().front().path;
  const auto whole = fs::file_size(path);
  const auto read_after_change = [&](std::uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(static_cast<std::streamoff>(at)).get(byte);
    file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte ^ 4));
    file.close();
    std::string torn;
    auto read = pushes(1, &torn);
    std::fstream back(path, std::ios::in | std::ios::out | std::ios::binary);
    back.seekp(static_cast<std::streamoff>(at)).put(byte);
    if (read.ok()) {
      EXPECT_NE(torn, "");
    }
    return read;
  };
  std::size_t refused = 0, cut = 0;
  for (std::uint64_t at = 0; at < whole; ++at) {
    const auto read = read_after_change(at);
    if (read.ok()) {
      ++cut;
      EXPECT_LT(read->size(), 6u) << at;
      EXPECT_EQ(*read, up_to(read->size()));
    } else {
      ++refused;
      EXPECT_EQ(read.error().code(), ErrorCode::kDataLoss);
      EXPECT_THAT(read.error().message(), HasSubstr(path.string()));
    }
  }
  // The last record is not known to have been on the disk: no later one says so.
  EXPECT_GT(refused, cut);
  EXPECT_GT(cut, 0u);
  EXPECT_EQ(pushes().value(), up_to(6));
}

TEST_F(RowsJournal, SegmentsBeginWithCheckpointsAndGoWhenThoseAreThere) {
  const auto writer = start(options());
  EXPECT_EQ(writer->rotate(), 1u);  // nothing is in it
  push(*writer, 1, 3);
  EXPECT_EQ(writer->rotate(), 2u);
  EXPECT_EQ(writer->rotate(), 2u);
  push(*writer, 4, 5);
  EXPECT_EQ(writer->rotate(), 3u);
  push(*writer, 6, 6);
  EXPECT_EQ(pushes().value(), up_to(6));
  EXPECT_EQ(pushes(3).value(), std::vector<std::uint64_t>{6});
  writer->prune(2);
  EXPECT_TRUE(await_segments(2));
  EXPECT_EQ(pushes(2).value(), (std::vector<std::uint64_t>{4, 5, 6}));
  writer->prune(9);
  EXPECT_TRUE(await_segments(1));
  EXPECT_EQ(segments().front().number, 3u);
}

TEST_F(RowsJournal, AMissingSegmentIsSeen) {
  const auto writer = start(options());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    push(*writer, i, i);
    writer->rotate();
  }
  fs::remove(folder_.path() / rows_journal::segment_name(2));
  const auto read = pushes();
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message(), HasSubstr("a segment before it is missing"));
}

TEST_F(RowsJournal, BatchesOfADeposedServerAfterTheNextSegmentDoNotCount) {
  const auto old = start(options());
  push(*old, 1, 3);
  const auto next = start(options(), {.segment = 2, .batches = 3});
  push(*old, 50, 51);
  push(*next, 4, 5);
  EXPECT_EQ(pushes().value(), up_to(5));
}

TEST_F(RowsJournal, AFullDiskHoldsPushesUpUntilThereIsSpace) {
  std::atomic<bool> is_full = false;
  auto how = options(600'000);
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "write" && is_full ? ENOSPC : 0;
  });
  const auto writer = start(std::move(how));
  push(*writer, 1, 2);
  is_full = true;
  const std::uint64_t third = writer->append(Push(3).entry);
  EXPECT_TRUE(progress_.await([&] { return !writer->state().trouble.empty(); }));
  EXPECT_FALSE(writer->is_done(third));
  EXPECT_FALSE(writer->state().is_broken);
  is_full = false;
  wait(*writer, third);
  EXPECT_EQ(writer->state().trouble, "");
  EXPECT_EQ(pushes().value(), up_to(3));
}

TEST_F(RowsJournal, WhereItMayGoOnAFullDiskBreaksItUntilTheNextSegmentWhichSaysSo) {
  std::atomic<bool> is_full = false;
  auto how = options(600'000);
  how.waits = false;
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "write" && is_full ? ENOSPC : 0;
  });
  const auto writer = start(std::move(how));
  push(*writer, 1, 2);
  is_full = true;
  wait(*writer, writer->append(Push(3).entry));
  EXPECT_TRUE(writer->state().is_broken);
  wait(*writer, writer->append(Push(4).entry));  // dropped
  is_full = false;
  EXPECT_EQ(writer->rotate(), 2u);
  EXPECT_FALSE(writer->state().is_broken);
  push(*writer, 5, 6);
  EXPECT_EQ(pushes(2).value(), (std::vector<std::uint64_t>{5, 6}));
  Reader reader(folder_.path(), 2);
  ASSERT_EQ(reader.next().value(), Reader::Found::kBase);
  EXPECT_TRUE(reader.base().follows_gap);
}

TEST_F(RowsJournal, AWriterFasterThanTheDiskHasNoRoom) {
  std::atomic<bool> is_full = true;
  auto how = options(600'000);
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path& path) {
    return operation == "write" && is_full && fs::exists(path) && fs::file_size(path) > 0 ? ENOSPC
                                                                                          : 0;
  });
  const auto writer = start(std::move(how));
  std::vector<std::byte> data(1 << 20);
  Push large(1);
  large.entry.data = data;
  std::size_t count = 0;
  for (; writer->has_room() && count < 1000; ++count) writer->append(large.entry);
  EXPECT_GE(count, Writer::kQueueBytes >> 20);
  EXPECT_LE(count, (Writer::kQueueBytes >> 20) + 1);
  is_full = false;
  wait(*writer, writer->asked());
  EXPECT_TRUE(writer->has_room());
}

}  // namespace
}  // namespace centroid::server
