#include "tests/simulation/memory_storage.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/replace_file.h"
#include "common/checkpoint/rows_journal.h"
#include "common/storage/file.h"
#include "server/store/journal_writer.h"
#include "server/store/rows_journal_writer.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;

constexpr std::uint64_t kSeeds = 1000;
constexpr std::size_t kSector = test::DiskState::kSectorBytes;

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string read(const fs::path& path) {
  const auto text = file::read_text(path);
  return text.ok() ? *text : "(" + text.error().message() + ")";
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  const auto entries = file::list(folder);
  EXPECT_TRUE(entries.ok());
  for (const auto& entry : *entries) names.push_back(entry.name);
  return names;
}

/// A text whose sectors all differ.
std::string long_text(char first, std::size_t bytes) {
  std::string text(bytes, ' ');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(first + i / kSector);
  return text;
}

/// A disk, and one process bound to this thread; `restart` begins another.
class Machine {
 public:
  Machine() : disk_(std::make_shared<test::MemoryDisk>()) { restart(); }
  test::MemoryDisk& disk() { return *disk_; }
  test::MemoryStorage& process() { return *process_; }
  void restart() {
    bound_.reset();
    retired_.push_back(std::move(process_));  // it may have open files
    process_ = std::make_unique<test::MemoryStorage>(disk_);
    bound_ = std::make_unique<storage::ScopedStorage>(*process_);
  }
  void kill() {
    process_->detach();
    restart();
  }
  void cut_power(std::uint64_t seed) {
    CounterRng rng(seed);
    disk_->crash(rng);
    restart();
  }
  std::unique_ptr<test::MemoryStorage> another() {
    return std::make_unique<test::MemoryStorage>(disk_);
  }

 private:
  std::shared_ptr<test::MemoryDisk> disk_;
  std::vector<std::unique_ptr<test::MemoryStorage>> retired_;
  std::unique_ptr<test::MemoryStorage> process_;
  std::unique_ptr<storage::ScopedStorage> bound_;
};

void write_synced(const fs::path& path, const std::string& text) {
  const auto file = file::open_to_append(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file::write_all(*file, path, bytes_of(text)).ok());
  ASSERT_TRUE(file::sync(*file, path).ok());
  ASSERT_TRUE(file::sync_directory(path.parent_path()).ok());
}

TEST(MemoryDisk, FoldersThatWereCreatedOutlastAPowerCutWithWhatWasSyncedInThem) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Machine machine;
    std::error_code error;
    EXPECT_TRUE(file::create_directories("/run/of/journal", error));
    write_synced("/run/of/journal/file", "x");
    ASSERT_TRUE(file::sync_directory("/run/of/journal").ok());
    machine.cut_power(seed);
    ASSERT_EQ(read("/run/of/journal/file"), "x") << "seed " << seed;
  }
}

TEST(MemoryStorage, WhatIsSyncedSurvivesEveryPowerCut) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    ASSERT_TRUE(file::create_directory("/run").ok());
    ASSERT_TRUE(file::sync_directory("/").ok());
    write_synced("/run/file", long_text('a', 2000));
    machine.cut_power(seed);
    machine.cut_power(seed + 1);
    ASSERT_EQ(read("/run/file"), long_text('a', 2000));
    ASSERT_THAT(names_in("/"), ElementsAre("run"));
  }
}

TEST(MemoryStorage, AnUnsyncedTailIsLostThereCutOrTorn) {
  const std::string before = long_text('a', 700), after = before + long_text('A', 3000);
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    write_synced("/file", before);
    const auto file = file::open_to_append("/file");
    ASSERT_TRUE(file::write_all(*file, "/file", bytes_of(after.substr(before.size()))).ok());
    machine.cut_power(seed);
    const std::string now = read("/file");
    ASSERT_GE(now.size(), before.size());
    ASSERT_LE(now.size(), after.size());
    ASSERT_EQ(now.substr(0, before.size()), before);
    bool has_hole = false, ends_in_zeros = now.size() > before.size() && now.back() == 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      ASSERT_TRUE(now[i] == after[i] || now[i] == 0) << i;
      has_hole |= i > 0 && now[i - 1] == 0 && now[i] != 0;
    }
    const bool is_prefix = now == after.substr(0, now.size());
    if (now == before) seen.insert("lost");
    if (now == after) seen.insert("there");
    if (is_prefix && now != before && now != after) seen.insert("prefix");
    if (ends_in_zeros && !has_hole) seen.insert("zeros at the end");
    if (has_hole) seen.insert("torn");
  }
  EXPECT_THAT(seen, ElementsAre("lost", "prefix", "there", "torn", "zeros at the end"));
}

