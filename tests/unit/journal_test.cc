#include "server/store/journal.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/checkpoint/journal_reader.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/progress.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

namespace fs = std::filesystem;
using journal::Form;
using journal::Kind;
using journal::Reader;
using ::testing::HasSubstr;

std::vector<float> numbers(std::uint64_t round) {
  std::vector<float> out(100);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(round * 1000 + i);
  return out;
}

class JournalTest : public ::testing::Test {
 protected:
  JournalWriter::Options options() {
    JournalWriter::Options out;
    out.folder = folder_.path();
    out.sync_every = std::chrono::milliseconds(0);
    out.on_progress = [this] { progress_.notify(); };
    out.on_sync = [this](double) { progress_.notify(); };
    return out;
  }

  static journal::Base base(std::uint64_t round) {
    journal::Base out;
    out.run_id = "run";
    out.terms = "terms";
    out.round = Round(round);
    out.version = Version(round + 1);
    out.optimizer_step = round;
    return out;
  }

  std::unique_ptr<JournalWriter> start(JournalWriter::Options how, std::uint64_t round = 0) {
    auto writer = JournalWriter::start(std::move(how), base(round));
    EXPECT_TRUE(writer.ok());
    return std::move(writer).value();
  }

  void wait(const JournalWriter& writer, std::uint64_t number) {
    ASSERT_TRUE(progress_.await([&] { return writer.is_done(number); }));
  }

  void write_round(JournalWriter& writer, std::uint64_t round) {
    const auto values = numbers(round);
    writer.chunk_copy(Round(round), 0, ChunkId(0), Form::kSum,
                      std::as_bytes(std::span<const float>(values)));
    journal::Commit commit;
    commit.version = Version(round + 1);
    commit.optimizer_step = round;
    commit.chunks = 1;
    commit.weight = 3;
    commit.contributors = {"a", "b"};
    wait(writer, writer.end_round(Kind::kCommit, Round(round), 0, commit));
  }

  /// Rounds whose end can be read, with the numbers they must have.
  Result<std::vector<std::uint64_t>> rounds(std::string* torn = nullptr) const {
    std::vector<std::uint64_t> out;
    std::vector<float> values(100);
    Reader reader(folder_.path());
    for (;;) {
      CENTROID_ASSIGN(const auto record, reader.next());
      if (!record) break;
      if (std::get_if<Reader::Chunk>(&*record) != nullptr) {
        CENTROID_ASSIGN(const bool is_sound, reader.check());
        if (!is_sound) break;
        const journal::Segment& segment = *reader.segment();
        CENTROID_TRY(file::read_at(segment.file, segment.path, reader.payload_at(),
                                   std::as_writable_bytes(std::span(values))));
      }
      if (const auto* end = std::get_if<Reader::End>(&*record)) {
        EXPECT_EQ(values, numbers(end->head.round.value));
        out.push_back(end->head.round.value);
      }
    }
    if (torn != nullptr) *torn = reader.torn();
    return out;
  }

  fs::path only_segment() const {
    const auto segments = journal::segments_of(folder_.path()).value();
    EXPECT_EQ(segments.size(), 1u);
    return segments.front().path;
  }

  test::Progress progress_;
  TemporaryDirectory folder_;
};

TEST(JournalFormat, CommitsOfOlderJournalsHaveNeitherStepsNorWhatCameLater) {
  journal::Commit commit;
  commit.version = Version(9);
  commit.contributors = {"a", "b"};
  commit.steps = 1234;
  auto bytes = encode(commit);
  const std::size_t without = bytes.size();
  commit.rounds = {Round(8), Round(5)};
  commit.returned = "0:64-128,1:0-8";
  bytes = encode(commit);
  const auto back = journal::decode_commit(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->steps, 1234u);
  EXPECT_EQ(back->contributors, commit.contributors);
  EXPECT_EQ(back->rounds, commit.rounds);
  EXPECT_EQ(back->returned, commit.returned);
  EXPECT_EQ(back->rate_factor, 1);
  commit.rate_factor = 1.5;
  const auto scaled = journal::decode_commit(encode(commit));
  ASSERT_TRUE(scaled.ok());
  EXPECT_EQ(scaled->rate_factor, 1.5);
  commit.rate_factor = 0.5;
  EXPECT_FALSE(journal::decode_commit(encode(commit)).ok());
  commit.rate_factor = 1;
  bytes.resize(bytes.size() - 1);
  EXPECT_FALSE(journal::decode_commit(bytes).ok()) << "cut within the shares";
  commit.rounds.pop_back();
  EXPECT_FALSE(journal::decode_commit(encode(commit)).ok()) << "a round for one of two";
  bytes.resize(without - 2 * sizeof(std::uint32_t));
  const auto with_steps = journal::decode_commit(bytes);
  ASSERT_TRUE(with_steps.ok());
  EXPECT_EQ(with_steps->steps, 1234u);
  EXPECT_TRUE(with_steps->rounds.empty());
  EXPECT_EQ(with_steps->returned, "");
  bytes.resize(bytes.size() - 3);
  EXPECT_FALSE(journal::decode_commit(bytes).ok()) << "cut within the number";
  bytes.resize(bytes.size() - 5);
  const auto older = journal::decode_commit(bytes);
  ASSERT_TRUE(older.ok());
  EXPECT_EQ(older->steps, 0u);
  EXPECT_EQ(older->contributors, commit.contributors);
}

