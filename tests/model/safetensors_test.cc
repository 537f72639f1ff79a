#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden_files.h"
#include "temp_directory.h"

namespace expertplex {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string error_of(const std::string& header, const std::string& data) {
  const std::string file = safetensors_bytes(header, data);
  const auto tensors = parse_safetensors(as_bytes(file));
  EXPECT_FALSE(tensors) << header;
  return tensors ? "" : tensors.error().message;
}

TEST(Safetensors, ReadsTypesAndShapes) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"I64","shape":[1,1],"data_offsets":[8,16]},"s":{"dtype":"U8","shape":[],"data_offsets":[16,17]},)"
      R"("e":{"dtype":"BF16","shape":[0,3],"data_offsets":[17,17]},"h":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[17,19]}}   )";
  const std::string data(
      "\x00\x00\x80\x3F\x00\x00\x00\xC0\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x07\x38\xB8", 19);
  const std::string file = safetensors_bytes(header, data);
  const auto tensors = parse_safetensors(as_bytes(file));
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(tensors->size(), 5u);
  EXPECT_THAT(*to_floats(tensors->at("b")), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(*to_ints(tensors->at("a")), ElementsAre(-2));
  EXPECT_THAT(*to_ints(tensors->at("s")), ElementsAre(7));
  EXPECT_THAT(*to_floats(tensors->at("h")), ElementsAre(1.0f, -1.0f));
  EXPECT_TRUE(to_floats(tensors->at("e"))->empty());
  EXPECT_EQ(describe(tensors->at("e")), "BF16 [0, 3]");
  EXPECT_THAT(to_floats(tensors->at("a")).error().message, HasSubstr("got I64 [1, 1]"));
  EXPECT_THAT(to_ints(tensors->at("b")).error().message, HasSubstr("expected an integer tensor"));
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(error_of("{", ""), HasSubstr("header: not valid JSON"));
  EXPECT_THAT(error_of("[]", ""), HasSubstr("header: expected an object, got an array"));
  EXPECT_THAT(error_of(R"({"t":3})", ""), HasSubstr("tensor 't': expected an object"));
  EXPECT_THAT(error_of(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", "x"),
              HasSubstr("tensor 't': field 'dtype': missing"));
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  EXPECT_THAT(error_of(entry("F32", "[2]", "[0,4]"), "abcd"),
              HasSubstr("tensor 't': F32 [2] needs 8 bytes, data_offsets [0, 4] give 4"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[0,4]"), "ab"),
              HasSubstr("ends at byte 4 but the file has 2 bytes of data; it is truncated"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[4,0]"), "abcd"),
              HasSubstr("begin <= end, got [4, 0]"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[-4,0]"), "abcd"),
              HasSubstr("non-negative 64-bit integers, got -4"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[0,99999999999999999999]"), "abcd"),
              HasSubstr("non-negative"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[0,1.5]"), "abcd"), HasSubstr("non-negative"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[0]"), "abcd"), HasSubstr("expected [begin, end]"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "3"), "abcd"),
              HasSubstr("field 'data_offsets': expected an array"));
  EXPECT_THAT(error_of(entry("F32", "[4294967296,4294967296,4]", "[0,4]"), "abcd"),
              HasSubstr("overflows"));
  EXPECT_THAT(error_of(entry("F32", "[-1]", "[0,4]"), "abcd"), HasSubstr("field 'shape'"));
  EXPECT_THAT(error_of(entry("F32", "\"x\"", "[0,4]"), "abcd"), HasSubstr("field 'shape'"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[0,4]"), "abcdef"),
              HasSubstr("2 bytes after the last tensor belong to no tensor"));
  EXPECT_THAT(error_of(entry("F32", "[1]", "[1,5]"), "abcde"),
              HasSubstr("1 data bytes before tensor 't'"));
}

TEST(Safetensors, RefusesOverlaps) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[3,6]}})";
  EXPECT_THAT(error_of(header, "abcdef"),
              HasSubstr("tensor 'b' overlaps tensor 'a': begins at data byte 3, expected 4"));
}

TEST(Safetensors, RefusesBrokenFiles) {
  TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  const auto error = [&](const std::string& bytes) {
    directory.write("x.safetensors", bytes);
    const auto file = SafetensorsFile::open(path);
    EXPECT_FALSE(file);
    return file ? "" : file.error().message;
  };
  EXPECT_THAT(SafetensorsFile::open(path).error().message,
              HasSubstr("x.safetensors: cannot open: No such file"));
  EXPECT_THAT(SafetensorsFile::open(directory.path()).error().message,
              HasSubstr("expected a regular file"));
  EXPECT_THAT(error(""), HasSubstr("x.safetensors: expected a safetensors file, got 0 bytes"));
  EXPECT_THAT(error("1234567"), HasSubstr("got 7 bytes"));
  EXPECT_THAT(error(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("header of 16 bytes is longer than the file (10 bytes); it is truncated"));
  EXPECT_THAT(error(std::string(16, '\xFF')), HasSubstr("above the format's limit"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("not a safetensors file?"));
  std::string deep(200, '[');
  EXPECT_THAT(error(safetensors_bytes(deep, "")), HasSubstr("nested deeper than"));
  const std::string golden = golden_directory("minimax_m2/golden.safetensors");
  std::filesystem::copy_file(golden, directory.file("y.safetensors"));
  std::filesystem::resize_file(directory.file("y.safetensors"), 100'000);
  EXPECT_THAT(SafetensorsFile::open(directory.file("y.safetensors")).error().message,
              HasSubstr("it is truncated or its header is wrong, download it again"));
}

TEST(Safetensors, GoldenFilesAsTheReadmeShows) {
  const auto file = SafetensorsFile::open(golden_directory("minimax_m2/golden.safetensors"));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_THAT((*file)->find("prompt.1.logits")->shape, ElementsAre(7, 384));
  EXPECT_EQ(to_floats(*(*file)->find("prompt.1.logits"))->size(), 7u * 384u);
  EXPECT_EQ(to_ints(*(*file)->find("prompt.1.token_ids"))->size(), 7u);
  EXPECT_EQ((*file)->find("nothing"), nullptr);
}

}  // namespace
}  // namespace expertplex