TEST(MemoryStorage, SectorsWrittenOverAreOldOrNew) {
  const std::string before = long_text('a', 4 * kSector), after = long_text('A', 4 * kSector);
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    write_synced("/file", before);
    const auto file = file::open_to_change("/file");
    ASSERT_TRUE(file::write_at(*file, "/file", 0, bytes_of(after)).ok());
    machine.cut_power(seed);
    const std::string now = read("/file");
    ASSERT_EQ(now.size(), before.size());
    std::string fates;
    for (std::size_t at = 0; at < now.size(); at += kSector) {
      const bool is_old = now.substr(at, kSector) == before.substr(at, kSector);
      ASSERT_TRUE(is_old || now.substr(at, kSector) == after.substr(at, kSector));
      fates += is_old ? 'o' : 'n';
    }
    seen.insert(fates);
  }
  EXPECT_THAT(seen, Contains("oooo"));
  EXPECT_THAT(seen, Contains("nnnn"));
  EXPECT_EQ(seen.size(), 16u) << "any of them";
}

TEST(MemoryStorage, ACutThatIsNotSyncedIsDoneOrNot) {
  const std::string before = long_text('a', 3 * kSector);
  std::set<std::size_t> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    write_synced("/file", before);
    ASSERT_TRUE(file::truncate(*file::open_to_change("/file"), "/file", 700).ok());
    machine.cut_power(seed);
    const std::string now = read("/file");
    ASSERT_EQ(now, before.substr(0, now.size()));
    seen.insert(now.size());
  }
  EXPECT_THAT(seen, ElementsAre(700, 3 * kSector));
}

TEST(MemoryStorage, ANameLastsWithTheSyncOfItsFolder) {
  for (const bool is_synced : {false, true}) {
    std::set<std::string> seen;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      Machine machine;
      write_synced("/gone", "x");
      write_synced("/old", "y");
      const auto file = file::create("/made");
      ASSERT_TRUE(file::sync(*file, "/made").ok());
      ASSERT_TRUE(file::remove("/gone").ok());
      ASSERT_TRUE(file::rename("/old", "/new").ok());
      if (is_synced) {
        ASSERT_TRUE(file::sync_directory("/").ok());
      }
      machine.cut_power(seed);
      std::string all;
      for (const std::string& name : names_in("/")) all += name + " ";
      seen.insert(all);
    }
    if (is_synced) {
      EXPECT_THAT(seen, ElementsAre("made new "));
    } else
      EXPECT_THAT(seen, ElementsAre("gone made new ", "gone made old ", "gone new ", "gone old ",
                                    "made new ", "made old ", "new ", "old "));
  }
}

TEST(MemoryStorage, ChangesOfOneNameLastInTheirOrderAndARenameIsWhole) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    write_synced("/a", "1");
    ASSERT_TRUE(file::rename("/a", "/b").ok());
    ASSERT_TRUE(file::rename("/b", "/c").ok());
    machine.cut_power(seed);
    const auto names = names_in("/");
    ASSERT_EQ(names.size(), 1u) << "it has one name at any time";
    seen.insert(names.front());
  }
  EXPECT_THAT(seen, ElementsAre("a", "b", "c"));
}

