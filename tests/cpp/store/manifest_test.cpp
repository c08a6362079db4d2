// Manifests that do not hold together are refused, and say where.
#include "support/expect_error.h"
#include <fairshard/store/manifest.h>

#include <gtest/gtest.h>

namespace fairshard::store {
namespace manifest_test {

Manifest example() {
  Manifest manifest;
  manifest.step = 120;
  manifest.world_size = 2;
  manifest.files = {{shard_name(0, 2), 100}, {shard_name(1, 2), 200}};
  manifest.tensors["model/w"] = {{at::kBFloat16, {2, 3}, {1, 2}},
                                 {{0, 2, 0, {1}}, {2, 6, 1, {0xfedcba9876543210}}}};
  manifest.tensors["model/empty"] = {{at::kFloat, {0, 3}, {3, 1}}, {{0, 0, 1, {}}}};
  manifest.tensors["step"] = {{at::kFloat, {}, {}}, {{0, 1, 0, {7}}}};
  manifest.values["rate"] = R"({"lr":[0.5,null,"x"]})";
  return manifest;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from << " is not in " << text;
  return text.replace(place, from.size(), to);
}

void refuse(const std::string& from, const std::string& to, std::vector<std::string> words) {
  words.emplace_back("m.json");
  test::expect_error([&] { parse_manifest(replaced(to_json(example()), from, to), "m.json"); },
                     words);
}

TEST(Manifest, GoesToJsonAndBack) {
  const Manifest manifest = example();
  const Manifest again = parse_manifest(to_json(manifest), "m.json");
  EXPECT_EQ(to_json(again), to_json(manifest));
  EXPECT_EQ(again.step, 120);
  EXPECT_EQ(again.tensors.at("model/w").layout.strides, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(again.tensors.at("model/w").ranges[1].checksums[0], 0xfedcba9876543210);
  EXPECT_EQ(again.values.at("rate"), manifest.values.at("rate"));
}

TEST(Manifest, NamesOfRangesTellThem) {
  const StoredEntry plain{{at::kFloat, {2, 3}, {3, 1}}, {{0, 6, 0, {1}}}};
  EXPECT_EQ(stored_name("a", plain, plain.ranges[0]), "a");
  const StoredEntry other = example().tensors.at("model/w");
  EXPECT_EQ(stored_name("a", other, other.ranges[1]), "a[2:6]");
  // Whole, but not row-major: another program must not take it for the tensor itself.
  EXPECT_EQ(stored_name("a", other, {0, 6, 0, {}}), "a[0:6]");
}

TEST(Manifest, FilesOutsideOfTheFolderAreRefused) {
  refuse("shard-00000-of-00002.safetensors", "../../etc/passwd", {"../../etc/passwd"});
  refuse("shard-00000-of-00002.safetensors", "/etc/passwd", {"/etc/passwd"});
  refuse("shard-00000-of-00002.safetensors", "a/shard-00000-of-00002.safetensors", {"a/shard"});
  refuse("shard-00001-of-00002.safetensors", "shard-00000-of-00002.safetensors", {"file 1 of 2"});
}

TEST(Manifest, RangesThatDoNotFitAreRefused) {
  refuse(R"("begin":2)", R"("begin":3)", {"model/w", "from 3 to 6", "up to 2"});
  refuse(R"("begin":2)", R"("begin":1)", {"model/w", "from 1 to 6", "up to 2"});
  refuse(R"("end":6)", R"("end":5)", {"model/w", "only 5 of 6"});
  refuse(R"("end":6)", R"("end":7)", {"model/w", "from 2 to 7"});
  refuse(R"("end":6)", R"("end":9223372036854775807)", {"model/w"});
  refuse(R"("end":6)", R"("end":-6)", {"model/w", "-6"});
  refuse(R"("file":1)", R"("file":2)", {"file number 2 of 2"});
  refuse(R"("fedcba9876543210")", "", {"model/w", "0 checksums for 1 blocks"});
  refuse(R"("fedcba9876543210")", R"("fedcba987654321g")", {"model/w", "hexadecimal"});
}

TEST(Manifest, LayoutsThatDoNotFitAreRefused) {
  refuse(R"("shape":[2,3])", R"("shape":[4611686018427387904,4611686018427387904])", {"overflow"});
  refuse(R"("strides":[1,2])", R"("strides":[1,1])", {"model/w", "strides"});
  refuse(R"("strides":[1,2])", R"("strides":[1])", {"model/w", "strides"});
  refuse(R"("strides":[1,2])", R"("strides":[0,2])", {"model/w", "strides"});
  refuse(R"("dtype":"BF16")", R"("dtype":"BF17")", {"BF17"});
}

TEST(Manifest, OtherTextsAreRefused) {
  refuse("fairshard checkpoint", "something else", {"no manifest"});
  refuse(R"("version":1)", R"("version":2)", {"version 2"});
  refuse(R"("step":120)", R"("step":1e3)", {"step"});
  refuse(R"("values":{)", R"("values":[{)", {"m.json"});
  test::expect_error([] { parse_manifest("", "m.json"); }, {"m.json"});
  test::expect_error([] { parse_manifest("[1]", "m.json"); }, {"m.json"});
  const std::string text = to_json(example());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(test::error_of([&] { parse_manifest(text.substr(0, length), "m.json"); }), "");
  }
}

}  // namespace manifest_test
}  // namespace fairshard::store
