// Files in the safetensors format: written and read back, and refused when they do not hold
// together. tests/python/store compares with the package that defines the format.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/store/safetensors.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

namespace fairshard::store {
namespace safetensors_test {

using test::expect_error;

TensorToWrite item(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.scalar_type(), tensor.sizes().vec(), [tensor] { return tensor; }};
}

/// A file's text: the length, the header, the data.
std::string file_text(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return text + header + data;
}

SafetensorsHeader parse(const std::string& text) {
  return parse_safetensors(text, text.size(), "f.safetensors");
}

void refuse(const std::string& header, const std::string& data,
            const std::vector<std::string>& words) {
  auto all = words;
  all.emplace_back("f.safetensors");
  expect_error([&] { parse(file_text(header, data)); }, all);
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/f.safetensors";
  const std::vector<at::Tensor> tensors{at::arange(7, at::kByte),
                                        at::randn({3, 4}),
                                        at::randn({2, 3}, at::kBFloat16),
                                        at::scalar_tensor(2.5, at::kDouble),
                                        at::empty({0, 4}),
                                        at::ones({5}, at::kBool),
                                        at::randn({2, 2}, at::kComplexFloat)};
  std::vector<TensorToWrite> items;
  for (size_t i = 0; i < tensors.size(); ++i) {
    items.push_back(item("t/" + std::to_string(i), tensors[i]));
  }
  const auto checksums = write_safetensors(path, items, {{"format", "pt"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.header().data_begin % 8, 0u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& stored = file.at(items[i].name);
    EXPECT_TRUE(file.read(items[i].name).equal(tensors[i]));
    EXPECT_EQ(file.read(items[i].name).scalar_type(), tensors[i].scalar_type());
    EXPECT_EQ(stored.begin % tensors[i].element_size(), 0u);
    ASSERT_EQ(checksums[i].size(), tensors[i].numel() > 0 ? 1u : 0u);
    if (tensors[i].numel() > 0) {
      EXPECT_EQ(checksums[i][0], checksum_of(file.bytes(stored)));
    }
  }
  expect_error([&] { file.read("other"); }, {path, "other"});
}

TEST(Safetensors, LargeTensorsHaveAChecksumPerBlock) {
  const test::TemporaryDirectory directory;
  const at::Tensor tensor = at::arange(kChecksumBlockBytes / 4 + 100, at::kInt);
  const auto sums = write_safetensors(directory.path() + "/f", {item("t", tensor)});
  ASSERT_EQ(sums[0].size(), 2u);
  const SafetensorsFile file(directory.path() + "/f");
  EXPECT_EQ(sums[0][1], checksum_of(file.bytes(file.at("t")).substr(kChecksumBlockBytes)));
}

TEST(Safetensors, AFileIsNeverReplacedAndErrorsNameIt) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/f";
  write_safetensors(path, {item("t", at::ones({2}))});
  expect_error([&] { write_safetensors(path, {}); }, {path, "exists"});
  expect_error([&] { SafetensorsFile(directory.path() + "/none"); }, {"/none", "No such file"});
  expect_error([&] { SafetensorsFile file(directory.path()); }, {"no regular file"});
  expect_error(
      [&] {
        write_safetensors(directory.path() + "/two",
                          {item("t", at::ones({2})), item("t", at::ones({2}))});
      },
      {"'t'", "already"});
  expect_error(
      [&] {
        write_safetensors(directory.path() + "/gap",
                          {{"t", at::kFloat, {2}, [] { return at::ones({4}).slice(0, 0, 4, 2); }}});
      },
      {"'t'", "strides [2]"});
}

TEST(Safetensors, ALinkIsNotFollowed) {
  const test::TemporaryDirectory directory;
  write_safetensors(directory.path() + "/f", {item("t", at::ones({2}))});
  ASSERT_EQ(symlink("f", (directory.path() + "/link").c_str()), 0);
  expect_error([&] { SafetensorsFile(directory.path() + "/link"); }, {"it is a link"});
}

TEST(Safetensors, TruncationAtEveryByteIsRefused) {
  const std::string text = file_text(
      R"({"__metadata__":{"a":"b"},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      "01234567");
  EXPECT_EQ(parse(text).tensors.size(), 1u);
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(test::error_of([&] { parse(text.substr(0, length)); }), "") << length;
  }
  expect_error([&] { parse(text + "8"); }, {"9 bytes of data"});
}

TEST(Safetensors, LengthsThatLieAreRefused) {
  std::string text = file_text("{}", "");
  text.replace(0, 8, std::string(8, '\xff'));
  expect_error([&] { parse(text); }, {"header of 18446744073709551615 bytes"});
  text.replace(0, 8, std::string("\x10\0\0\0\0\0\0\0", 8));
  expect_error([&] { parse(text); }, {"header of 16 bytes in a file of 10"});
  refuse(one("F32", "[4611686018427387904,4]", "[0,8]"), "01234567", {"'t'", "overflow"});
  refuse(one("F32", "[0,4611686018427387904,4]", "[0,8]"), "01234567", {"'t'", "overflow"});
  refuse(one("F32", "[18446744073709551615]", "[0,8]"), "01234567", {"'t'", "whole number"});
  refuse(one("F32", "[3]", "[0,8]"), "01234567", {"'t'", "needs 12 bytes, but has 8"});
}

TEST(Safetensors, OffsetsThatLieAreRefused) {
  refuse(one("U8", "[8]", "[4,12]"), "01234567", {"'t'", "from 4 to 12"});
  refuse(one("U8", "[8]", "[8,0]"), "01234567", {"'t'", "from 8 to 0"});
  refuse(one("U8", "[4]", "[-4,0]"), "01234567", {"'t'", "-4"});
  refuse(one("U8", "[4]", "[0,4]"), "01234567", {"4 bytes", "8 bytes of data"});
  refuse(one("U8", "[4]", "[4,8]"), "01234567", {"'t'", "begins at 4"});
  refuse(one("U8", "[4]", "[0.5,4.5]"), "01234567", {"'t'", "0.5"});
  refuse(one("U8", "[4]", "[0,4,8]"), "01234567", {"'t'", "3 data_offsets"});
  refuse(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
         "01234567", {"'b' begins at 4", "ends at 6"});
}

TEST(Safetensors, HeadersThatAreNotWhatTheyShouldBeAreRefused) {
  refuse("[]", "", {"not an object"});
  refuse("{", "", {"not JSON"});
  refuse("{} {}", "", {"not JSON"});
  refuse(R"({"t":7})", "", {"'t'", "number"});
  refuse(R"({"t":{"dtype":"F32"}})", "", {"'t'", "shape"});
  refuse(one("F31", "[2]", "[0,8]"), "01234567", {"'t'", "F31"});
  refuse(one("F32", "2", "[0,8]"), "01234567", {"'t'", "list"});
  refuse(one("F32", R"(["2"])", "[0,8]"), "01234567", {"'t'", "string"});
  refuse(R"({"__metadata__":{"a":1}})", "", {"__metadata__", "string"});
  refuse(R"({"t":{},"t":{}})", "", {"'t'", "twice"});
  refuse("{\"a\\u001b[2J\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "",
         {"control character 27"});
  refuse(std::string(100000, '['), "", {"levels"});
  std::string deep = R"({"t":)";
  for (int i = 0; i < 1000; ++i) {
    deep += R"({"t":)";
  }
  refuse(deep, "", {"levels"});
  refuse("{\"\xff\":1}", "", {"not JSON"});
}

}  // namespace safetensors_test
}  // namespace fairshard::store