TEST(MemoryStorage, AFolderWithoutALastingNameIsLostWithAllInIt) {
  std::set<bool> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine;
    ASSERT_TRUE(file::create_directory("/run").ok());
    write_synced("/run/file", "x");
    machine.cut_power(seed);
    seen.insert(file::exists("/run"));
    if (file::exists("/run")) {
      ASSERT_EQ(read("/run/file"), "x");
    }
  }
  EXPECT_THAT(seen, ElementsAre(false, true));
}

/// As after a failed fsync of Linux: the pages are clean, and their content is nowhere.
TEST(MemoryStorage, WhatAFailedSyncWasToWriteIsLostThoughALaterOneSucceeds) {
  Machine machine;
  write_synced("/file", long_text('a', kSector));
  const auto file = file::open_to_append("/file");
  ASSERT_TRUE(file::write_all(*file, "/file", bytes_of(std::string(kSector, 'B'))).ok());
  machine.process().set_hook(
      [](auto operation, const auto&) { return operation == "sync" ? EIO : 0; });
  EXPECT_EQ(file::sync(*file, "/file").error().code(), ErrorCode::kUnavailable);
  machine.process().set_hook([](auto, const auto&) { return 0; });
  ASSERT_TRUE(file::write_all(*file, "/file", bytes_of(std::string(kSector, 'C'))).ok());
  ASSERT_TRUE(file::sync(*file, "/file").ok());
  EXPECT_EQ(read("/file"),
            std::string(kSector, 'a') + std::string(kSector, 'B') + std::string(kSector, 'C'));
  machine.cut_power(1);
  EXPECT_EQ(read("/file"),
            std::string(kSector, 'a') + std::string(kSector, 0) + std::string(kSector, 'C'));
}

TEST(MemoryStorage, AKilledProcessLosesNoByteAndWritesOnIntoNowhere) {
  Machine machine;
  const auto killed = machine.another();
  std::unique_ptr<storage::File> file, lock;
  {
    const storage::ScopedStorage own(*killed);
    file = std::move(killed->open("/file", storage::Open::kAppend, 0644).value);
    lock = std::move(killed->open("/lock", storage::Open::kLock, 0600).value);
  }
  ASSERT_FALSE(lock->lock());
  ASSERT_TRUE(file->write(bytes_of("before")).ok());
  auto other = std::move(machine.process().open("/lock", storage::Open::kLock, 0600).value);
  EXPECT_EQ(other->lock(), std::errc::operation_would_block);
  killed->detach();
  EXPECT_TRUE(killed->is_detached());
  EXPECT_FALSE(other->lock()) << "the kernel gives it back";
  ASSERT_TRUE(file->write(bytes_of(" and after")).ok());
  EXPECT_FALSE(killed->rename("/file", "/renamed"));
  EXPECT_EQ(read("/file"), "before");
  EXPECT_THAT(names_in("/"), ElementsAre("file", "lock"));
  const storage::ScopedStorage own(*killed);
  EXPECT_EQ(read("/renamed"), "before and after");
}

TEST(MemoryStorage, APowerCutDetachesEveryProcess) {
  Machine machine;
  const auto one = machine.another(), other = machine.another();
  auto file = std::move(one->open("/file", storage::Open::kCreate, 0644).value);
  CounterRng rng(1);
  machine.disk().crash(rng);
  EXPECT_TRUE(one->is_detached() && other->is_detached());
  EXPECT_TRUE(file->write(bytes_of("x")).ok());
  EXPECT_EQ(machine.disk().used(), 0u);
}

TEST(MemoryStorage, AFullDiskTakesWhatFitsAndSaysHowMuchIsFree) {
  Machine machine;
  machine.disk().set_capacity(1000);
  auto file = std::move(machine.process().open("/file", storage::Open::kAppend, 0644).value);
  EXPECT_EQ(file->write(bytes_of(std::string(900, 'x'))).value, 900u);
  EXPECT_EQ(file->write(bytes_of(std::string(900, 'x'))).value, 100u);
  EXPECT_EQ(file->write(bytes_of("x")).error, std::errc::no_space_on_device);
  file::Descriptor changed = file::open_to_change("/file").value();
  EXPECT_TRUE(file::write_at(changed, "/file", 0, bytes_of("y")).ok()) << "takes no room";
  const Status refused = file::write_text("/other", "x");
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr(", 0 bytes are free there"));
  ASSERT_TRUE(file::remove("/file").ok());
  EXPECT_EQ(machine.disk().used(), 1000u) << "it is open";
  file.reset();
  changed = file::Descriptor();
  EXPECT_EQ(machine.disk().used(), 0u);
  EXPECT_TRUE(file::write_text("/other", "x").ok());
  EXPECT_EQ(file::space_around("/").value().free_bytes, 999u);
}