/// Otherwise a server that resumes would go back to its checkpoint and overwrite the rounds.
TEST_F(JournalTest, AFolderThatIsUnreadableIsNotAnEmptyOne) {
  write_round(*start(options()), 1);
  const test::ScopedFaults hook(
      [](std::string_view operation, const fs::path&) { return operation == "list" ? EIO : 0; });
  EXPECT_FALSE(journal::segments_of(folder_.path()).ok());
  EXPECT_FALSE(journal::Reader(folder_.path()).next().ok());
  EXPECT_FALSE(JournalWriter::start(options(), base(0), {}).ok());
}

TEST_F(JournalTest, CommitsComeBack) {
  {
    const auto writer = start(options());
    for (std::uint64_t round = 1; round <= 5; ++round) write_round(*writer, round);
    EXPECT_EQ(writer->state().durable, 5u);
  }
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(JournalTest, DroppedAttemptLeavesNoTrace) {
  {
    const auto writer = start(options());
    write_round(*writer, 1);
    const auto before = fs::file_size(only_segment());
    const auto values = numbers(7);
    writer->chunk(Round(2), 0, ChunkId(0), Form::kSum,
                  std::as_bytes(std::span<const float>(values)));
    writer->drop_attempt();
    wait(*writer, writer->asked());
    EXPECT_EQ(fs::file_size(only_segment()), before);
    write_round(*writer, 2);
  }
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(1, 2));
}

TEST_F(JournalTest, SegmentsGoWhenACheckpointHasTheirRounds) {
  const auto writer = start(options());
  write_round(*writer, 1);
  writer->begin_segment(base(1));
  write_round(*writer, 2);
  writer->begin_segment(base(2));
  write_round(*writer, 3);
  writer->prune(Round(1));
  wait(*writer, writer->asked());
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(2, 3));
  writer->prune(Round(3));
  wait(*writer, writer->asked());
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(3));  // the present one stays
}

/// Cut anywhere: all rounds whose end is before the cut come back, none that is not whole.
TEST_F(JournalTest, EveryCutIsATornTail) {
  std::vector<std::uint64_t> ends;
  {
    JournalWriter::Options how = options();
    how.sync_every = std::chrono::hours(1);  // nothing is known to be on the disk
    const auto writer = start(how);
    ends.push_back(fs::file_size(only_segment()));
    for (std::uint64_t round = 1; round <= 3; ++round) {
      write_round(*writer, round);
      ends.push_back(fs::file_size(only_segment()));
    }
  }
  const std::string whole = slurp(only_segment());
  const fs::path path = only_segment();
  for (std::size_t cut = 0; cut < whole.size(); cut += 7) {
    spill(path, whole.substr(0, cut));
    std::size_t expected = 0;
    while (expected < 3 && ends[expected + 1] <= cut) ++expected;
    const auto found = rounds();
    ASSERT_TRUE(found.ok()) << cut << found.error().message();
    EXPECT_EQ(found->size(), expected) << cut;
    Reader reader(folder_.path());
    for (auto record = reader.next(); record.ok() && *record; record = reader.next())
      if (std::get_if<Reader::Chunk>(&**record) != nullptr) reader.skip();
    ASSERT_TRUE(reader.cut_tail().ok());
    EXPECT_EQ(rounds().value().size(), expected);
  }
}

