#include "base/file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/shorten.h"

namespace expertplex {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "expertplex-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string at(const char* name) const { return (root_ / name).string(); }

  fs::path root_;
};

TEST_F(FileTest, ReadsRegularFilesOnly) {
  std::ofstream(at("plain")) << "{}";
  EXPECT_EQ(*read_file(at("plain"), 2), "{}");
  EXPECT_EQ(read_file(at("plain"), 1).error().message,
            at("plain") + ": expected a file of at most 1 bytes, got 2");
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  // Nobody writes into it, ever.
  EXPECT_EQ(read_json_file(at("pipe")).error().message,
            at("pipe") + ": expected a regular file, got a pipe");
  EXPECT_EQ(read_file(root_.string(), 9).error().message,
            root_.string() + ": expected a regular file, got a directory");
  EXPECT_EQ(read_json_file("/dev/zero").error().message,
            "/dev/zero: expected a regular file, got a device");
  EXPECT_EQ(read_file(at("gone"), 9).error().code, ErrorCode::kNotFound);
}

TEST_F(FileTest, WhatCannotBeToldIsNotAbsent) {
  std::ofstream(at("plain")) << "x";
  EXPECT_TRUE(*file_exists(at("plain")));
  EXPECT_FALSE(*file_exists(at("gone")));
  EXPECT_FALSE(*file_exists(at("gone/further")));
  fs::create_symlink("loop", root_ / "loop");
  const auto loop = file_exists(at("loop"));
  ASSERT_FALSE(loop);
  EXPECT_EQ(loop.error().message, at("loop") + ": cannot open: Too many levels of symbolic links");
}

TEST(Shorten, CutsBetweenCodePoints) {
  EXPECT_EQ(shorten("abc", 3), "abc");
  EXPECT_EQ(shorten("abcd", 3), "abc...");
  EXPECT_EQ(shorten("a\xc3\xa4\xc3\xa4", 4), "a\xc3\xa4...");
}

}  // namespace
}  // namespace expertplex