TEST(MemoryStorage, TheHookIsAskedBeforeEachOperation) {
  Machine machine;
  std::vector<std::string> asked;
  machine.process().set_hook([&](std::string_view operation, const fs::path& path) {
    asked.push_back(std::string(operation) + " " + path.string());
    return operation == "rename" ? ENOSPC : 0;
  });
  ASSERT_TRUE(file::write_text("/file", "x").ok());
  EXPECT_EQ(file::rename("/file", "/other").error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(
      asked, ElementsAre("open /file", "truncate /file", "write /file", "rename /file", "space /"));
  EXPECT_TRUE(file::exists("/file"));
}

TEST(MemoryStorage, TheSameSeedGivesTheSameDisk) {
  const auto run = [](std::uint64_t seed) {
    Machine machine;
    CounterRng rng(seed);
    for (int i = 0; i < 200; ++i) {
      const fs::path path = "/file" + std::to_string(rng.below(5));
      const auto file = file::open_to_append(path);
      EXPECT_TRUE(file::write_all(*file, path, bytes_of(long_text('a', rng.below(3000)))).ok());
      if (rng.below(3) == 0) {
        EXPECT_TRUE(file::sync(*file, path).ok());
      }
      if (rng.below(3) == 0) {
        EXPECT_TRUE(file::sync_directory("/").ok());
      }
      if (rng.below(4) == 0) {
        EXPECT_TRUE(file::rename(path, "/file" + std::to_string(rng.below(5))).ok());
      }
      if (rng.below(20) == 0) machine.cut_power(rng.next());
    }
    return machine.disk().digest();
  };
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::uint64_t digest = run(seed);
    EXPECT_EQ(run(seed), digest) << seed;
    digests.insert(digest);
  }
  EXPECT_EQ(digests.size(), 20u);
}

TEST(MemoryStorage, ThreadsMayShareIt) {
  Machine machine;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&process = machine.process(), thread] {
      const storage::ScopedStorage own(process);
      for (int i = 0; i < 200; ++i)
        write_synced("/file" + std::to_string(thread), std::to_string(i) + "\n");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(names_in("/").size(), 4u);
  EXPECT_EQ(read("/file0"), read("/file3"));
}

// What the product promises, with the power cut at any operation.

/// Runs `act` with a power cut before each of its operations in turn, until it is through; then
/// `check(is_done)`.
void with_power_cuts(const std::function<void()>& prepare, const std::function<bool()>& act,
                     const std::function<void(bool is_done)>& check) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (int cut_at = 1;; ++cut_at) {
      ASSERT_LT(cut_at, 300);
      SCOPED_TRACE("seed " + std::to_string(seed) + ", operation " + std::to_string(cut_at));
      Machine machine;
      prepare();
      int operations = 0;
      CounterRng rng(seed, static_cast<std::uint64_t>(cut_at));
      machine.process().set_hook([&](auto, const auto&) {
        if (++operations == cut_at) machine.disk().crash(rng);
        return 0;
      });
      const bool is_done = act() && !machine.process().is_detached();
      if (!machine.process().is_detached()) machine.disk().crash(rng);
      machine.restart();
      check(is_done);
      if (is_done || ::testing::Test::HasFatalFailure()) break;
    }
  }
}

