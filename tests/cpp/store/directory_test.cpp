// Which checkpoint is the newest, why others are not, and who may write beside them.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/store/directory.h>
#include <fairshard/store/manifest.h>
#include <fairshard/store/saver.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fairshard::store {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryDirectory;

void save(const std::string& root, int64_t step, const SaverOptions& options = {}) {
  Saver saver(std::nullopt, root, options);
  State state = saver.new_state();
  state.add_first("t", at::full({300}, static_cast<double>(step)));
  saver.save(step, std::move(state));
}

std::string folder_of(const std::string& root, int64_t step) {
  return root + "/" + checkpoint_name(step);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// As if a later fairshard had written it.
void make_unknown(const std::string& folder) {
  std::string text = read_text(folder + "/manifest.json");
  const std::string version = "\"version\":1";
  ASSERT_NE(text.find(version), std::string::npos) << text;
  text.replace(text.find(version), version.size(), "\"version\":99");
  write_text(folder + "/manifest.json", text);
}

/// What was warned of while it lives.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text_ += warning.msg() + "\n"; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

TEST(UnusableDirectory, IfNoneCanBeUsedThatIsRefusedWithReasons) {
  const TemporaryDirectory directory;
  const std::string& root = directory.path();
  for (const int64_t step : {1, 2, 3, 4}) {
    save(root, step);
  }
  make_unknown(folder_of(root, 1));
  fs::resize_file(folder_of(root, 2) + "/" + shard_name(0, 1), 100);
  fs::remove(folder_of(root, 3) + "/manifest.json");
  fs::remove(folder_of(root, 4) + "/" + shard_name(0, 1));
  expect_error(
      [&] { latest_checkpoint(root); },
      {root, "none of them can be used", folder_of(root, 1) + "/manifest.json: version 99",
       folder_of(root, 2) + "/" + shard_name(0, 1) + ": it has 100 bytes, but the manifest says",
       folder_of(root, 3) + "/manifest.json: No such file",
       folder_of(root, 4) + "/" + shard_name(0, 1) + ": it does not exist"});
  expect_error([&] { Saver(std::nullopt, root).latest(); }, {"none of them can be used"});
  EXPECT_EQ(list_checkpoints(root), std::vector<int64_t>());
}

TEST(UnusableDirectory, ANewerOneThatIsPassedOverIsWarnedOf) {
  const TemporaryDirectory directory;
  save(directory.path(), 1);
  save(directory.path(), 2);
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  EXPECT_EQ(latest_checkpoint(directory.path()), folder_of(directory.path(), 2));
  EXPECT_EQ(warnings.text(), "");
  fs::resize_file(folder_of(directory.path(), 2) + "/" + shard_name(0, 1), 100);
  EXPECT_EQ(latest_checkpoint(directory.path()), folder_of(directory.path(), 1));
  EXPECT_NE(warnings.text().find(folder_of(directory.path(), 2)), std::string::npos)
      << warnings.text();
  EXPECT_NE(warnings.text().find("it has 100 bytes"), std::string::npos) << warnings.text();
}

TEST(UnusableDirectory, PruningLeavesWhatALinkLeadsTo) {
  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/runs";
  const std::string archive = directory.path() + "/archive";
  save(root, 1);
  fs::rename(folder_of(root, 1), archive);
  fs::create_directory_symlink(archive, folder_of(root, 1));
  EXPECT_EQ(list_checkpoints(root), std::vector<int64_t>{1});
  save(root, 2, SaverOptions().keep(1));
  EXPECT_EQ(list_checkpoints(root), std::vector<int64_t>{2});
  EXPECT_TRUE(fs::exists(archive + "/manifest.json"));
  EXPECT_TRUE(fs::exists(archive + "/" + shard_name(0, 1)));
  // The same for one that is replaced, and for what looks like a failed attempt.
  fs::create_directory_symlink(archive, folder_of(root, 3));
  fs::create_directory_symlink(archive, root + "/.step-00000009.tmp");
  save(root, 3);
  EXPECT_FALSE(fs::is_symlink(folder_of(root, 3)));
  EXPECT_TRUE(fs::exists(archive + "/manifest.json"));
}

TEST(UnusableDirectory, PruningLeavesLaterStepsAndTheOneJustSaved) {
  const TemporaryDirectory directory;
  for (const int64_t step : {100, 200, 300}) {
    save(directory.path(), step);
  }
  for (const int64_t step : {110, 120, 130}) {  // somebody went back to step 100
    save(directory.path(), step, SaverOptions().keep(2));
  }
  EXPECT_EQ(list_checkpoints(directory.path()), (std::vector<int64_t>{120, 130, 200, 300}));
}

/// Saves once in another process, which then lives until it is let go.
class OtherRun {
 public:
  explicit OtherRun(const std::string& root) {
    std::array<int, 2> ready{};
    std::array<int, 2> end{};
    EXPECT_EQ(pipe(ready.data()), 0);
    EXPECT_EQ(pipe(end.data()), 0);
    process_ = fork();
    if (process_ == 0) {
      close(end[1]);
      Saver saver(std::nullopt, root);
      saver.save(1, saver.new_state());
      char byte = 'r';
      (void)!write(ready[1], &byte, 1);
      (void)!read(end[0], &byte, 1);
      _exit(0);  // without destructors, as a process that is killed
    }
    close(ready[1]);
    close(end[0]);
    end_ = end[1];
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  void end() {
    close(end_);
    waitpid(process_, nullptr, 0);
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  int end_ = -1;
};

TEST(SaverFolder, TwoRunsDoNotSaveToOneFolder) {
  const TemporaryDirectory directory;
  OtherRun other(directory.path());
  Saver saver(std::nullopt, directory.path());
  expect_error([&] { saver.save(2, saver.new_state()); },
               {directory.path(), "another run", std::to_string(other.process())});
  EXPECT_EQ(saver.latest(), folder_of(directory.path(), 1));  // to read is allowed
  other.end();
  saver.save(2, saver.new_state());
  Saver of_this_run(std::nullopt, directory.path());
  of_this_run.save(3, of_this_run.new_state());
  EXPECT_EQ(list_checkpoints(directory.path()), (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace fairshard::store
