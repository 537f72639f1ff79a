#include "base/json.h"

#include <gtest/gtest.h>

namespace expertplex {
namespace {

TEST(Json, ErrorsNameTheFieldAndBothTypes) {
  const Json object = {{"n", "seven"}, {"x", 1.5}, {"whole", 2.0}, {"none", nullptr}};
  EXPECT_EQ(get_int(object, "n").error().message, "field 'n': expected an integer, got a string");
  EXPECT_EQ(get_int(object, "x").error().message, "field 'x': expected an integer, got a number");
  EXPECT_EQ(get_int(object, "gone").error().message, "field 'gone': missing");
  EXPECT_EQ(*get_int(object, "whole"), 2);
  EXPECT_EQ(*get_int_or(object, "none", 5), 5);
  EXPECT_EQ(*get_number(object, "x"), 1.5);
  EXPECT_FALSE(get_bool_or(object, "n", true).ok());
}

TEST(Json, BadTextIsAnErrorNotAnException) {
  EXPECT_FALSE(parse_json("{\"a\": }").ok());
  EXPECT_FALSE(parse_json("").ok());
  EXPECT_FALSE(parse_json("\"\xff\"").ok());
  EXPECT_TRUE(parse_json("{\"a\": [1, 2, {\"b\": \"]]]]\"}]}", 4).ok());
}

TEST(Json, DeepNestingIsRefusedBeforeParsing) {
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')).ok());
  EXPECT_FALSE(parse_json("[[[1]]]", 2).ok());
  EXPECT_TRUE(parse_json("[[[1]]]", 3).ok());
}

TEST(Json, MissingFileIsNamed) {
  const auto result = read_json_file("no/such/file.json");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_NE(result.error().message.find("no/such/file.json"), std::string::npos);
}

}  // namespace
}  // namespace expertplex