TEST(PowerCuts, AReplacedFileIsOldOrNewAndNewWhenItIsSaidSo) {
  const std::string before = long_text('a', 3000), after = long_text('A', 4000);
  with_power_cuts(
      [&] { write_synced("/file", before); },
      [&] { return replace_file("/file", after, Replacement{fault::Stem("test")}).ok(); },
      [&](bool is_done) {
        const std::string now = read("/file");
        EXPECT_TRUE(now == after || (now == before && !is_done)) << now.size();
      });
}

/// The check above is no better than its disk: without one of the syncs it must fail.
TEST(PowerCuts, FindAFileThatWasRenamedBeforeItWasSynced) {
  const std::string before = long_text('a', 3000), after = long_text('A', 4000);
  for (const bool syncs_file : {false, true}) {
    int damaged = 0, undone = 0;
    with_power_cuts([&] { write_synced("/file", before); },
                    [&] {
                      const auto draft = file::create("/draft");
                      (void)file::write_all(*draft, "/draft", bytes_of(after));
                      if (syncs_file) (void)file::sync(*draft, "/draft");
                      return file::rename("/draft", "/file").ok();
                    },
                    [&](bool is_done) {
                      const std::string now = read("/file");
                      damaged += now != before && now != after;
                      undone += is_done && now == before;
                    });
    EXPECT_EQ(damaged > 0, !syncs_file);
    EXPECT_GT(undone, 0) << "the folder was not synced";
  }
}

TEST(PowerCuts, OfCheckpointsTheOlderOrTheNewerOneIsSound) {
  const Manifest model = {{"w", DType::kF32, {700}}};
  const auto write = [&](std::uint64_t version) {
    auto directory = CheckpointDirectory::open("/run/checkpoints", 2);
    CheckpointInfo info;
    info.run_id = "run";
    info.version = Version(version);
    info.round = Round(version);
    const auto values = [version](std::size_t, std::uint64_t, std::span<float> into) -> Status {
      std::ranges::fill(into, static_cast<float>(version));
      return {};
    };
    return directory.ok() && directory->write(info, model, values).ok();
  };
  with_power_cuts(
      [&] {
        ASSERT_TRUE(file::create_directory("/run").ok());
        ASSERT_TRUE(file::sync_directory("/").ok());
        ASSERT_TRUE(write(1));
      },
      [&] { return write(2); },
      [&](bool is_done) {
        const auto directory = CheckpointDirectory::open("/run/checkpoints", 2);
        ASSERT_TRUE(directory.ok());
        const auto newest = directory->newest_valid(
            [](const CheckpointEntry& entry) { FAIL() << "damaged: " << entry.problem; });
        ASSERT_TRUE(newest.ok()) << newest.error().message();
        EXPECT_TRUE(newest->version.value == 2 || !is_done);
        for (const std::string& name : names_in("/run/checkpoints"))
          EXPECT_FALSE(name.starts_with(".tmp-")) << name;
      });
}

TEST(PowerCuts, RoundsThatTheJournalSaidWereDoneAreThere) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    CounterRng rng(seed);
    Machine machine;
    ASSERT_TRUE(file::create_directory("/journal").ok());
    ASSERT_TRUE(file::sync_directory("/").ok());
    const std::string chunk = long_text('a', 1 + rng.below(3000));
    const std::uint64_t rounds = 1 + rng.below(5);
    std::uint64_t done = 0;
    {
      server::JournalWriter::Options options;
      options.folder = "/journal";
      options.sync_every = std::chrono::milliseconds(0);
      journal::Base base;
      base.run_id = "run";
      auto writer = server::JournalWriter::start(std::move(options), base);
      ASSERT_TRUE(writer.ok()) << writer.error().message();
      std::uint64_t number = 0;
      for (std::uint64_t round = 1; round <= rounds + 1; ++round) {
        (*writer)->chunk_copy(Round(round), 0, ChunkId(0), journal::Form::kSum, bytes_of(chunk));
        journal::Commit commit;
        commit.version = Version(round + 1);
        commit.chunks = 1;
        number = (*writer)->end_round(journal::Kind::kCommit, Round(round), 0, commit);
        if (round > rounds) break;  // the power goes while this one is written
        while (!(*writer)->is_done(number)) std::this_thread::yield();
        done = round;
      }
      CounterRng fate(seed, 1);
      machine.disk().crash(fate);
    }
    machine.restart();
    const auto report = journal::verify("/journal");
    ASSERT_TRUE(report.ok()) << report.error().message();
    ASSERT_TRUE(report->last.has_value());
    EXPECT_GE(report->last->value, done);
    EXPECT_LE(report->last->value, rounds + 1);
  }
}