TEST_F(JournalTest, DamageOfWhatWasSyncedIsRefusedWithItsOffset) {
  {
    const auto writer = start(options());
    for (std::uint64_t round = 1; round <= 3; ++round) write_round(*writer, round);
  }
  const std::string whole = slurp(only_segment());
  const fs::path path = only_segment();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 50; ++i) {
    // The last commit says how much was on the disk before it: up to there it is damage.
    const std::size_t at = 40 + random() % (2 * whole.size() / 3 - 40);
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ (1 << random() % 8));
    spill(path, altered);
    const auto found = rounds();
    ASSERT_FALSE(found.ok()) << at;
    EXPECT_THAT(found.error().message(), HasSubstr("byte "));
    EXPECT_THAT(found.error().message(), HasSubstr(path.filename().string()));
  }
}

TEST_F(JournalTest, DamageOfWhatWasNotSyncedIsATornTail) {
  {
    JournalWriter::Options how = options();
    how.sync_every = std::chrono::hours(1);
    const auto writer = start(how);
    for (std::uint64_t round = 1; round <= 3; ++round) write_round(*writer, round);
  }
  std::string altered = slurp(only_segment());
  const std::size_t middle = altered.size() / 2;
  for (std::size_t i = 0; i < 50; ++i) altered[middle + i] = 0;
  spill(only_segment(), altered);
  std::string torn;
  EXPECT_THAT(rounds(&torn).value(), ::testing::ElementsAre(1));
  EXPECT_THAT(torn, HasSubstr("byte "));
}

TEST_F(JournalTest, FullDiskIsWaitedFor) {
  std::atomic<bool> is_full = false;
  JournalWriter::Options how = options();
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "write" && is_full ? ENOSPC : 0;
  });
  const auto writer = start(how);
  write_round(*writer, 1);
  is_full = true;
  journal::Commit commit;
  commit.version = Version(3);
  const auto number = writer->end_round(Kind::kSkip, Round(2), 0, commit);
  EXPECT_TRUE(progress_.await([&] { return !writer->state().trouble.empty(); }));
  EXPECT_THAT(writer->state().trouble, HasSubstr("No space left"));
  EXPECT_FALSE(writer->is_done(number));
  EXPECT_FALSE(writer->state().is_broken);
  is_full = false;
  wait(*writer, number);
  EXPECT_EQ(writer->state().trouble, "");
  EXPECT_EQ(journal::verify(folder_.path()).value().skips, 1u);
}

TEST_F(JournalTest, BrokenJournalGoesOnWithANewSegmentThatSaysSo) {
  std::atomic<bool> is_full = false;
  JournalWriter::Options how = options();
  how.waits = false;
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "write" && is_full ? ENOSPC : 0;
  });
  const auto writer = start(how);
  write_round(*writer, 1);
  is_full = true;
  write_round(*writer, 2);  // done, and lost
  EXPECT_TRUE(writer->state().is_broken);
  is_full = false;
  write_round(*writer, 3);
  writer->begin_segment(base(3));
  write_round(*writer, 4);
  EXPECT_FALSE(writer->state().is_broken);
  Reader reader(folder_.path());
  std::vector<std::pair<std::uint64_t, bool>> bases;
  for (auto record = reader.next(); record.ok() && *record; record = reader.next()) {
    if (const auto* found = std::get_if<journal::Base>(&**record))
      bases.emplace_back(found->round.value, found->follows_gap);
    if (std::get_if<Reader::Chunk>(&**record) != nullptr) reader.skip();
  }
  EXPECT_THAT(bases, ::testing::ElementsAre(std::pair(0u, false), std::pair(3u, true)));
}

/// What a failed write left in front of a gap is no damage, however much of a record it is.
TEST_F(JournalTest, ATornTailInFrontOfAGapIsPassedOver) {
  std::atomic<bool> is_full = false;
  {
    JournalWriter::Options how = options();
    how.waits = false;
    const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
      return operation == "write" && is_full ? ENOSPC : 0;
    });
    const auto writer = start(how);
    write_round(*writer, 1);
    is_full = true;
    write_round(*writer, 2);  // done, and lost
    is_full = false;
    writer->begin_segment(base(3));
    write_round(*writer, 4);
  }
  const auto segments = journal::segments_of(folder_.path()).value();
  ASSERT_EQ(segments.size(), 2u);
  const fs::path old = segments.front().path;
  const std::string sound = slurp(old);
  const std::size_t record = std::min<std::size_t>(sound.size(), 600);
  const std::string again = sound.substr(sound.size() - record);
  for (std::size_t n = 0; n < record; ++n) {  // cut anywhere: a record's first bytes, or any
    SCOPED_TRACE(n);
    spill(old, sound + again.substr(0, n));
    const auto read = rounds();
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    ASSERT_THAT(*read, ::testing::ElementsAre(1, 4));
  }
}

