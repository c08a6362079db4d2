// Windows of a file of tokens. That such files come from tokenizers is shown by
// tests/python/models.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/models/tokens.h>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

namespace fairshard::models {
namespace tokens_test {

using test::expect_error;

void write(const std::string& file, const at::Tensor& tokens, const std::string& name = "tokens") {
  store::write_safetensors(
      file, {{name, tokens.scalar_type(), tokens.sizes().vec(), [tokens] { return tokens; }}});
}

TEST(TokenWindows, AllKindsOfNumbers) {
  const test::TemporaryDirectory folder;
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kInt, at::kLong}) {
    const std::string file = c10::str(folder.path(), "/", dtype);
    const at::Tensor numbers = at::arange(40000, 40011, at::kLong);
    write(file, numbers.to(dtype));
    const TokenWindows windows(file, 3);
    EXPECT_EQ(windows.size(), 3);
    const at::Tensor batch = windows.batch({2, 0});
    EXPECT_TRUE(batch[0].equal(numbers.slice(0, 6, 9))) << dtype;
    EXPECT_TRUE(batch[1].equal(numbers.slice(0, 0, 3))) << dtype;
    expect_error([&] { windows.batch({3}); }, {"window 3 of 3"});
  }
}

TEST(TokenWindows, WhatIsNoFileOfTokensIsNamed) {
  const test::TemporaryDirectory folder;
  const std::string file = folder.path() + "/a";
  expect_error([&] { TokenWindows(file, 3); }, {file});
  write(file, at::arange(5, at::kInt), "other");
  expect_error([&] { TokenWindows(file, 3); }, {file, "no tensor 'tokens'", "fairshard.tokenize"});
  write(file + "2", at::arange(5, at::kFloat));
  expect_error([&] { TokenWindows(file + "2", 3); }, {file, "Float [5]"});
  write(file + "3", at::arange(5, at::kInt));
  expect_error([&] { TokenWindows(file + "3", 6); }, {file, "5 tokens, but a window 6"});
  expect_error([&] { TokenWindows(file + "3", 0); }, {"length is 0"});
}

}  // namespace tokens_test
}  // namespace fairshard::models