/// A writer that syncs seldom is killed, another process goes on behind its rounds, then the power
/// goes: a segment that follows says that all before it is on the disk.
TEST(PowerCuts, WhatAKilledWriterLeftIsOnTheDiskBeforeASegmentFollowsIt) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Machine machine;
    ASSERT_TRUE(file::create_directory("/journal").ok());
    ASSERT_TRUE(file::sync_directory("/").ok());
    const std::string chunk = long_text('a', 1000);
    journal::Base base;
    base.run_id = "run";
    server::JournalWriter::Options options;
    options.folder = "/journal";
    options.sync_every = std::chrono::minutes(10);
    constexpr std::uint64_t kRounds = 3;
    {
      auto writer = server::JournalWriter::start(options, base);
      ASSERT_TRUE(writer.ok()) << writer.error().message();
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        (*writer)->chunk_copy(Round(round), 0, ChunkId(0), journal::Form::kSum, bytes_of(chunk));
        journal::Commit commit;
        commit.version = Version(round + 1);
        commit.chunks = 1;
        const auto number = (*writer)->end_round(journal::Kind::kCommit, Round(round), 0, commit);
        while (!(*writer)->is_done(number)) std::this_thread::yield();
      }
      machine.kill();  // what was written stays
    }
    journal::Reader reader("/journal");
    for (auto record = reader.next(); record.ok() && *record; record = reader.next())
      if (std::holds_alternative<journal::Reader::Chunk>(**record)) reader.skip();
    ASSERT_TRUE(reader.cut_tail().ok());
    base.round = Round(kRounds);
    {
      auto writer = server::JournalWriter::start(options, base);
      ASSERT_TRUE(writer.ok()) << writer.error().message();
      machine.cut_power(seed);
    }
    const auto report = journal::verify("/journal");
    ASSERT_TRUE(report.ok()) << report.error().message();
    ASSERT_TRUE(report->last.has_value());
    EXPECT_EQ(report->last->value, kRounds);
  }
}

/// The same of the journal of tables.
TEST(PowerCuts, PushesThatAKilledWriterLeftAreOnTheDiskBeforeASegmentFollowsThem) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Machine machine;
    ASSERT_TRUE(file::create_directory("/journal").ok());
    ASSERT_TRUE(file::sync_directory("/").ok());
    const std::string data = long_text('a', 1000);
    server::RowsJournalWriter::Options options;
    options.folder = "/journal";
    options.run_id = "run";
    options.sync_every = std::chrono::minutes(10);
    {
      auto writer = server::RowsJournalWriter::start(options, {});
      ASSERT_TRUE(writer.ok()) << writer.error().message();
      rows_journal::Entry entry;
      entry.data = bytes_of(data);
      const std::uint64_t number = (*writer)->append(entry);
      while (!(*writer)->is_done(number)) std::this_thread::yield();
      machine.kill();
    }
    rows_journal::Reader reader("/journal", 0);
    auto found = reader.next();
    while (found.ok() && *found != rows_journal::Reader::Found::kEnd) found = reader.next();
    ASSERT_TRUE(reader.cut_tail().ok());
    {
      auto writer =
          server::RowsJournalWriter::start(options, {.segment = 2, .batches = reader.batches()});
      ASSERT_TRUE(writer.ok()) << writer.error().message();
      machine.cut_power(seed);
    }
    const auto report = rows_journal::verify("/journal");
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_EQ(report->pushes, 1u);
  }
}

}  // namespace
}  // namespace centroid