/// Whoever brings copies must never stand still with its thread, whatever the disk does.
TEST_F(JournalTest, CopiesHaveNoRoomWhileTheDiskIsFull) {
  std::atomic<bool> is_full = false;
  std::atomic<int> told = 0;
  JournalWriter::Options how = options();
  how.on_progress = [&] {
    ++told;
    progress_.notify();
  };
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    return operation == "write" && is_full ? ENOSPC : 0;
  });
  const auto writer = start(how);
  is_full = true;
  const std::vector<float> values(std::size_t{1} << 18);  // 1 MiB
  const Bytes bytes = std::as_bytes(std::span<const float>(values));
  auto brought = std::async(std::launch::async, [&] {
    for (std::uint32_t chunk = 0; chunk < 66; ++chunk)
      writer->chunk_copy(Round(1), 0, ChunkId(chunk), Form::kSum, bytes);
  });
  if (brought.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    std::fputs("chunk_copy waits for the disk\n", stderr);
    std::_Exit(1);
  }
  EXPECT_FALSE(writer->has_room());
  const int before = told;
  is_full = false;
  EXPECT_TRUE(progress_.await([&] { return writer->has_room(); }));
  wait(*writer, writer->asked());
  EXPECT_GT(told, before) << "who waits for room is to hear of it";
}

TEST_F(JournalTest, FailedSyncBreaksAndIsNotRepeated) {
  std::atomic<int> syncs = 0;
  JournalWriter::Options how = options();
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path& path) {
    const bool is_segment = path.extension() == ".log";
    return operation == "sync" && is_segment && ++syncs == 2 ? EIO : 0;
  });
  const auto writer = start(how);
  write_round(*writer, 1);
  EXPECT_TRUE(writer->state().is_broken);
  write_round(*writer, 2);
  EXPECT_EQ(syncs, 2);
}

/// It begins a new segment behind a checkpoint, if it has every round since then. It asks for
/// checkpoints until that one is written.
TEST_F(JournalTest, ABrokenJournalIsRepairedByACheckpointOfItsAttempt) {
  std::atomic<bool> fails = false;
  IoThread service("service"), files("files");
  std::optional<test::ScopedFaults> faults;  // of the thread that opens the journal
  auto begin_faults = [&] {
    faults.emplace([&](std::string_view operation, const fs::path&) {
      return operation == "sync" && fails ? EIO : 0;
    });
  };
  auto end_faults = [&] { faults.reset(); };
  service.wait(run_on(files.executor(), std::move(begin_faults)));
  Journal journal(service.executor());
  ASSERT_TRUE(service.wait(journal.start(files.executor(), options(), base(0))).ok());
  std::vector<float> values;
  const auto begin = [&](std::uint64_t round) {
    service.wait(journal.begin_attempt(base(round - 1)));
    values = numbers(round);
    journal.begin(Round(round), 0);
  };
  const auto end = [&](bool fails_to) {
    fails = fails_to;
    journal.chunk(ChunkId(0), Form::kSum, std::as_bytes(std::span<const float>(values)));
    service.wait(journal.done(journal.end_round(Kind::kCommit, journal::Commit())));
    fails = false;
  };
  const TimePoint now = centroid::now();
  begin(1);
  end(false);
  EXPECT_FALSE(journal.requires_checkpoint(now));
  begin(2);
  end(true);
  EXPECT_TRUE(journal.requires_checkpoint(now));
  EXPECT_FALSE(journal.requires_checkpoint(now + std::chrono::seconds(59))) << "it was asked for";
  EXPECT_TRUE(journal.requires_checkpoint(now + std::chrono::minutes(1)));
  journal.checkpoint_begins(Round(1));
  begin(3);
  EXPECT_TRUE(journal.state().is_broken) << "round 2 is behind the checkpoint, and in no segment";
  journal.checkpoint_begins(Round(2));
  service.wait(journal.drained());
  EXPECT_FALSE(journal.state().is_broken);
  EXPECT_TRUE(journal.requires_checkpoint(now + std::chrono::minutes(2))) << "until it is written";
  end(false);
  journal.checkpoint_written(Round(1));
  EXPECT_TRUE(journal.requires_checkpoint(now + std::chrono::minutes(3)));
  journal.checkpoint_written(Round(2));
  EXPECT_FALSE(journal.requires_checkpoint(now + std::chrono::minutes(4)));
  begin(4);
  end(true);
  journal.checkpoint_begins(Round(3));  // its segment would lack round 4
  service.wait(journal.drained());
  EXPECT_TRUE(journal.state().is_broken);
  service.wait(journal.stop(files.executor()));
  service.wait(run_on(files.executor(), std::move(end_faults)));
}

TEST_F(JournalTest, GroupCommitSyncsSeveralRoundsAtOnce) {
  std::atomic<int> syncs = 0;
  std::atomic<bool> is_held = false;
  std::atomic<JournalWriter*> started = nullptr;
  std::atomic<std::uint64_t> told = 0;  // the durable round that the newest call found
  JournalWriter::Options how = options();
  how.sync_every = std::chrono::milliseconds(1);
  how.on_sync = [&](double) {
    ++syncs;
    if (JournalWriter* const journal = started) told = journal->state().durable;
    progress_.notify();
  };
  const test::ScopedFaults faults([&](std::string_view operation, const fs::path&) {
    if (operation == "sync") is_held.wait(true);
    return 0;
  });
  const auto writer = start(how);
  started = writer.get();
  is_held = true;
  for (std::uint64_t round = 1; round <= 20; ++round) write_round(*writer, round);
  is_held = false;
  is_held.notify_all();
  EXPECT_TRUE(progress_.await([&] { return told == 20; }));
  EXPECT_EQ(writer->state().durable, 20u);
  EXPECT_LE(syncs, 3) << "the segment's, at most one that was held, and that of the others";
  started = nullptr;
}

TEST_F(JournalTest, RecordsOfADeposedServerAfterTheNextSegmentAreNotRead) {
  const auto deposed = start(options());
  write_round(*deposed, 1);
  write_round(*deposed, 2);
  const auto leader = start(options(), 2);  // has replayed both, and begins its own
  write_round(*leader, 3);
  write_round(*deposed, 3);  // woke up in the middle of it
  const auto values = numbers(9);
  deposed->chunk_copy(Round(4), 0, ChunkId(0), Form::kSum,
                      std::as_bytes(std::span<const float>(values)));
  wait(*deposed, deposed->asked());
  const auto segments = journal::segments_of(folder_.path()).value();
  ASSERT_EQ(segments.size(), 2u);
  fs::resize_file(segments.front().path, segments.front().bytes - 7);  // and was killed in it
  write_round(*leader, 4);
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(1, 2, 3, 4));
}

TEST_F(JournalTest, WithoutTheRightToWriteItWaitsOrIsBrokenForGood) {
  auto how = options();
  std::atomic<int> state{0};
  how.may_write = [&]() -> Status {
    if (state == 1) return Error(ErrorCode::kUnavailable, "the lease is out");
    if (state == 2) return Error(ErrorCode::kAborted, "deposed");
    return {};
  };
  const auto writer = start(how);
  write_round(*writer, 1);
  const auto size = fs::file_size(only_segment());
  state = 1;
  const auto values = numbers(2);
  writer->chunk_copy(Round(2), 0, ChunkId(0), Form::kSum,
                     std::as_bytes(std::span<const float>(values)));
  EXPECT_TRUE(progress_.await([&] { return !writer->state().trouble.empty(); }));
  EXPECT_EQ(writer->state().trouble, "the lease is out");
  EXPECT_FALSE(writer->is_done(writer->asked()));
  EXPECT_EQ(fs::file_size(only_segment()), size);
  state = 2;
  wait(*writer, writer->asked());
  EXPECT_TRUE(writer->state().is_broken);
  EXPECT_EQ(fs::file_size(only_segment()), size);
  writer->begin_segment(base(1));
  wait(*writer, writer->asked());
  EXPECT_TRUE(writer->state().is_broken);
  EXPECT_THAT(rounds().value(), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace centroid::server
